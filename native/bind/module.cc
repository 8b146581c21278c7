// The Python module: segments, channels and their collectives; the files beside this one bind the
// rest. Memory comes as addresses, what went wrong goes back as a Failure (None means success), and
// the GIL is released while a call may wait or copy.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <tuple>
#include <variant>

#include "arena.h"
#include "array.h"
#include "capi_state.h"
#include "channel.h"
#include "collectives.h"
#include "engine.h"
#include "engine/submitters.h"
#include "fault.h"
#include "fork_mark.h"
#include "kernels.h"
#include "moves.h"
#include "outboxes.h"
#include "recording.h"
#include "room.h"

namespace nb = nanobind;

namespace kadril {

nb::object outcome(Error error) {
  if (!error) return nb::none();
  if (error->reason == Reason::interrupted) throw nb::python_error();
  return nb::cast(std::move(*error));
}

namespace {

using Address = uintptr_t;
using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

void* pointer(Address address) { return reinterpret_cast<void*>(address); }

class PythonHooks final : public Hooks {
 public:
  PythonHooks(nb::object on_late, nb::object describe)
      : on_late_(std::move(on_late)), describe_(std::move(describe)) {}

  bool interrupted() noexcept override {
    nb::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
  }

  void late(const Call& call, const std::vector<int>& members, bool stopped,
            double elapsed) noexcept override {
    nb::gil_scoped_acquire gil;
    try {
      if (!on_late_.is_none()) on_late_(call.text(), members, stopped, elapsed);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("a report of late ranks");
    } catch (...) {  // a report must never hurt the call it reports on
    }
  }

  bool describe(const Call& call, Standpoint& standpoint) noexcept override {
    nb::gil_scoped_acquire gil;
    try {
      if (describe_.is_none()) return false;
      const auto described = nb::cast<std::tuple<int, int, std::string>>(describe_(call.text()));
      const auto submitters = Submitters::of_this_process();
      const int num_threads = submitters->has_callbacks() ? 0 : std::get<0>(described);
      standpoint = {num_threads, std::get<1>(described), std::get<2>(described), submitters->size(),
                    submitters->has_this_thread()};
      return true;
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("a description of a wait");
    } catch (...) {  // then nothing is said, and nothing proven
    }
    return false;
  }

 private:
  nb::object on_late_;
  nb::object describe_;
};

// A channel with the hooks it calls.
struct PythonChannel {
  PythonHooks hooks;
  Channel channel;

  PythonChannel(std::shared_ptr<Arena> arena, std::shared_ptr<Liveness> liveness, uint64_t board,
                std::vector<int> ranks, int me, bool owns_board, Waiting waiting,
                nb::object on_late, nb::object describe)
      : hooks(std::move(on_late), std::move(describe)),
        channel(std::move(arena), std::move(liveness), board, std::move(ranks), me, owns_board,
                waiting, &hooks) {}

  ~PythonChannel() {
    nb::gil_scoped_release release;
    channel.close();
  }
};

// One process's view of the segment: the mapping and the watch on the peers.
struct Segment {
  std::shared_ptr<Arena> arena;
  std::shared_ptr<Liveness> liveness;
};

using SegmentOrFailure = std::variant<Segment, Failure>;

SegmentOrFailure create_segment(int num_ranks, uint64_t capacity, uint64_t generation, bool named) {
  nb::gil_scoped_release release;
  Segment segment;
  ArenaOptions options{num_ranks, capacity, Channel::board_bytes(num_ranks), generation, named};
  if (auto error = Arena::create(options, segment.arena)) return std::move(*error);
  Channel::format(*segment.arena, segment.arena->control_offset(), num_ranks);
  return segment;
}

SegmentOrFailure attach_segment(int descriptor, uint64_t generation) {
  nb::gil_scoped_release release;
  Segment segment;
  if (auto error = Arena::attach(descriptor, generation, segment.arena)) return std::move(*error);
  return segment;
}

nb::object watch(Segment& segment, std::vector<int> pidfds) {
  segment.liveness = std::make_shared<Liveness>(std::move(pidfds));
  return outcome(segment.liveness->start());
}

// Zeroed memory of the arena as an array, given back when the last view of it dies.
nb::object allocate(Segment& segment, int rank, uint64_t bytes) {
  struct Block {
    std::shared_ptr<Arena> arena;
    int rank;
    uint64_t offset, bytes;
    ForkMark fork_mark;
  };
  uint64_t offset = no_offset;
  Error error;
  {
    nb::gil_scoped_release release;
    error = segment.arena->allocate(rank, bytes, offset);
  }
  if (error) return outcome(std::move(error));
  auto block = std::make_unique<Block>(Block{segment.arena, rank, offset, bytes, {}});
  nb::capsule owner(block.get(), [](void* owned) noexcept {
    auto block = static_cast<Block*>(owned);
    if (!block->fork_mark.is_in_child())
      block->arena->release(block->rank, block->offset, block->bytes);
    delete block;
  });
  auto memory = block.release()->arena->at(offset);
  return nb::cast(Bytes(reinterpret_cast<uint8_t*>(memory), {bytes}, owner));
}

PythonChannel* open_channel(const Segment& segment, nb::object board_or_none,
                            std::vector<int> ranks, int me, bool owns_board, double patience,
                            double warn_after, int num_spins, int num_yields, nb::object on_late,
                            nb::object describe) {
  const uint64_t board =
      board_or_none.is_none() ? segment.arena->control_offset() : nb::cast<uint64_t>(board_or_none);
  return new PythonChannel(segment.arena, segment.liveness, board, std::move(ranks), me, owns_board,
                           Waiting{patience, warn_after, num_spins, num_yields}, std::move(on_late),
                           std::move(describe));
}

nb::object allocate_board(Segment& segment, int rank, int num_members) {
  uint64_t board = no_offset;
  if (auto error = segment.arena->allocate_board(rank, Channel::board_bytes(num_members), board)) {
    return outcome(std::move(error));
  }
  Channel::format(*segment.arena, board, num_members);
  return nb::cast(board);
}

Call make_call(int dtype, const char* name) {
  Call call;
  call.dtype = static_cast<DType>(dtype);
  call.set_name(name);
  return call;
}

void set_shape(Call& call, nb::handle shape) {
  std::vector<uint64_t> dims;
  for (nb::handle dim : nb::borrow<nb::tuple>(shape)) dims.push_back(nb::cast<uint64_t>(dim));
  call.set_shape(dims);
  call.count = 1;
  for (const uint64_t dim : dims) call.count *= dim;
}

template <typename Collective>
nb::object run(Collective collective) {
  Error error;
  {
    nb::gil_scoped_release release;
    error = collective();
  }
  return outcome(std::move(error));
}

nb::object py_allreduce(PythonChannel& self, Address source, Address target, nb::handle shape,
                        int dtype, int op, double prescale, double postscale, const char* name) {
  Call call = make_call(dtype, name);
  set_shape(call, shape);
  call.op = static_cast<Op>(op);
  call.scale = {prescale, postscale};
  return run([&] { return allreduce(self.channel, call, pointer(source), pointer(target)); });
}

bool find_op(const char* name, Op& op) {
  for (int code = 0; code < num_ops; ++code) {
    if (std::strcmp(name, op_names[code]) != 0) continue;
    op = static_cast<Op>(code);
    return true;
  }
  return false;
}

// In place on a tensor, in one call from Python; NotImplemented where that needs a closer look.
nb::object py_allreduce_tensor(PythonChannel& self, nb::handle tensor, const char* op,
                               double prescale, double postscale, const char* name) {
  Call call;
  void* memory = look(tensor, call);
  if (!memory || !find_op(op, call.op) || !supports(call.dtype, call.op)) {
    return nb::borrow(Py_NotImplemented);
  }
  call.set_name(name);
  call.scale = {prescale, postscale};
  return run([&] { return allreduce(self.channel, call, memory, memory); });
}

// The sum of a tensor over all members in another one like it, and whether any member wishes:
// a bool, or a Failure; NotImplemented where that needs a closer look.
nb::object py_sum_tensor(PythonChannel& self, nb::handle source, nb::handle target, bool wish,
                         const char* name) {
  Call call, result;
  void* from = look(source, call);
  void* to = look(target, result);
  if (!from || !to || call.dtype != result.dtype || call.count != result.count ||
      !supports(call.dtype, Op::sum)) {
    return nb::borrow(Py_NotImplemented);
  }
  call.set_name(name);
  call.op = Op::sum;
  call.wish = wish;
  bool any_wish = false;
  nb::object failure = run([&] { return allreduce(self.channel, call, from, to, &any_wish); });
  return failure.is_none() ? nb::cast(any_wish) : failure;
}

nb::object py_reduce(PythonChannel& self, Address source, Address target, nb::handle shape,
                     int dtype, int op, int root, double prescale, double postscale,
                     const char* name) {
  Call call = make_call(dtype, name);
  set_shape(call, shape);
  call.op = static_cast<Op>(op);
  call.root = root;
  call.scale = {prescale, postscale};
  return run([&] { return reduce(self.channel, call, pointer(source), pointer(target)); });
}

nb::object py_broadcast(PythonChannel& self, Address memory, nb::handle shape, int dtype, int root,
                        const char* name) {
  Call call = make_call(dtype, name);
  set_shape(call, shape);
  call.root = root;
  return run([&] { return broadcast(self.channel, call, pointer(memory)); });
}

nb::object py_allgatherv(PythonChannel& self, Address source, Address target,
                         const std::vector<uint64_t>& counts, int dtype, const char* name) {
  const Call call = make_call(dtype, name);
  return run(
      [&] { return allgatherv(self.channel, call, pointer(source), pointer(target), counts); });
}

// A few bytes of each member, as many of all: a list of bytes, or a Failure.
nb::object py_allgather_bytes(PythonChannel& self, nb::bytes data, const char* name) {
  const Call call = make_call(static_cast<int>(DType::uint8), name);
  const size_t length = data.size();
  const auto size = static_cast<size_t>(self.channel.num_members());
  const std::vector<uint64_t> counts(size, length);
  std::vector<char> everyones(size * length);
  nb::object failure =
      run([&] { return allgatherv(self.channel, call, data.c_str(), everyones.data(), counts); });
  if (!failure.is_none()) return failure;
  nb::list found;
  for (size_t member = 0; member < size; ++member) {
    found.append(nb::bytes(everyones.data() + member * length, length));
  }
  return found;
}

nb::object py_reduce_scatterv(PythonChannel& self, Address source, Address target,
                              const std::vector<uint64_t>& counts, int dtype, int op,
                              double prescale, double postscale, const char* name) {
  Call call = make_call(dtype, name);
  call.op = static_cast<Op>(op);
  call.scale = {prescale, postscale};
  return run([&] {
    return reduce_scatterv(self.channel, call, pointer(source), pointer(target), counts);
  });
}

nb::object py_alltoallv(PythonChannel& self, Address source,
                        const std::vector<uint64_t>& send_counts, Address target,
                        const std::vector<uint64_t>& recv_counts, int dtype, const char* name) {
  const Call call = make_call(dtype, name);
  return run([&] {
    return alltoallv(self.channel, call, pointer(source), send_counts, pointer(target),
                     recv_counts);
  });
}

using Message = std::tuple<int, int, Address, uint64_t>;  // peer, dtype, address, bytes

nb::object py_exchange(PythonChannel& self, const std::vector<Message>& sends,
                       const std::vector<Message>& recvs, const char* name) {
  const Call call = make_call(static_cast<int>(DType::uint8), name);
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  for (const auto& [peer, dtype, memory, bytes] : sends) {
    outgoing.push_back({peer, static_cast<DType>(dtype), pointer(memory), bytes});
  }
  for (const auto& [peer, dtype, memory, bytes] : recvs) {
    incoming.push_back({peer, static_cast<DType>(dtype), pointer(memory), bytes});
  }
  return run([&] { return exchange(self.channel, call, outgoing, incoming); });
}

nb::object py_barrier(PythonChannel& self, const char* name) {
  const Call call = make_call(static_cast<int>(DType::uint8), name);
  return run([&] { return barrier(self.channel, call); });
}

bool reduce_local(const std::vector<Address>& targets, const std::vector<Address>& sources,
                  uint64_t count, int dtype, int op, double prescale, double postscale) {
  if (sources.empty() || targets.empty()) throw nb::value_error("needs a source and a target");
  if (!supports(static_cast<DType>(dtype), static_cast<Op>(op))) return false;
  std::vector<void*> to;
  std::vector<const void*> from;
  for (const Address target : targets) to.push_back(pointer(target));
  for (const Address source : sources) from.push_back(pointer(source));
  nb::gil_scoped_release release;
  reduce_into(to.data(), static_cast<int>(to.size()), from.data(), static_cast<int>(from.size()),
              count, static_cast<DType>(dtype), static_cast<Op>(op), {prescale, postscale});
  return true;
}

void copy_memory(Address target, Address source, uint64_t bytes) {
  nb::gil_scoped_release release;
  std::memcpy(pointer(target), pointer(source), bytes);
}

void set_fault(const std::string& text) {
  const std::string problem = fault::arm(text);
  if (!problem.empty()) throw nb::value_error(("KADRIL_FAULT: " + problem).c_str());
}

const char* name_of(Reason reason) {
  static constexpr const char* names[] = {
      "mismatch", "peer_lost", "peer_left",   "stalled", "revoked", "interrupted", "forked",
      "closed",   "no_room",   "unsupported", "invalid", "foreign", "deadlock",    "cancelled"};
  return names[static_cast<int>(reason)];
}

void bind_failure(nb::module_& module) {
  nb::class_<Failure>(module, "Failure")
      .def_prop_ro("reason", [](const Failure& self) { return name_of(self.reason); })
      .def_ro("member", &Failure::member)
      .def_ro("stopped", &Failure::stopped)
      .def_ro("elapsed", &Failure::elapsed)
      .def_ro("needed", &Failure::needed)
      .def_ro("available", &Failure::available)
      .def_ro("detail", &Failure::detail)
      .def_ro("late", &Failure::late)
      .def_ro("calls", &Failure::calls)
      .def_ro("num_common", &Failure::num_common)
      .def_ro("last_common", &Failure::last_common)
      .def_prop_ro("cause", [](const Failure& self) {
        return self.cause ? nb::borrow(static_cast<PyObject*>(self.cause.get())) : nb::none();
      });
}

void bind_channel(nb::module_& module) {
  nb::class_<PythonChannel>(module, "Channel")
      .def("allreduce", &py_allreduce, nb::arg("source"), nb::arg("target"), nb::kw_only(),
           nb::arg("shape"), nb::arg("dtype"), nb::arg("op"), nb::arg("prescale"),
           nb::arg("postscale"), nb::arg("name"))
      .def("allreduce_tensor", &py_allreduce_tensor)
      .def("sum_tensor", &py_sum_tensor)
      .def("reduce", &py_reduce, nb::arg("source"), nb::arg("target"), nb::kw_only(),
           nb::arg("shape"), nb::arg("dtype"), nb::arg("op"), nb::arg("root"), nb::arg("prescale"),
           nb::arg("postscale"), nb::arg("name"))
      .def("broadcast", &py_broadcast)
      .def("allgatherv", &py_allgatherv)
      .def("allgather_bytes", &py_allgather_bytes)
      .def("reduce_scatterv", &py_reduce_scatterv, nb::arg("source"), nb::arg("target"),
           nb::kw_only(), nb::arg("counts"), nb::arg("dtype"), nb::arg("op"), nb::arg("prescale"),
           nb::arg("postscale"), nb::arg("name"))
      .def("alltoallv", &py_alltoallv)
      .def("exchange", &py_exchange)
      .def("barrier", &py_barrier)
      .def("revoke", [](PythonChannel& self) { self.channel.revoke(); })
      .def("close", [](PythonChannel& self) {
        nb::gil_scoped_release release;
        self.channel.close();
      });
}

void bind_segment(nb::module_& module) {
  nb::class_<Segment>(module, "Segment")
      .def_static("create", &create_segment)
      .def_static("attach", &attach_segment)
      .def("watch", &watch)
      .def("allocate", &allocate)
      .def("allocate_board", &allocate_board)
      .def("open_channel", &open_channel, nb::arg("board").none(), nb::arg("ranks"), nb::arg("me"),
           nb::arg("owns_board"), nb::arg("patience"), nb::arg("warn_after"), nb::arg("num_spins"),
           nb::arg("num_yields"), nb::arg("on_late").none(), nb::arg("describe").none(),
           nb::rv_policy::take_ownership)
      .def("offset_of",
           [](const Segment& self, Address address, uint64_t bytes) -> nb::object {
             const uint64_t offset = self.arena->offset_of(pointer(address), bytes);
             return offset == no_offset ? nb::none() : nb::cast(offset);
           })
      .def("view",
           [](nb::object self, uint64_t offset, uint64_t bytes) {
             const auto& arena = nb::cast<const Segment&>(self).arena;
             return nb::cast(Bytes(reinterpret_cast<uint8_t*>(arena->at(offset)), {bytes}, self),
                             nb::rv_policy::reference);
           })
      .def("contains",
           [](const Segment& self, Address address, uint64_t bytes) {
             return self.arena->offset_of(pointer(address), bytes) != no_offset;
           })
      .def_prop_ro("descriptor", [](const Segment& self) { return self.arena->descriptor(); })
      .def_prop_ro("num_allocated_bytes",
                   [](const Segment& self) { return self.arena->num_allocated_bytes(); });
}

}  // namespace

Channel& channel_of(nb::handle channel) { return nb::cast<PythonChannel&>(channel).channel; }

nb::object failure_object(const Failure& failure) { return nb::cast(Failure(failure)); }

}  // namespace kadril

NB_MODULE(_native, module) {
  using namespace kadril;
  // torch keeps hooks, and what they hold, beyond the end of the interpreter.
  nb::set_leak_warnings(false);
  bind_failure(module);
  bind_channel(module);
  bind_segment(module);
  bind_engine(module);
  bind_capi(module);
  bind_moves(module);
  bind_outbox(module);
  bind_recorder(module);
  module.def("reduce_local", &reduce_local);
  module.def("supports", [](int dtype, int op) {
    return dtype >= 0 && dtype < num_dtypes && op >= 0 && op < num_ops &&
           supports(static_cast<DType>(dtype), static_cast<Op>(op));
  });
  module.def("register_tensor", &register_tensor);
  module.def("copy_memory", &copy_memory);
  module.def("set_fault", &set_fault);
  module.def("fault_points", &fault::points);
  module.def("total_memory", &total_memory);
  module.attr("DTYPE_NAMES") =
      nb::cast(std::vector<std::string>(dtype_names, dtype_names + num_dtypes));
  module.attr("DTYPE_SIZES") = nb::cast(std::vector<size_t>(dtype_sizes, dtype_sizes + num_dtypes));
  module.attr("OP_NAMES") = nb::cast(std::vector<std::string>(op_names, op_names + num_ops));
}
