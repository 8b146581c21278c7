// The C interface: who this rank is, and process sets. An operation (capi_operations.cc) goes
// straight to the conductor of its set, without the GIL; what happens once is Python's.
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <vector>

#include "capi_python.h"
#include "capi_state.h"
#include "engine.h"

namespace nb = nanobind;

namespace kadril {

State& state() {
  static State* const forever = new State;  // threads may ask after the end of main()
  return *forever;
}

LastFailure& last_failure() {
  thread_local LastFailure failure;
  return failure;
}

void retract_conductor(const Conductor& conductor) {
  const std::lock_guard lock(state().mutex);
  for (auto& [id, set] : state().sets) {
    if (set.conductor == &conductor) set.conductor = nullptr;
  }
}

namespace {

int fact(size_t index) {
  const std::lock_guard lock(state().mutex);
  return state().engine ? state().facts[index] : fail_not_initialized();
}

void publish_engine(uint64_t engine, std::vector<int> facts, nb::list rows) {
  std::map<int, Set> sets;
  for (nb::handle row : rows) {
    nb::tuple parts = nb::cast<nb::tuple>(row);
    Set set{nb::cast<std::vector<int>>(parts[1]), nullptr};
    if (!nb::handle(parts[2]).is_none()) set.conductor = &conductor_of(parts[2]);
    sets.emplace(nb::cast<int>(parts[0]), std::move(set));
  }
  nb::gil_scoped_release release;
  const std::lock_guard lock(state().mutex);
  if (state().engine != engine) state().unnamed.clear();
  state().engine = engine;
  state().facts = std::move(facts);
  state().sets = std::move(sets);
  // A set that is gone may leave its number to another one, which counts from the start.
  std::erase_if(state().unnamed, [](const auto& each) { return !state().sets.count(each.first); });
}

void retract_engine(uint64_t engine) {
  nb::gil_scoped_release release;
  const std::lock_guard lock(state().mutex);
  if (state().engine != engine) return;  // another one took its place
  state().engine = 0;
  state().facts.clear();
  state().sets.clear();
  state().unnamed.clear();
}

}  // namespace

void bind_capi(nb::module_& module) {
  module.def("publish_engine", &publish_engine);
  module.def("retract_engine", &retract_engine);
}

}  // namespace kadril

using namespace kadril;

extern "C" {

KADRIL_EXPORT int kadril_init(void) { return ask_python("init"); }

KADRIL_EXPORT int kadril_shutdown(void) {
  return kadril_is_initialized() ? ask_python("shutdown") : 0;
}

KADRIL_EXPORT bool kadril_is_initialized(void) {
  const std::lock_guard lock(state().mutex);
  return state().engine != 0;
}

KADRIL_EXPORT const char* kadril_last_error(void) { return last_failure().why.c_str(); }
KADRIL_EXPORT kadril_status kadril_last_status(void) { return last_failure().status; }
KADRIL_EXPORT int kadril_fail(kadril_status status, const char* why) {
  return fail_with(status, why ? why : "");
}

KADRIL_EXPORT int kadril_rank(void) { return fact(0); }
KADRIL_EXPORT int kadril_size(void) { return fact(1); }
KADRIL_EXPORT int kadril_local_rank(void) { return fact(2); }
KADRIL_EXPORT int kadril_local_size(void) { return fact(3); }
KADRIL_EXPORT int kadril_cross_rank(void) { return fact(4); }
KADRIL_EXPORT int kadril_cross_size(void) { return fact(5); }
KADRIL_EXPORT int kadril_is_homogeneous(void) { return fact(6); }

KADRIL_EXPORT int kadril_start_timeline(const char* path, bool mark_cycles) {
  if (!kadril_is_initialized()) return fail_not_initialized();
  if (!path) return fail_with(KADRIL_INVALID, "a timeline needs the path of a file");
  return ask_python("start_timeline", {Argument::of(std::string(path)),
                                       Argument::of(static_cast<long long>(mark_cycles))});
}

KADRIL_EXPORT int kadril_stop_timeline(void) {
  return kadril_is_initialized() ? ask_python("stop_timeline") : fail_not_initialized();
}

KADRIL_EXPORT int kadril_add_process_set(const int* ranks, int num_ranks) {
  if (num_ranks < 0 || (num_ranks > 0 && !ranks)) {
    return fail_with(KADRIL_INVALID, "a process set needs a list of ranks");
  }
  std::vector<int> listed(ranks, ranks + num_ranks);
  std::sort(listed.begin(), listed.end());
  {
    const std::lock_guard lock(state().mutex);
    if (!state().engine) return fail_not_initialized();
    for (const auto& [id, set] : state().sets) {
      if (set.ranks == listed) {
        return fail_with(KADRIL_SET_EXISTS,
                         "process set " + std::to_string(id) + " has these ranks already");
      }
    }
  }
  return ask_python("add_process_set", {Argument::of(std::move(listed))});
}

KADRIL_EXPORT int kadril_remove_process_set(int set) {
  if (with_set(set, [](const Set&) { return 0; }) != 0) return -1;
  return ask_python("remove_process_set", {Argument::of(static_cast<long long>(set))});
}

KADRIL_EXPORT int kadril_process_set_rank(int set) {
  return with_set(set, [&](const Set& found) {
    const int member = member_of(found, state().facts[0]);
    return member >= 0 ? member : fail_not_a_member(set);
  });
}

KADRIL_EXPORT int kadril_process_set_size(int set) {
  return with_set(set, [](const Set& found) { return static_cast<int>(found.ranks.size()); });
}

KADRIL_EXPORT int kadril_process_set_included(int set) {
  return with_set(set,
                  [](const Set& found) { return member_of(found, state().facts[0]) >= 0 ? 1 : 0; });
}

KADRIL_EXPORT int kadril_num_process_sets(void) {
  const std::lock_guard lock(state().mutex);
  return state().engine ? static_cast<int>(state().sets.size()) : fail_not_initialized();
}

KADRIL_EXPORT int kadril_process_set_ids(int* ids) {
  const std::lock_guard lock(state().mutex);
  if (!state().engine) return fail_not_initialized();
  for (const auto& [id, set] : state().sets) *ids++ = id;
  return 0;
}

KADRIL_EXPORT int kadril_process_set_ranks(int set, int* ranks) {
  return with_set(set, [&](const Set& found) {
    std::copy(found.ranks.begin(), found.ranks.end(), ranks);
    return 0;
  });
}

}  // extern "C"
