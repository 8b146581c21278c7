#include "engine/ticket.h"

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

void Audience::enter() {
  size_.fetch_add(1);
  const std::lock_guard lock(mutex_);
  if (!lane_) return;
  lane_->set_urgent(true);
  lane_->bell().ring();
}

void Audience::leave() {
  if (size_.fetch_sub(1) > 1) return;
  const std::lock_guard lock(mutex_);
  if (lane_) lane_->set_urgent(size_.load() > 0);
}

void Audience::dismiss() {
  const std::lock_guard lock(mutex_);
  lane_ = nullptr;
}

void Audience::block(const Ticket& ticket, int num_threads) {
  const std::lock_guard lock(mutex_);
  // A thread that never submits may sleep or not: what comes does not depend on it.
  if (!submitters_->has_this_thread()) return;
  blocked_.push_back({&ticket, num_threads, Clock::now()});
  if (lane_) lane_->bell().ring();
}

void Audience::unblock(const Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  const auto mine = std::find_if(blocked_.begin(), blocked_.end(),
                                 [&](const Blocked& each) { return each.ticket == &ticket; });
  if (mine != blocked_.end()) blocked_.erase(mine);
}

Clock::time_point Audience::stuck_from() const {
  const std::lock_guard lock(mutex_);
  const int num_submitters = submitters_->size();
  if (blocked_.empty() || static_cast<int>(blocked_.size()) != num_submitters) return no_time;
  Clock::time_point last{};
  bool knows_all = true;
  for (const Blocked& each : blocked_) {
    if (each.ticket->is_done()) return no_time;  // it wakes up
    last = std::max(last, each.since);
    knows_all &= each.num_threads <= num_submitters;
  }
  return last + (knows_all ? Clock::duration(short_grace) : Clock::duration(long_grace));
}

const Ticket* Audience::first_blocked_on() const {
  const std::lock_guard lock(mutex_);
  return blocked_.empty() ? nullptr : blocked_.front().ticket;
}

bool Ticket::wait(double seconds) {
  if (is_done()) return true;
  num_waiters_.fetch_add(1, std::memory_order_seq_cst);
  if (audience) audience->enter();
  if (state_.load(std::memory_order_seq_cst) == 0) futex_wait(state_, 0, seconds);
  if (audience) audience->leave();
  num_waiters_.fetch_sub(1, std::memory_order_relaxed);
  return is_done();
}

bool Ticket::wait_blocked(double seconds, int num_threads) {
  if (!audience) return wait(seconds);
  audience->block(*this, num_threads);
  const bool done = wait(seconds);
  audience->unblock(*this);
  return done;
}

void Ticket::finish(std::shared_ptr<const Failure> failure) {
  failure_ = std::move(failure);
  state_.store(1, std::memory_order_seq_cst);
}

void Ticket::wake() {
  if (num_waiters_.load(std::memory_order_seq_cst) > 0) futex_wake_all(state_);
  if (callback) callback(*this);
}

}  // namespace kadril
