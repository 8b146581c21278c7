#include "engine/completion.h"

#include <algorithm>

#include "channel.h"
#include "futex.h"
#include "recorder.h"

namespace kadril {
namespace {

// Before the others are told that this process is stuck: short where all threads that could submit
// are known to sleep, long where there are some that may yet do so for the first time.
constexpr std::chrono::milliseconds short_grace{500};
constexpr std::chrono::seconds long_grace{10};

}  // namespace

Waiters::Waiters(Lane& lane, std::shared_ptr<const Submitters> submitters)
    : submitters_(std::move(submitters)), place_(lane.place()), lane_(&lane) {}

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

uint64_t Waiters::block(const Completion& completion, int num_threads) {
  const std::lock_guard lock(mutex_);
  const bool is_submitter = submitters_->has_this_thread();
  blocked_.push_back({++num_blocked_, &completion, num_threads, is_submitter, Clock::now()});
  if (lane_) lane_->bell().ring();
  return num_blocked_;
}

void Waiters::unblock(uint64_t number) {
  const std::lock_guard lock(mutex_);
  std::erase_if(blocked_, [&](const Blocked& each) { return each.number == number; });
}

Clock::time_point Waiters::stuck_from() const {
  const std::lock_guard lock(mutex_);
  const int num_submitters = submitters_->size();
  int num_blocked = 0;
  Clock::time_point last{};
  bool knows_all = true;
  for (const Blocked& each : blocked_) {
    // A thread that never submits may sleep or not: what comes does not depend on it.
    if (!each.is_submitter) continue;
    if (each.completion->is_done()) return no_time;  // it wakes up
    ++num_blocked;
    last = std::max(last, each.since);
    knows_all &= each.num_threads <= num_submitters;
  }
  if (num_blocked == 0 || num_blocked != num_submitters) return no_time;
  return last + (knows_all ? Clock::duration(short_grace) : Clock::duration(long_grace));
}

const Completion* Waiters::first_blocked_on() const {
  const std::lock_guard lock(mutex_);
  for (const Blocked& each : blocked_) {
    if (each.is_submitter) return each.completion;
  }
  return nullptr;
}

void Waiters::note_missing(uint64_t activity, const FindMissing& find_missing) {
  const std::lock_guard lock(mutex_);
  for (Blocked& each : blocked_) {
    if (each.activity != activity && find_missing(*each.completion, each.missing)) {
      each.activity = activity;
    }
  }
}

// A request of a step ends early where another member withdraws its own: of that nothing is certain.
//
// While messages are under way, nothing that was asked for by then is ready without another cycle:
// what the cycles before have agreed on is done. So a request that is not done, looked at after that,
// needs this cycle, and every member in it.
std::optional<WaitTarget> Waiters::find_target(const Completion& completion) const {
  WaitTarget target = place_.target;
  const uint64_t exchange = exchange_.load();
  if (completion.stamp.era > 0 || completion.is_done()) return std::nullopt;
  if (exchange > 0) {
    target.kind = WaitKind::cycle;
    target.count = static_cast<uint32_t>(exchange - 1);
    return target;
  }
  const std::lock_guard lock(mutex_);
  const uint64_t activity = activity_.load();
  if (!Activity::is_quiet(activity)) return std::nullopt;
  for (const Blocked& each : blocked_) {
    if (each.completion != &completion || each.activity != activity) continue;
    target.kind = WaitKind::request;
    target.count = Activity::num_cycles(activity);
    target.missing = each.missing;
    return target;
  }
  return std::nullopt;
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

void Completion::finish(std::shared_ptr<const Failure> failure) {
  failure_ = std::move(failure);
  Recorder::end(record);
  state_.store(1, std::memory_order_seq_cst);
}

void Completion::wake() {
  if (num_waiters_.load(std::memory_order_seq_cst) > 0) futex_wake_all(state_);
  if (callback) callback(*this);
}

}  // namespace kadril
