#include "vigil.h"

#include "channel.h"

namespace kadril {
namespace {

constexpr double look_again_after = 0.5;
// Between the first looks; two must find the same deadlock.
constexpr double look_for_deadlock_after = 0.15;
constexpr int num_early_looks = 4;

}  // namespace

double Vigil::pause() const {
  return place_ >= 0 && num_looks_ <= num_early_looks ? look_for_deadlock_after : look_again_after;
}

void Vigil::withdraw() {
  waits_.leave(place_);
  place_ = -1;
}

bool Vigil::look(const WaitTarget& target, const Standpoint& standpoint) {
  if (place_ >= 0 && !(target == target_)) withdraw();
  if (place_ < 0) {
    target_ = target;
    num_looks_ = 1;
    last_digest_ = 0;
    place_ = waits_.enter(target, standpoint);
    return false;
  }
  ++num_looks_;
  waits_.confirm(version_, standpoint);
  const Deadlock found = waits_.find();
  const bool is_proven = found.digest != 0 && found.digest == last_digest_;
  last_digest_ = found.digest;
  if (!is_proven) return false;
  waits_.publish(found);
  Channel::end_deadlocked(*arena_, found.boards, rank_);
  return true;
}

}  // namespace kadril
