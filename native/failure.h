// What can go wrong, as a value. The core throws nothing and never ends the process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kadril {

enum class Reason : uint8_t {
  mismatch,     // members called different things; the channel stays usable
  peer_lost,    // a member's process is dead
  peer_left,    // a member closed the channel while others still wait for it
  stalled,      // patience ran out on a member that is alive
  revoked,      // a member gave the channel up
  interrupted,  // this member was interrupted (a signal) and gave the channel up
  forked,       // called in a child made by fork()
  closed,       // called after close()
  no_room,      // memory to share could not be had
  unsupported,  // no such operation for this dtype
  invalid,      // an argument that no caller should pass
  foreign,      // an error of another engine, which is in `cause`
  deadlock,     // members wait for each other in several channels; see `calls`
  cancelled,    // this member withdrew its request before all others had made it
};

struct Failure {
  Reason reason;
  int member = -1;       // index in the channel of the peer that is the cause
  bool stopped = false;  // stalled: the peer is held by SIGSTOP or a debugger
  double elapsed = 0;    // seconds spent waiting
  uint64_t needed = 0;   // no_room: bytes asked for
  int64_t available = -1;
  std::string detail;
  std::vector<int> late;    // stalled: all members that were waited for
  uint64_t num_common = 0;  // stalled: calls of the channel that all members have completed
  std::string last_common;  // the last of these
  // mismatch: what each member called, by member; deadlock: who waits for whom, and where; stalled:
  // where the member that is the cause waits meanwhile
  std::vector<std::string> calls;
  std::shared_ptr<void> cause;  // foreign: the error itself, for whoever knows its kind
};

// Null means success, so that the common path costs one test of a pointer.
using Error = std::unique_ptr<Failure>;

inline Error fail(Reason reason, std::string detail = {}, int member = -1) {
  auto failure = std::make_unique<Failure>();
  failure->reason = reason;
  failure->member = member;
  failure->detail = std::move(detail);
  return failure;
}

}  // namespace kadril
