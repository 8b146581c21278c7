// A lane: moves memory between the members of one process set, in the same order on all of them.
// The engine runs on anything that can do this; see shm_lane.h for the native one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "call.h"
#include "collectives.h"
#include "failure.h"
#include "waits.h"

namespace kadril {

// What the engine's thread sleeps on. Whoever gives it work rings.
class Bell {
 public:
  virtual ~Bell() = default;
  virtual uint32_t count() const = 0;  // changes with every ring
  virtual void ring() = 0;             // by a thread of this process
  // Sleep until the count is no longer `seen`, or `seconds` have passed.
  virtual void wait(uint32_t seen, double seconds) = 0;

  // Between members, where that can be had: say that this member comes to a cycle, and ask whether
  // another one does. `listen` tells whether a sleeper wants to be woken for that.
  virtual bool reaches_peers() const { return false; }
  virtual void ask_for(uint32_t) {}
  virtual bool is_asked_for(uint32_t) const { return false; }
  virtual void listen(bool) {}
};

// One array of several that are reduced in one call.
struct ReducedArray {
  const void* source;
  void* target;
  uint64_t count;
};

// Where other ranks of the host can see who waits, and for what; see waits.h.
struct LanePlace {
  std::weak_ptr<Arena> arena;  // expired where there is no such place
  int rank = -1;               // in the arena
  WaitTarget target;           // without what changes from wait to wait
};

class Lane {
 public:
  virtual ~Lane() = default;
  virtual int size() const = 0;
  virtual int me() const = 0;
  virtual Bell& bell() = 0;

  // Called by the engine's thread before anything else; it holds the result to its end.
  virtual std::shared_ptr<void> enter() { return nullptr; }

  virtual Error allreduce(const Call& call, const void* source, void* target) = 0;
  // Whether several arrays are reduced sooner in one call than in one call each: over a network the
  // next one is under way before the last bytes of the one before have come. The same on all members.
  virtual bool takes_many() const { return false; }

  // Bytes that members exchange in each cycle, and mostly all that they have to say; the same on
  // all of them.
  virtual uint64_t block_bytes() const { return 1024; }
  // `call` has what the arrays have in common.
  virtual Error allreduce_many(const Call& call, std::span<const ReducedArray> arrays);
  virtual Error broadcast(const Call& call, void* memory) = 0;
  virtual Error allgatherv(const Call& call, const void* source, void* target,
                           std::span<const uint64_t> counts) = 0;
  virtual Error reduce_scatterv(const Call& call, const void* source, void* target,
                                std::span<const uint64_t> counts) = 0;
  virtual Error alltoallv(const Call& call, const void* source, std::span<const uint64_t> send,
                          void* target, std::span<const uint64_t> recv) = 0;
  virtual Error exchange(const Call& call, std::span<const Outgoing> sends,
                         std::span<const Incoming> recvs) = 0;

  // Memory for the lane's own use, as large as asked for, which reductions like best. Valid until
  // the next call.
  virtual void* scratch(uint64_t bytes) = 0;

  // Who a call waits for (members, whether one is stopped, seconds), now and then while it does.
  using LateHook = std::function<void(const std::vector<int>&, bool, double)>;
  void set_late_hook(LateHook hook) { late_hook_ = std::move(hook); }

  // Whether somebody sleeps for what the lane does, so that it may look instead of sleeping. From
  // any thread.
  virtual void set_urgent(bool) {}

  virtual LanePlace place() const { return {}; }
  // Tell those who look for deadlocks what the engine does: an `Activity`.
  virtual void show_activity(uint64_t) {}

  // Give the set up for a reason that the engine found, for all members.
  virtual Error give_up_stalled(const Call& call, int member, double elapsed) = 0;

  // Make a call under way in another thread return. May be called again and again until it has.
  virtual void leave_call() noexcept = 0;
  // Leave the set; members that still wait for this one learn that it has left.
  virtual void close() noexcept = 0;

 protected:
  LateHook late_hook_;
};

inline Error Lane::allreduce_many(const Call& call, std::span<const ReducedArray> arrays) {
  for (const ReducedArray& array : arrays) {
    Call each = call;
    each.count = array.count;
    if (auto error = allreduce(each, array.source, array.target)) return error;
  }
  return nullptr;
}

}  // namespace kadril
