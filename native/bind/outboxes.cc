#include "outboxes.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "array.h"
#include "outbox.h"

namespace nb = nanobind;

namespace kadril {
namespace {

using Address = uintptr_t;
using PartNumbers = std::tuple<uint64_t, uint64_t, uint64_t>;
using BlockNumbers = std::tuple<std::vector<PartNumbers>, uint64_t, uint64_t, uint64_t>;

class Blocks {
 public:
  explicit Blocks(const std::vector<BlockNumbers>& blocks) {
    for (const auto& [parts, source, target, count] : blocks) {
      Block& block = blocks_.emplace_back(Block{{}, source, target, count});
      for (const auto& [position, offset, bytes] : parts)
        block.parts.push_back({position, offset, bytes});
    }
  }

  size_t size() const { return blocks_.size(); }

  std::span<const Block> some(size_t first, size_t count) const {
    if (first > blocks_.size() || count > blocks_.size() - first) {
      throw nb::index_error("there are not so many blocks");
    }
    return std::span(blocks_).subspan(first, count);
  }

 private:
  std::vector<Block> blocks_;
};

// Keeps the memory alive.
class PythonOutbox {
 public:
  PythonOutbox(nb::object memory, uint64_t slot_bytes, int rank, int size)
      : memory_(std::move(memory)),
        box(start_of(memory_, slot_bytes, size), slot_bytes, rank, size) {}

 private:
  static std::byte* start_of(nb::handle memory, uint64_t slot_bytes, int size) {
    const Array array = array_of(memory);
    const bool fits = size > 1 && array.dtype == DType::uint8 && array.shape.size() == 1 &&
                      array.strides[0] == 1 &&
                      static_cast<uint64_t>(array.shape[0]) >= Outbox::num_bytes(slot_bytes, size);
    if (!fits) throw nb::value_error("an outbox needs two ranks, and all of its bytes");
    return array.memory;
  }

  nb::object memory_;

 public:
  Outbox box;
};

size_t post(PythonOutbox& self, const Blocks& blocks, size_t first, size_t most, Address memory) {
  const auto some = blocks.some(first, std::min(most, blocks.size() - first));
  nb::gil_scoped_release release;
  return self.box.post(some, reinterpret_cast<const std::byte*>(memory));
}

void add_up(PythonOutbox& self, const Blocks& blocks, size_t first, size_t count, Address own,
            Address result, const std::vector<int64_t>& posted, int dtype, double before,
            double after) {
  const auto some = blocks.some(first, count);
  const auto kind = static_cast<DType>(dtype);
  if (!supports(kind, Op::sum)) throw nb::value_error("sums of this dtype are not known");
  nb::gil_scoped_release release;
  self.box.add_up(some, reinterpret_cast<const std::byte*>(own),
                  reinterpret_cast<std::byte*>(result), posted, kind, {before, after});
}

}  // namespace

void bind_outbox(nb::module_& module) {
  nb::class_<Blocks>(module, "Blocks")
      .def(nb::init<const std::vector<BlockNumbers>&>())
      .def("__len__", &Blocks::size);
  nb::class_<PythonOutbox>(module, "Outbox")
      .def(nb::init<nb::object, uint64_t, int, int>())
      .def_static("num_bytes", &Outbox::num_bytes)
      .def_prop_ro("num_posted", [](const PythonOutbox& self) { return self.box.num_posted(); })
      .def_prop_ro("num_taken", [](const PythonOutbox& self) { return self.box.num_taken(); })
      .def_prop_ro("bytes_for_one",
                   [](const PythonOutbox& self) { return self.box.bytes_for_one(); })
      .def("position", [](const PythonOutbox& self, int sender,
                          int receiver) { return self.box.position(sender, receiver); })
      .def("laggards", [](const PythonOutbox& self) { return self.box.laggards(); })
      .def("all_posted", [](const PythonOutbox& self) { return self.box.all_posted(); })
      .def("set_walked", [](PythonOutbox& self, int64_t number) { self.box.set_walked(number); })
      .def("walked", [](const PythonOutbox& self, int rank) { return self.box.walked(rank); })
      .def("set_settling", [](PythonOutbox& self, bool is) { self.box.set_settling(is); })
      .def("is_settling",
           [](const PythonOutbox& self, int rank) { return self.box.is_settling(rank); })
      .def("are_settling", [](const PythonOutbox& self) { return self.box.are_settling(); })
      .def("post", &post)
      .def("add_up", &add_up, nb::arg("blocks"), nb::kw_only(), nb::arg("first"), nb::arg("count"),
           nb::arg("own"), nb::arg("result"), nb::arg("posted"), nb::arg("dtype"),
           nb::arg("before"), nb::arg("after"))
      .def("skip", [](PythonOutbox& self, int64_t count) { self.box.skip(count); })
      .def("skip_to", [](PythonOutbox& self, int64_t number) { self.box.skip_to(number); });
  module.attr("NUM_SLOTS") = Outbox::num_slots;
}

}  // namespace kadril
