#include "engine.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <memory>
#include <string>
#include <unordered_set>

#include "array.h"
#include "capi_state.h"
#include "engine/adasum.h"
#include "engine/blocked_wait.h"
#include "engine/conductor.h"
#include "engine/shm_lane.h"
#include "python_lane.h"

namespace nb = nanobind;

namespace kadril {
namespace {

using Address = uintptr_t;
using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

// A conductor, with what it needs to stay alive.
class PythonConductor {
 public:
  PythonConductor(std::unique_ptr<Lane> lane, ConductorOptions options, nb::object report,
                  nb::object owner)
      : report_(std::move(report)), owner_(std::move(owner)) {
    conductor = std::make_unique<Conductor>(std::move(lane), std::move(options),
                                            [this](const std::string& text) { tell(text); });
  }

  ~PythonConductor() {
    nb::gil_scoped_release release;
    retract_conductor(*conductor);
    conductor->close();
  }

  // The others are told of a name only once, so where it is used is looked up only once.
  bool is_first_use(std::string key) {
    constexpr size_t max_keys = 1 << 17;
    if (keys_.size() > max_keys) keys_.clear();
    return keys_.insert(std::move(key)).second;
  }

  std::unique_ptr<Conductor> conductor;

 private:
  void tell(const std::string& text) {
    nb::gil_scoped_acquire gil;
    try {
      report_(text);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("a report of late ranks");
    }
  }

  nb::object report_;
  nb::object owner_;
  std::unordered_set<std::string> keys_;  // guarded by the GIL
};

ConductorOptions make_options(double patience, double stall_warning, uint64_t fusion_threshold,
                              size_t cache_capacity, std::vector<int> world_ranks) {
  ConductorOptions options;
  options.patience = patience;
  options.stall_warning = stall_warning;
  options.fusion.threshold = fusion_threshold;
  options.cache_capacity = cache_capacity;
  options.world_ranks = std::move(world_ranks);
  return options;
}

PythonConductor* conduct_channel(nb::object channel, int arena_rank, double patience,
                                 double stall_warning, uint64_t fusion_threshold,
                                 size_t cache_capacity, std::vector<int> world_ranks,
                                 nb::object report) {
  auto lane = std::make_unique<ShmLane>(channel_of(channel), arena_rank);
  return new PythonConductor(std::move(lane),
                             make_options(patience, stall_warning, fusion_threshold, cache_capacity,
                                          std::move(world_ranks)),
                             std::move(report), std::move(channel));
}

PythonConductor* conduct_transport(nb::object transport, int size, int me, double patience,
                                   double stall_warning, uint64_t fusion_threshold,
                                   size_t cache_capacity, std::vector<int> world_ranks,
                                   nb::object report) {
  auto lane = std::make_unique<PythonLane>(transport, size, me);
  const PythonLane& engine_lane = *lane;
  auto* made = new PythonConductor(std::move(lane),
                                   make_options(patience, stall_warning, fusion_threshold,
                                                cache_capacity, std::move(world_ranks)),
                                   std::move(report), std::move(transport));
  nb::gil_scoped_release release;
  engine_lane.await_entry();
  return made;
}

// A tensor that can be looked at, or (address, dtype code, shape). False for one that needs a
// closer look.
bool read_piece(nb::handle tensor, Piece* piece, void*& memory) {
  if (PyTuple_CheckExact(tensor.ptr())) {
    nb::tuple parts = nb::borrow<nb::tuple>(tensor);
    memory = reinterpret_cast<void*>(nb::cast<Address>(parts[0]));
    if (piece) {
      piece->dtype = static_cast<DType>(nb::cast<int>(parts[1]));
      for (nb::handle dim : nb::borrow<nb::tuple>(parts[2])) {
        piece->dims.push_back(nb::cast<uint64_t>(dim));
      }
    }
    return true;
  }
  Call seen;
  memory = look(tensor, seen);
  if (!memory) return false;
  if (piece) {
    piece->dtype = seen.dtype;
    piece->dims.assign(seen.dims, seen.dims + seen.num_dims);
  }
  return true;
}

// Modules of kadril and torch themselves, whose frames are nobody's call site.
std::vector<std::string> package_paths;

bool is_own_frame(std::string_view file) {
  for (const std::string& path : package_paths) {
    if (file.starts_with(path)) return true;
  }
  return false;
}

// "train.py:33": the innermost frame of the caller's own.
std::string call_site() {
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  std::string site;
  while (frame) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    Py_ssize_t length = 0;
    const char* file = PyUnicode_AsUTF8AndSize(code->co_filename, &length);
    if (file && !is_own_frame({file, static_cast<size_t>(length)})) {
      site = file + (":" + std::to_string(PyFrame_GetLineNumber(frame)));
    }
    Py_DECREF(code);
    PyFrameObject* back = site.empty() ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = back;
  }
  PyErr_Clear();
  return site;
}

// What a request asks for, whatever its name and its tensors.
struct Operation {
  Verb verb;
  Reduction reduction;
  int root;
  Scale scale;
  std::vector<uint64_t> splits;
  std::string note;
  bool is_group;
};

void make_operation(Operation* self, int verb, int reduction, int root, double prescale,
                    double postscale, std::vector<uint64_t> splits, std::string note,
                    bool is_group) {
  new (self) Operation{static_cast<Verb>(verb),
                       static_cast<Reduction>(reduction),
                       root,
                       {prescale, postscale},
                       std::move(splits),
                       std::move(note),
                       is_group};
}

// A Completion; a Failure; or NotImplemented where a tensor needs a closer look.
nb::object submit(PythonConductor& self, const Operation& operation, nb::handle tensors,
                  nb::handle targets, std::string name, bool is_named) {
  auto request = std::make_unique<Request>();
  Descriptor& descriptor = request->descriptor;
  descriptor.verb = operation.verb;
  descriptor.reduction = operation.reduction;
  descriptor.root = operation.root;
  descriptor.scale = operation.scale;
  descriptor.name = std::move(name);
  descriptor.note = operation.note;
  descriptor.is_named = is_named;
  descriptor.is_group = operation.is_group;
  descriptor.splits = operation.splits;

  const bool is_list = PyList_CheckExact(tensors.ptr());
  const Py_ssize_t count = is_list ? PyList_GET_SIZE(tensors.ptr()) : 1;
  descriptor.pieces.resize(static_cast<size_t>(count));
  request->memory.resize(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    Piece& piece = descriptor.pieces[static_cast<size_t>(i)];
    Memory& memory = request->memory[static_cast<size_t>(i)];
    void* source = nullptr;
    if (!read_piece(is_list ? PyList_GET_ITEM(tensors.ptr(), i) : tensors.ptr(), &piece, source)) {
      return nb::borrow(Py_NotImplemented);
    }
    memory.source = memory.target = source;
    if (!targets.is_none() &&
        !read_piece(is_list ? PyList_GET_ITEM(targets.ptr(), i) : targets.ptr(), nullptr,
                    memory.target)) {
      return nb::borrow(Py_NotImplemented);
    }
    if (!is_supported(descriptor, piece)) {
      return failure_object(*fail(Reason::unsupported, descriptor.text()));
    }
  }
  if (!is_named || self.is_first_use(descriptor.key())) descriptor.site = call_site();
  request->completion = std::make_shared<Completion>();
  auto completion = request->completion;
  if (auto error = self.conductor->submit(std::move(request))) return failure_object(*error);
  return nb::cast(completion);
}

// The results that the engine made: (bytes, dtype code, shape) each.
nb::list take_outputs(Completion& completion) {
  nb::list outputs;
  for (Output& output : completion.outputs) {
    auto owned = new std::shared_ptr<std::byte>(output.memory);
    nb::capsule owner(
        owned, [](void* held) noexcept { delete static_cast<std::shared_ptr<std::byte>*>(held); });
    nb::object bytes = nb::cast(
        Bytes(reinterpret_cast<uint8_t*>(output.memory.get()), {output.piece.bytes()}, owner));
    nb::list dims;
    for (const uint64_t dim : output.piece.dims) dims.append(dim);
    outputs.append(nb::make_tuple(bytes, static_cast<int>(output.piece.dtype), dims));
  }
  completion.outputs.clear();
  return outputs;
}

nb::object completion_failure(const Completion& completion) {
  return completion.failure() ? failure_object(*completion.failure()) : nb::none();
}

// 0: not yet; 1: done; 2: failed; 3: in a child made by fork, where it never will be.
int wait(Completion& completion, double seconds) {
  if (!completion.is_done()) {
    if (completion.is_orphaned()) return 3;
    nb::gil_scoped_release release;
    if (!completion.wait(seconds)) return 0;
  }
  return completion.failure() ? 2 : 1;
}

// A blocked wait from `block` to `end`, which the thread that waits calls itself.
struct PythonWait {
  std::unique_ptr<BlockedWait> wait;
};

PythonWait* block(std::shared_ptr<Completion> completion, const std::string& where, int name,
                  double waited) {
  return new PythonWait{std::make_unique<BlockedWait>(std::move(completion), where, name, waited)};
}

// As `wait` of a completion.
int wait_blocked(PythonWait& self, double seconds, int num_submitting, int num_calling) {
  const Completion& completion = self.wait->completion();
  if (!completion.is_done()) {
    if (completion.is_orphaned()) return 3;
    nb::gil_scoped_release release;
    if (!self.wait->wait(seconds, {num_submitting, num_calling})) return 0;
  }
  return completion.failure() ? 2 : 1;
}

// Memory of somebody who keeps it alive, as an array.
nb::object memory_at(Address address, uint64_t num_bytes) {
  const auto memory = reinterpret_cast<uint8_t*>(address);
  return nb::cast(Bytes(memory, {num_bytes}, nb::handle()), nb::rv_policy::reference);
}

}  // namespace

bool is_supported(const Descriptor& descriptor, const Piece& piece) {
  if (descriptor.verb != Verb::allreduce && descriptor.verb != Verb::reducescatter) return true;
  // The mean of flags is no flag.
  if (descriptor.reduction == Reduction::average && piece.dtype == DType::boolean) return false;
  if (descriptor.reduction == Reduction::adasum) return supports_adasum(piece.dtype);
  return supports(piece.dtype, op_of(descriptor.reduction));
}

Conductor& conductor_of(nb::handle conductor) {
  return *nb::cast<PythonConductor&>(conductor).conductor;
}

void bind_engine(nb::module_& module) {
  nb::class_<Timeline>(module, "Timeline")
      .def(nb::init<std::string, int, int64_t>(), nb::arg("path"), nb::arg("rank"),
           nb::arg("origin_ns"))
      .def("write", &Timeline::write);
  nb::class_<Completion>(module, "Completion")
      .def_prop_ro("is_done", &Completion::is_done)
      .def("wait", &wait)
      .def("block", &block, nb::rv_policy::take_ownership, nb::arg("where"), nb::arg("name"),
           nb::arg("waited"))
      .def_prop_ro("failure", &completion_failure)
      .def("take_outputs", &take_outputs)
      .def_ro("received_splits", &Completion::received_splits)
      .def_ro("last_joined", &Completion::last_joined);
  nb::class_<PythonWait>(module, "BlockedWait")
      .def("wait", &wait_blocked, nb::arg("seconds"), nb::arg("num_submitting"),
           nb::arg("num_calling"))
      .def("end", [](PythonWait& self) { self.wait.reset(); });
  nb::class_<Operation>(module, "Operation")
      .def("__init__", &make_operation, nb::arg("verb"), nb::kw_only(),
           nb::arg("reduction") = static_cast<int>(Reduction::sum), nb::arg("root") = -1,
           nb::arg("prescale") = 1.0, nb::arg("postscale") = 1.0,
           nb::arg("splits") = std::vector<uint64_t>{}, nb::arg("note") = "",
           nb::arg("is_group") = false);
  nb::class_<PythonConductor>(module, "Conductor")
      .def_static("over_channel", &conduct_channel, nb::rv_policy::take_ownership)
      .def_static("over_transport", &conduct_transport, nb::rv_policy::take_ownership)
      .def("submit", &submit, nb::arg("operation"), nb::arg("tensors"), nb::arg("targets").none(),
           nb::arg("name"), nb::arg("is_named") = true)
      .def(
          "set_timeline",
          [](PythonConductor& self, std::shared_ptr<Timeline> timeline, bool mark_cycles) {
            self.conductor->set_timeline(std::move(timeline), mark_cycles);
          },
          nb::arg("timeline").none(), nb::arg("mark_cycles"))
      .def("report_late",
           [](PythonConductor& self, const std::vector<int>& members, double elapsed) {
             self.conductor->report_late(members, false, elapsed);
           })
      .def_prop_ro("num_cycles",
                   [](const PythonConductor& self) { return self.conductor->num_cycles(); })
      .def_prop_ro("num_in_flight",
                   [](PythonConductor& self) { return self.conductor->num_in_flight(); })
      .def_prop_ro("num_deadlocks",
                   [](const PythonConductor& self) { return self.conductor->num_deadlocks(); })
      .def("close", [](PythonConductor& self) {
        nb::gil_scoped_release release;
        self.conductor->close();
      });
  module.def("memory_at", &memory_at);
  module.def("set_package_paths",
             [](std::vector<std::string> paths) { package_paths = std::move(paths); });
}

}  // namespace kadril
