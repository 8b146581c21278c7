#include "engine/ticket.h"

#include "engine/lane.h"
#include "futex.h"

namespace kadril {

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

bool Ticket::wait(double seconds) {
  if (is_done()) return true;
  num_waiters_.fetch_add(1, std::memory_order_seq_cst);
  if (audience) audience->enter();
  if (state_.load(std::memory_order_seq_cst) == 0) futex_wait(state_, 0, seconds);
  if (audience) audience->leave();
  num_waiters_.fetch_sub(1, std::memory_order_relaxed);
  return is_done();
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
