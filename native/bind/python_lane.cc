#include "python_lane.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "futex.h"

namespace nb = nanobind;

namespace kadril {
namespace {

uintptr_t address(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

std::vector<uint64_t> list(std::span<const uint64_t> values) {
  return {values.begin(), values.end()};
}

// Keeps a Python object alive from threads that do not hold the GIL.
std::shared_ptr<void> hold(nb::object object) {
  return {object.release().ptr(), [](void* held) {
            if (!Py_IsInitialized()) return;
            nb::gil_scoped_acquire gil;
            Py_DECREF(static_cast<PyObject*>(held));
          }};
}

template <typename Function>
Error call_python(Function function) {
  nb::gil_scoped_acquire gil;
  try {
    function();
    return nullptr;
  } catch (nb::python_error& error) {
    auto failure = fail(Reason::foreign, error.what());
    failure->cause = hold(nb::borrow(error.value()));
    return failure;
  } catch (const std::exception& error) {
    return fail(Reason::closed, error.what());
  }
}

}  // namespace

PythonLane::PythonLane(nb::object lane, int size, int me)
    : lane_(std::move(lane)), size_(size), me_(me) {}

std::shared_ptr<void> PythonLane::enter() {
  const PyGILState_STATE before = PyGILState_Ensure();
  PyThreadState* state = PyEval_SaveThread();
  entered_.count_down();
  return {state, [before](void* kept) {
            if (!Py_IsInitialized()) return;
            PyEval_RestoreThread(static_cast<PyThreadState*>(kept));
            PyGILState_Release(before);
          }};
}

void PythonLane::LocalBell::ring() {
  num_rings_.fetch_add(1);
  if (is_asleep_.load()) futex_wake_all(num_rings_);
}

void PythonLane::LocalBell::wait(uint32_t seen, double seconds) {
  is_asleep_.store(1);
  if (num_rings_.load() == seen) futex_wait(num_rings_, seen, seconds);
  is_asleep_.store(0);
}

Error PythonLane::allreduce(const Call& call, const void* source, void* target) {
  return call_python([&] {
    lane_.attr("allreduce")(address(source), address(target), call.count,
                            static_cast<int>(call.dtype), static_cast<int>(call.op),
                            call.scale.before, call.scale.after, call.name);
  });
}

Error PythonLane::allreduce_many(const Call& call, std::span<const ReducedArray> arrays) {
  using Array = std::tuple<uintptr_t, uintptr_t, uint64_t>;
  std::vector<Array> given;
  for (const ReducedArray& each : arrays) {
    given.emplace_back(address(each.source), address(each.target), each.count);
  }
  return call_python([&] {
    lane_.attr("allreduce_many")(given, static_cast<int>(call.dtype), static_cast<int>(call.op),
                                 call.scale.before, call.scale.after, call.name);
  });
}

Error PythonLane::broadcast(const Call& call, void* memory) {
  return call_python([&] {
    lane_.attr("broadcast")(address(memory), call.count, static_cast<int>(call.dtype), call.root,
                            call.name);
  });
}

Error PythonLane::allgatherv(const Call& call, const void* source, void* target,
                             std::span<const uint64_t> counts) {
  return call_python([&] {
    lane_.attr("allgatherv")(address(source), address(target), list(counts),
                             static_cast<int>(call.dtype), call.name);
  });
}

Error PythonLane::reduce_scatterv(const Call& call, const void* source, void* target,
                                  std::span<const uint64_t> counts) {
  return call_python([&] {
    lane_.attr("reduce_scatterv")(address(source), address(target), list(counts),
                                  static_cast<int>(call.dtype), static_cast<int>(call.op),
                                  call.scale.before, call.scale.after, call.name);
  });
}

Error PythonLane::alltoallv(const Call& call, const void* source, std::span<const uint64_t> send,
                            void* target, std::span<const uint64_t> recv) {
  return call_python([&] {
    lane_.attr("alltoallv")(address(source), list(send), address(target), list(recv),
                            static_cast<int>(call.dtype), call.name);
  });
}

Error PythonLane::exchange(const Call& call, std::span<const Outgoing> sends,
                           std::span<const Incoming> recvs) {
  using Message = std::tuple<int, uintptr_t, uint64_t>;
  std::vector<Message> outgoing, incoming;
  for (const Outgoing& each : sends) {
    outgoing.emplace_back(each.peer, address(each.memory), each.bytes);
  }
  for (const Incoming& each : recvs) {
    incoming.emplace_back(each.peer, address(each.memory), each.bytes);
  }
  return call_python([&] { lane_.attr("exchange")(outgoing, incoming, call.name); });
}

void* PythonLane::scratch(uint64_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes + bytes / 4);
  return scratch_.data();
}

Error PythonLane::give_up_stalled(const Call& call, int member, double elapsed) {
  auto error = fail(Reason::stalled, call.text(), member);
  error->elapsed = elapsed;
  error->late = {member};
  return error;
}

void PythonLane::close() noexcept {
  if (is_closed_.exchange(true)) return;
  static_cast<void>(call_python([&] { lane_.attr("close")(); }));
}

}  // namespace kadril
