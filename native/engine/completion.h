// A completion: what a caller holds of a request until it is done.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/descriptor.h"
#include "engine/lane.h"
#include "engine/submitters.h"
#include "failure.h"
#include "fork_mark.h"

namespace kadril {

using Clock = std::chrono::steady_clock;

// Memory that the engine made for a result whose size only the other members knew.
struct Output {
  Piece piece;
  std::shared_ptr<std::byte> memory;
};

// Makes the memory of a result, given its index and piece; null where it cannot.
using Allocator = std::function<std::shared_ptr<std::byte>(size_t index, const Piece& piece)>;

class Completion;

// Those who sleep on completions of one engine. Completions may outlive it.
class Waiters {
 public:
  Waiters(Lane& lane, std::shared_ptr<const Submitters> submitters);
  int size() const { return size_.load(); }
  void enter();  // and let the engine hurry
  void leave();
  void dismiss();  // the engine is gone

  // A sleeper is *blocked* from when it says so, which it does after a while. `num_threads` are the
  // threads that could submit something, this one included, as far as the caller knows.
  // Gives the number by which it is unblocked.
  uint64_t block(const Completion& completion, int num_threads);
  void unblock(uint64_t number);

  // When nothing more can come from this process to the engine's set, if nothing changes until
  // then: all its submitters are blocked here, each on a request that is not done. `no_time` where
  // that is not so.
  static constexpr Clock::time_point no_time = Clock::time_point::max();
  Clock::time_point stuck_from() const;
  // What the first of the blocked submitters sleeps on; only to be compared with.
  const Completion* first_blocked_on() const;

  // What the engine does, for `find_target`: the cycle whose messages are under way, from 1 on, or
  // 0; and its activity, see channel.h. Both by the engine alone.
  void set_exchange(uint64_t cycle) { exchange_.store(cycle); }
  void set_activity(uint64_t activity) { activity_.store(activity); }
  // Note for each blocked sleeper which members have not asked for the same, in this quiet time.
  // `find_missing` is false where that cannot be told.
  using Members = decltype(WaitTarget::missing);
  using FindMissing = std::function<bool(const Completion& completion, Members& missing)>;
  void note_missing(uint64_t activity, const FindMissing& find_missing);
  // What a blocked sleeper waits for, where that is certain: nothing else can end its sleep well.
  std::optional<WaitTarget> find_target(const Completion& completion) const;

  const LanePlace& place() const { return place_; }
  const Submitters& submitters() const { return *submitters_; }

 private:
  struct Blocked {
    uint64_t number;
    const Completion* completion;
    int num_threads;
    bool is_submitter;
    Clock::time_point since;
    uint64_t activity = 0;  // in which `missing` was noted
    Members missing{};
  };

  const std::shared_ptr<const Submitters> submitters_;
  const LanePlace place_;
  std::atomic<int> size_{0};
  std::atomic<uint64_t> exchange_{0};
  std::atomic<uint64_t> activity_{0};
  mutable std::mutex mutex_;  // guards the three below
  Lane* lane_;
  uint64_t num_blocked_ = 0;  // so far
  std::vector<Blocked> blocked_;
};

class Completion {
 public:
  using Callback = std::function<void(Completion&)>;

  // Whether this process was made by fork() since the request was made, and nobody will serve it.
  bool is_orphaned() const { return fork_mark_.is_in_child(); }

  bool is_done() const { return state_.load(std::memory_order_acquire) != 0; }

  // Sleep until it is done, a signal comes, or `seconds` have passed; whether it is done.
  bool wait(double seconds);

  // Called once, by the engine. Whoever may wait is woken by `wake`, so that of many completions
  // that are done at once all are done before the first sleeper wakes.
  void finish(std::shared_ptr<const Failure> failure);
  void wake();

  // To be read when it is done.
  const Failure* failure() const { return failure_.get(); }
  std::vector<Output> outputs;
  std::vector<uint64_t> received_splits;  // rows that came from each member, for each output
  int last_joined = -1;

  std::string key;      // of the request, while it is under way
  Stamp stamp;          // of the request
  uint64_t record = 0;  // of the request, in the flight record
  Descriptor brief;     // of the request: what its text is made of, for people
  Callback callback;    // called by the engine's thread when it is done
  Allocator allocate;   // by the engine's thread, for outputs; the heap where there is none
  std::shared_ptr<Waiters> waiters;

 private:
  const ForkMark fork_mark_;
  std::atomic<uint32_t> state_{0};
  std::atomic<uint32_t> num_waiters_{0};
  std::shared_ptr<const Failure> failure_;
};

}  // namespace kadril
