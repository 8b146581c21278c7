#include "engine/submitters.h"

#include <algorithm>
#include <vector>

namespace kadril {

class Submitters::Memberships {
 public:
  ~Memberships() {
    for (const auto& each : joined_) each->size_.fetch_sub(1);
  }

  bool has(const Submitters* submitters) const {
    return std::any_of(joined_.begin(), joined_.end(),
                       [&](const auto& each) { return each.get() == submitters; });
  }

  void add(const std::shared_ptr<Submitters>& submitters) {
    joined_.push_back(submitters);
    submitters->size_.fetch_add(1);
  }

 private:
  std::vector<std::shared_ptr<Submitters>> joined_;  // one, but in tests
};

Submitters::Memberships& Submitters::memberships_of_this_thread() {
  thread_local Memberships memberships;
  return memberships;
}

std::shared_ptr<Submitters> Submitters::of_this_process() {
  static const auto process = std::make_shared<Submitters>();
  return process;
}

void Submitters::add_this_thread(const std::shared_ptr<Submitters>& submitters) {
  Memberships& memberships = memberships_of_this_thread();
  if (!memberships.has(submitters.get())) memberships.add(submitters);
}

bool Submitters::has_this_thread() const { return memberships_of_this_thread().has(this); }

}  // namespace kadril
