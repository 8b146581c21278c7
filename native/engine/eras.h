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
// A member that withdraws is in the next era at once, and the others when they hear of it, which is
// at the same message. A step keeps the era that it began in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>

namespace kadril {

class Eras {
 public:
  // The era of a step, which begins with its first request; 0 of no step, which is of every era.
  uint64_t of_step(uint64_t step) {
    if (step == 0) return 0;
    const std::lock_guard lock(mutex_);
    for (const auto& [known, era] : recent_) {
      if (known == step) return era;
    }
    if (recent_.size() == max_recent) recent_.pop_front();
    recent_.emplace_back(step, current_);
    return current_;
  }

  // Steps that begin from now on are of this era, or of a later one.
  void advance_to(uint64_t era) {
    const std::lock_guard lock(mutex_);
    current_ = std::max(current_, era);
  }

 private:
  static constexpr size_t max_recent = 64;  // steps of one process that are under way at once

  std::mutex mutex_;  // guards the two below
  uint64_t current_ = 1;
  std::deque<std::pair<uint64_t, uint64_t>> recent_;  // steps with their eras, the oldest first
};

}  // namespace kadril
