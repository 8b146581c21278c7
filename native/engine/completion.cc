#include "engine/completion.h"

#include <algorithm>

#include "engine/lane.h"
#include "futex.h"

namespace kadril {
namespace {

// Before the others are told that this process is stuck: short where all threads that could submit
// are known to sleep, long where there are some that may yet do so for the first time.
constexpr std::chrono::milliseconds short_grace{500};
constexpr std::chrono::seconds long_grace{10};

}  // namespace

void Waiters::enter() {
  size_.fetch_add(1);
  const std::lock_guard lock(mutex_);
  if (!lane_) return;
  lane_->set_urgent(true);
  lane_->bell().ring();
}

void Waiters::leave() {
  if (size_.fetch_sub(1) > 1) return;
  const std::lock_guard lock(mutex_);
  if (lane_) lane_->set_urgent(size_.load() > 0);
}

void Waiters::dismiss() {
  const std::lock_guard lock(mutex_);
  lane_ = nullptr;
}

void Waiters::block(const Completion& completion, int num_threads) {
  const std::lock_guard lock(mutex_);
  // A thread that never submits may sleep or not: what comes does not depend on it.
  if (!submitters_->has_this_thread()) return;
  blocked_.push_back({&completion, num_threads, Clock::now()});
  if (lane_) lane_->bell().ring();
}

void Waiters::unblock(const Completion& completion) {
  const std::lock_guard lock(mutex_);
  const auto mine = std::find_if(blocked_.begin(), blocked_.end(), [&](const Blocked& each) {
    return each.completion == &completion;
  });
  if (mine != blocked_.end()) blocked_.erase(mine);
}

Clock::time_point Waiters::stuck_from() const {
  const std::lock_guard lock(mutex_);
  const int num_submitters = submitters_->size();
  if (blocked_.empty() || static_cast<int>(blocked_.size()) != num_submitters) return no_time;
  Clock::time_point last{};
  bool knows_all = true;
  for (const Blocked& each : blocked_) {
    if (each.completion->is_done()) return no_time;  // it wakes up
    last = std::max(last, each.since);
    knows_all &= each.num_threads <= num_submitters;
  }
  return last + (knows_all ? Clock::duration(short_grace) : Clock::duration(long_grace));
}

const Completion* Waiters::first_blocked_on() const {
  const std::lock_guard lock(mutex_);
  return blocked_.empty() ? nullptr : blocked_.front().completion;
}

bool Completion::wait(double seconds) {
  if (is_done()) return true;
  num_waiters_.fetch_add(1, std::memory_order_seq_cst);
  if (waiters) waiters->enter();
  if (state_.load(std::memory_order_seq_cst) == 0) futex_wait(state_, 0, seconds);
  if (waiters) waiters->leave();
  num_waiters_.fetch_sub(1, std::memory_order_relaxed);
  return is_done();
}

bool Completion::wait_blocked(double seconds, int num_threads) {
  if (!waiters) return wait(seconds);
  waiters->block(*this, num_threads);
  const bool done = wait(seconds);
  waiters->unblock(*this);
  return done;
}

void Completion::finish(std::shared_ptr<const Failure> failure) {
  failure_ = std::move(failure);
  state_.store(1, std::memory_order_seq_cst);
}

void Completion::wake() {
  if (num_waiters_.load(std::memory_order_seq_cst) > 0) futex_wake_all(state_);
  if (callback) callback(*this);
}

}  // namespace kadril
