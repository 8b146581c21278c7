// State of the C interface: what it knows of the engine of this process. Python's engine tells it
// of every change (`publish_engine`, `retract_engine`), so that C and Python always see the same world.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "engine/conductor.h"
#include "include/kadril.h"

#define KADRIL_EXPORT __attribute__((visibility("default")))

namespace kadril {

struct Set {
  std::vector<int> ranks;
  Conductor* conductor = nullptr;  // null where this rank is not a member
};

// What has no name is counted: the n-th of its kind meets the n-th of the others. Ranks may have
// made different numbers of them when they join, or when a deadlock is ended, so counting begins
// anew then.
struct UnnamedCount {
  uint64_t num_joins = 0;
  uint64_t num_deadlocks = 0;
  std::array<uint64_t, num_verbs> numbers = {};  // by verb, since then
};

struct State {
  std::mutex mutex;         // guards all below; never held while waiting for the GIL
  uint64_t engine = 0;      // which engine was published; 0 for none
  std::vector<int> facts;   // rank, size, local rank and size, cross rank and size, homogeneous
  std::map<int, Set> sets;  // a conductor is retracted before it is gone
  std::map<int, UnnamedCount> unnamed;  // by set
};

State& state();

// Why the last call of this thread failed.
struct LastFailure {
  kadril_status status = KADRIL_OK;
  std::string why;
};

LastFailure& last_failure();

inline int fail_with(kadril_status status, std::string why) {
  last_failure() = {status, std::move(why)};
  return -1;
}

inline int fail_not_initialized() {
  return fail_with(KADRIL_NOT_INITIALIZED, "kadril is not initialized; call kadril_init()");
}

inline int fail_not_a_member(int set) {
  return fail_with(KADRIL_NOT_A_MEMBER, "this rank is not in process set " + std::to_string(set));
}

// Call `use(set)`, with the state locked, where there is such a set.
template <typename Function>
int with_set(int id, Function use) {
  const std::lock_guard lock(state().mutex);
  if (!state().engine) return fail_not_initialized();
  const auto found = state().sets.find(id);
  if (found == state().sets.end()) {
    return fail_with(KADRIL_NO_SUCH_SET, "there is no process set " + std::to_string(id));
  }
  return use(found->second);
}

inline int member_of(const Set& set, int rank) {
  const auto place = std::find(set.ranks.begin(), set.ranks.end(), rank);
  return place == set.ranks.end() ? -1 : static_cast<int>(place - set.ranks.begin());
}

// Before a conductor is gone; without the GIL.
void retract_conductor(const Conductor& conductor);

// For Python: publish_engine and retract_engine.
void bind_capi(nanobind::module_& module);

}  // namespace kadril
