// Eras: how requests of a step that has failed are told from those of the next one.
//
// A step asks for several things under names, and ends with the first of them that fails: what else
// it asked for is withdrawn, and what it had yet to ask for never comes. Then the next step asks for
// the same names. So each step is of an era, which is over when a request of one of its steps is
// refused or withdrawn:
//
//     member 0    step 1, era 1: asks "a", "b"; fails, withdraws "b"    step 2, era 2: asks "a", "b"
//     member 1    step 1, era 1: asks "a" . . . . . . . . . . . . asks "b", late: refused, not served
//                                                                 with the "b" of step 2
//
// All members are in the next era from the same message on: the one by which a withdrawal is told. The
// member that withdraws may have begun its next step by then, whose requests are told by that message
// at the earliest; so a request bears the era that its step has when it is told, and steps that began
// after a cancellation follow once it is known what came of it. Where that came too late, and the
// request was served, no era has ended.
//
// Other steps keep the era that they began in, unless the ledger finds that one before it had ended
// without a word (see met_steps.h): then it is of a later era than that one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>

namespace kadril {

// A step as its requests tell of it; zeros for no step, which is of every era.
struct Stamp {
  uint64_t step = 0;  // steps of one member are numbered in the order in which they begin
  uint64_t era = 0;
};

class Eras {
 public:
  // The stamp of a step that the caller knows by this number. It begins with its first request.
  Stamp of_step(uint64_t caller_step) {
    if (caller_step == 0) return {};
    const std::lock_guard lock(mutex_);
    for (const auto& [known, stamp] : recent_) {
      if (known == caller_step) return stamp;
    }
    if (recent_.size() == max_recent) recent_.pop_front();
    recent_.emplace_back(caller_step, Stamp{++num_steps_, current_});
    return recent_.back().second;
  }

  // A stamp as it is now: the era may be a later one than when the step began.
  Stamp renewed(const Stamp& given) {
    if (given.step == 0) return given;
    const std::lock_guard lock(mutex_);
    for (const auto& [known, stamp] : recent_) {
      if (stamp.step == given.step) return stamp;
    }
    return given;
  }

  // The number of the step that begins next.
  uint64_t next_step() {
    const std::lock_guard lock(mutex_);
    return num_steps_ + 1;
  }

  // Steps that begin from now on are of this era, or of a later one.
  void advance_to(uint64_t era) {
    const std::lock_guard lock(mutex_);
    current_ = std::max(current_, era);
  }

  // This step and those after it are of this era, or of a later one.
  void promote(const Stamp& from) {
    const std::lock_guard lock(mutex_);
    for (auto& [known, stamp] : recent_) {
      if (stamp.step >= from.step) stamp.era = std::max(stamp.era, from.era);
    }
  }

 private:
  static constexpr size_t max_recent = 64;  // steps of one process that are under way at once

  std::mutex mutex_;  // guards the three below
  uint64_t current_ = 1;
  uint64_t num_steps_ = 0;
  std::deque<std::pair<uint64_t, Stamp>> recent_;  // by the caller's number, the oldest first
};

}  // namespace kadril
