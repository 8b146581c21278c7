// Planned moves: boxes of one tensor go to other members and into another tensor, boxes of that one
// come from other members, and the rest of it is filled. What follows from shapes alone is put down
// once; a call places the boxes in the tensors that it is given.
#include "moves.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "array.h"
#include "collectives.h"
#include "engine.h"
#include "runs.h"

namespace nb = nanobind;

namespace kadril {
namespace {

using Extents = std::vector<std::pair<int64_t, int64_t>>;  // (start, size) of each dim

struct PeerBoxes {
  int peer;
  std::vector<Box> boxes;
};

Box as_box(const Extents& extents) {
  Box box;
  for (const auto& [start, size] : extents) box.push_back({start, size});
  return box;
}

std::vector<PeerBoxes> as_messages(
    const std::vector<std::pair<int, std::vector<Extents>>>& messages) {
  std::vector<PeerBoxes> found;
  for (const auto& [peer, boxes] : messages) {
    found.push_back({peer, {}});
    for (const Extents& extents : boxes) found.back().boxes.push_back(as_box(extents));
  }
  return found;
}

// Where a box lies in a tensor. A plan for tensors of another shape must not reach beyond this one.
Placed place_in(const Array& array, const Box& box) {
  bool fits = box.size() == array.shape.size();
  for (size_t dim = 0; fits && dim < box.size(); ++dim) {
    fits = box[dim].start >= 0 && box[dim].size >= 0 &&
           box[dim].start + box[dim].size <= array.shape[dim];
  }
  if (!fits) throw nb::value_error("a tensor has not the shape that its moves were planned for");
  return place(box, array.strides, size_of(array.dtype));
}

// A message: the boxes of it, one after the other.
Placed place_all(const Array& array, const std::vector<Box>& boxes) {
  if (boxes.size() == 1) return place_in(array, boxes.front());
  Placed all{0, 0, {}};
  for (const Box& box : boxes) {
    Placed one = place_in(array, box);
    all.runs.append(one.offset, one.bytes, std::move(one.runs));
    all.bytes += one.bytes;
  }
  return all;
}

class MovePlan {
 public:
  MovePlan(const std::vector<std::pair<int, std::vector<Extents>>>& sends,
           const std::vector<std::pair<int, std::vector<Extents>>>& recvs,
           const std::vector<std::pair<Extents, Extents>>& copies,
           const std::vector<Extents>& edges, nb::bytes fill, nb::bytes planned)
      : sends_(as_messages(sends)),
        recvs_(as_messages(recvs)),
        fill_(fill.c_str(), fill.size()),
        planned_(planned.c_str(), planned.size()) {
    for (const auto& [from, to] : copies) copies_.push_back({as_box(from), as_box(to)});
    for (const Extents& edge : edges) edges_.push_back(as_box(edge));
  }

  // None once everything has moved; bytes, what all members hold, where that was not planned for;
  // or a Failure. What comes goes to where it belongs in the target, or one after the other into
  // `beside`.
  nb::object run(nb::handle channel, nb::handle source, nb::handle target, nb::handle beside,
                 nb::bytes mine, bool copies, const char* name) const {
    const Array from = array_of(source);
    const Array to = array_of(target);
    Premise premise{as_span(mine.c_str(), mine.size()), as_span(planned_.data(), planned_.size())};
    std::vector<Outgoing> outgoing;
    for (const auto& [peer, boxes] : sends_) {
      Placed all = place_all(from, boxes);
      outgoing.push_back(
          {peer, from.dtype, from.memory + all.offset, all.bytes, std::move(all.runs)});
    }
    std::vector<Incoming> incoming = receives(to, beside);
    const std::vector<std::pair<Placed, Placed>> placed = place_copies(from, to, copies);
    std::vector<Placed> edges;
    for (const Box& edge : edges_) edges.push_back(place_in(to, edge));
    Call call;
    call.set_name(name);
    Channel& meeting = channel_of(channel);
    Error error;
    {
      nb::gil_scoped_release release;
      error = exchange_planned(meeting, call, outgoing, incoming, premise, [&] {
        for (const auto& [box, room] : placed) copy_box(to.memory, room, from.memory, box);
        for (const Placed& edge : edges) {
          edge.runs.fill(to.memory + edge.offset, edge.bytes, as_span(fill_.data(), fill_.size()));
        }
      });
    }
    if (error) return outcome(std::move(error));
    if (premise.found.empty()) return nb::none();
    return nb::bytes(reinterpret_cast<const char*>(premise.found.data()), premise.found.size());
  }

 private:
  static std::span<const std::byte> as_span(const char* data, size_t size) {
    return {reinterpret_cast<const std::byte*>(data), size};
  }

  std::vector<Incoming> receives(const Array& to, nb::handle beside) const {
    std::vector<Incoming> incoming;
    if (beside.is_none()) {
      for (const auto& [peer, boxes] : recvs_) {
        Placed all = place_all(to, boxes);
        incoming.push_back(
            {peer, to.dtype, to.memory + all.offset, all.bytes, std::move(all.runs)});
      }
      return incoming;
    }
    const Array room = array_of(beside);
    const size_t item = size_of(room.dtype);
    uint64_t bytes = 0;
    for (const auto& [peer, boxes] : recvs_) {
      incoming.push_back({peer, room.dtype, room.memory + bytes, 0});
      for (const Box& box : boxes) {
        uint64_t count = 1;
        for (const Extent& extent : box) count *= static_cast<uint64_t>(extent.size);
        incoming.back().bytes += count * item;
      }
      bytes += incoming.back().bytes;
    }
    const bool fits = room.shape.size() == 1 && (room.shape[0] < 2 || room.strides[0] == 1) &&
                      static_cast<uint64_t>(room.shape[0]) * item == bytes;
    if (!fits)
      throw nb::value_error("what comes beside the target needs a flat tensor of its size");
    return incoming;
  }

  std::vector<std::pair<Placed, Placed>> place_copies(const Array& from, const Array& to,
                                                      bool wanted) const {
    std::vector<std::pair<Placed, Placed>> placed;
    if (!wanted) return placed;
    for (const auto& [box, room] : copies_) {
      placed.emplace_back(place_in(from, box), place_in(to, room));
      if (placed.back().first.bytes != placed.back().second.bytes) {
        throw nb::value_error("a box is copied to a box of another size");
      }
    }
    return placed;
  }

  std::vector<PeerBoxes> sends_, recvs_;
  std::vector<std::pair<Box, Box>> copies_;
  std::vector<Box> edges_;
  std::string fill_, planned_;
};

}  // namespace

void bind_moves(nb::module_& module) {
  nb::class_<MovePlan>(module, "MovePlan")
      .def(nb::init<const std::vector<std::pair<int, std::vector<Extents>>>&,
                    const std::vector<std::pair<int, std::vector<Extents>>>&,
                    const std::vector<std::pair<Extents, Extents>>&, const std::vector<Extents>&,
                    nb::bytes, nb::bytes>())
      .def("run", &MovePlan::run, nb::arg("channel"), nb::arg("source"), nb::arg("target"),
           nb::arg("beside").none(), nb::arg("mine"), nb::arg("copies"), nb::arg("name"));
}

}  // namespace kadril
