// The collectives: blocking, over the members of a channel, each in a file of its own.
//
// Every member makes the same calls in the same order. Every call starts with a meeting in which
// the calls are compared, so a mismatch is an error on all members before anything moves. After
// that there are four ways:
//
//   inlined   what each member gives fits into its posting: done, no further meeting
//   early     the same through a part of its staging memory that takes turns as postings do
//             (exchange only)
//   staged    through staging memory in rounds of one chunk, one meeting each, double-buffered:
//
//             round r:  fill half r%2  |  meet  |  read all members' half r%2
//
//             a member fills a half again two rounds later, after a meeting that its readers reach
//             only when they are done with it
//   shared    the memory lies in the arena: peers read and write it in place, and a last meeting
//             says that they are done
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "channel.h"
#include "runs.h"

namespace kadril {

struct Outgoing {
  int peer;
  DType dtype;  // compared at both ends
  const void* memory;
  uint64_t bytes;
  Runs runs = {};  // how they lie at `memory`
};

struct Incoming {
  int peer;
  DType dtype;
  void* memory;
  uint64_t bytes;
  Runs runs = {};
};

Error barrier(Channel& channel, Call call);

// `count` elements of source on every member; in place where target is source. `any_wish` is set to
// whether a member's call has one.
Error allreduce(Channel& channel, Call call, const void* source, void* target,
                bool* any_wish = nullptr);

// The result is written on member `call.root` only.
Error reduce(Channel& channel, Call call, const void* source, void* target);

Error broadcast(Channel& channel, Call call, void* memory);

// Member m gives counts[m] elements; the target has their sum. The source may be
// its part of the target.
Error allgatherv(Channel& channel, Call call, const void* source, void* target,
                 std::span<const uint64_t> counts);

// The source has sum(counts) elements; member m gets the m-th part.
Error reduce_scatterv(Channel& channel, Call call, const void* source, void* target,
                      std::span<const uint64_t> counts);

Error alltoallv(Channel& channel, Call call, const void* source,
                std::span<const uint64_t> send_counts, void* target,
                std::span<const uint64_t> recv_counts);

// Messages between the same two members are matched in the order of the lists.
Error exchange(Channel& channel, Call call, std::span<const Outgoing> sends,
               std::span<const Incoming> recvs);

// What the messages of an exchange follow from: a few bytes that each member knows of itself.
struct Premise {
  std::span<const std::byte> mine;     // as many on every member
  std::span<const std::byte> planned;  // of all members in their order; empty where nothing is
  std::vector<std::byte> found = {};   // the same, as it is; set where that was not planned for
};

// As above, if every member has planned for what all of them say of themselves; otherwise nothing
// moves, and all of them learn what to plan for. `meanwhile` is this member's own part of the work,
// done while messages are under way, and only if they are.
Error exchange_planned(Channel& channel, Call call, std::span<const Outgoing> sends,
                       std::span<const Incoming> recvs, Premise& premise,
                       const std::function<void()>& meanwhile);

}  // namespace kadril
