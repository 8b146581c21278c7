// Which steps of the members belong together. Steps are numbered by each member for itself, and meet
// when a request of each is served; from then on their other requests are for each other only:
//
//     member 0    step 1: asks "a"; ends, has not begun "b"       step 2: asks "a", "b"
//     member 1    step 1: asks "a" . . . . . . . . . . . . . . asks "b": step 1 of member 1 has met
//                                                              step 1 of member 0, not step 2
//
// A member's step is over when a later one of it asks for a name again, and what the steps that it has
// met still ask for will not be met. So a step that ended early, for whatever reason and without a
// word, is found out by the next one. Once that has happened, or a member has withdrawn what it asked
// for, all steps that have met are over, and what each member asks for later is of a later era (see
// eras.h), whether it has heard of it or not. All members keep the same account.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kadril {

class MetSteps {
 public:
  explicit MetSteps(int num_members) : recent_(static_cast<size_t>(num_members)) {}

  // The step of `other` that this step of `member` has met; 0 where none is known.
  uint64_t partner(size_t member, uint64_t step, size_t other) const {
    const Meeting* meeting = find(member, step);
    return meeting ? meeting->steps[other] : 0;
  }

  // The step of `member` by which this one of it was found to be over; 0 where it is not.
  uint64_t next_after(size_t member, uint64_t step) const {
    const Meeting* meeting = find(member, step);
    return meeting ? meeting->next[member] : 0;
  }

  // This step of `member` is over, since it is at `next`. Whether that is news.
  bool end(size_t member, uint64_t step, uint64_t next) {
    Meeting* meeting = find(member, step);
    return meeting && std::exchange(meeting->next[member], next) == 0;
  }

  // This step of `member` and those that it has met are over: later ones are of this era or later.
  void end_all(size_t member, uint64_t step, uint64_t era) {
    if (Meeting* meeting = find(member, step)) meeting->next_era = std::max(meeting->next_era, era);
  }

  // The least era of steps of `member` after this one; 0 where it may go on.
  uint64_t next_era(size_t member, uint64_t step) const {
    const Meeting* meeting = find(member, step);
    return meeting ? meeting->next_era : 0;
  }

  // Requests of these steps, by member, are served together; 0 stands for a request of no step.
  void meet(std::span<const uint64_t> steps) {
    std::shared_ptr<Meeting> meeting;
    size_t num_steps = 0;
    for (size_t member = 0; member < steps.size(); ++member) {
      if (steps[member] == 0) continue;
      ++num_steps;
      if (!meeting) meeting = find_shared(member, steps[member]);
    }
    if (num_steps < 2) return;
    if (!meeting) meeting = std::make_shared<Meeting>(recent_.size());
    for (size_t member = 0; member < steps.size(); ++member) {
      if (steps[member] == 0 || meeting->steps[member] == steps[member]) continue;
      meeting->steps[member] = steps[member];
      if (recent_[member].size() == max_recent) recent_[member].pop_front();
      recent_[member].emplace_back(steps[member], meeting);
    }
  }

 private:
  static constexpr size_t max_recent = 64;  // as many as eras.h knows of

  struct Meeting {
    explicit Meeting(size_t num_members) : steps(num_members), next(num_members) {}
    std::vector<uint64_t> steps;  // of each member
    std::vector<uint64_t> next;   // of members whose step is over: a later one
    uint64_t next_era = 0;
  };

  std::shared_ptr<Meeting> find_shared(size_t member, uint64_t step) const {
    // The latest first: it is the one that is asked for.
    for (auto each = recent_[member].rbegin(); each != recent_[member].rend(); ++each) {
      if (each->first == step) return each->second;
    }
    return nullptr;
  }
  Meeting* find(size_t member, uint64_t step) const { return find_shared(member, step).get(); }

  // By member, the oldest first.
  std::vector<std::deque<std::pair<uint64_t, std::shared_ptr<Meeting>>>> recent_;
};

}  // namespace kadril
