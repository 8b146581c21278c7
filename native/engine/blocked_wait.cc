#include "engine/blocked_wait.h"

#include <algorithm>

namespace kadril {
namespace {

// Seconds until the next look: soon after the engine was told of this wait, since it has to say what
// is missing; and often enough to follow it through a cycle.
constexpr double first_pause = 0.05;
constexpr double longest_pause = 0.25;

}  // namespace

BlockedWait::BlockedWait(std::shared_ptr<Completion> completion, const std::string& where, int name,
                         double waited)
    : completion_(std::move(completion)),
      text_(completion_->brief.text() + " " + where),
      name_(name) {
  recorded_.tell(text_, waited);
  if (!completion_->waiters) return;
  const LanePlace& place = completion_->waiters->place();
  auto arena = place.arena.lock();
  if (!arena) return;
  vigil_.emplace(std::move(arena), place.rank);
  vigil_->begin();
}

BlockedWait::~BlockedWait() {
  if (number_ > 0) completion_->waiters->unblock(number_);
}

bool BlockedWait::wait(double seconds, const Threads& threads) {
  double pause = seconds;
  if (completion_->waiters && number_ == 0) {
    number_ = completion_->waiters->block(*completion_, threads.num_submitting);
    if (vigil_) pause = std::min(pause, first_pause);
  }
  if (vigil_ && !is_deadlocked_) {
    look(threads);
    pause = std::min({pause, longest_pause, vigil_->pause()});
  }
  const bool done = completion_->wait(pause);
  if (vigil_) vigil_->begin();
  return done;
}

void BlockedWait::look(const Threads& threads) {
  const auto target = completion_->waiters->find_target(*completion_);
  const Submitters& submitters = completion_->waiters->submitters();
  if (!target || submitters.has_callbacks()) {
    vigil_->withdraw();
    return;
  }
  Standpoint standpoint;
  standpoint.num_threads = std::max(threads.num_calling, threads.num_submitting);
  standpoint.num_submitters = submitters.size();
  standpoint.is_submitter = submitters.has_this_thread();
  standpoint.name = name_;
  standpoint.text = text_;
  // The engine is told by its channel, and ends the request.
  is_deadlocked_ = vigil_->look(*target, standpoint);
}

}  // namespace kadril
