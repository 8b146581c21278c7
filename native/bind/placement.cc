#include "placement.h"

namespace nb = nanobind;

namespace kadril {
namespace {

// A plan for tensors of another shape must not reach beyond this one.
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

bool lie_alike(const Array& one, const Array& other) {
  return one.dtype == other.dtype && one.shape == other.shape && one.strides == other.strides;
}

}  // namespace

void Placement::add_sends(const std::vector<PeerBoxes>& messages) {
  for (const auto& [peer, boxes] : messages) {
    Placed all = place_all(from_, boxes);
    sends_.push_back(
        {peer, from_.dtype, from_.memory + all.offset, all.bytes, std::move(all.runs)});
  }
}

void Placement::add_recvs(const std::vector<PeerBoxes>& messages) {
  for (const auto& [peer, boxes] : messages) {
    Placed all = place_all(to_, boxes);
    recvs_.push_back({peer, to_.dtype, to_.memory + all.offset, all.bytes, std::move(all.runs)});
  }
}

void Placement::add_recvs_beside(const std::vector<PeerBoxes>& messages, const Array& room) {
  const size_t item = size_of(room.dtype);
  uint64_t bytes = 0;
  for (const auto& [peer, boxes] : messages) {
    recvs_.push_back({peer, room.dtype, room.memory + bytes, 0});
    for (const Box& box : boxes) {
      uint64_t count = 1;
      for (const Extent& extent : box) count *= static_cast<uint64_t>(extent.size);
      recvs_.back().bytes += count * item;
    }
    bytes += recvs_.back().bytes;
  }
  const bool fits = room.shape.size() == 1 && (room.shape[0] < 2 || room.strides[0] == 1) &&
                    static_cast<uint64_t>(room.shape[0]) * item == bytes;
  if (!fits) throw nb::value_error("what comes beside the target needs a flat tensor of its size");
}

void Placement::add_copy(const Box& box, const Box& room) {
  copies_.emplace_back(place_in(from_, box), place_in(to_, room));
  if (copies_.back().first.bytes != copies_.back().second.bytes) {
    throw nb::value_error("a box is copied to a box of another size");
  }
}

void Placement::add_edge(const Box& edge) { edges_.push_back(place_in(to_, edge)); }

bool Placement::take_over(const Array& from, const Array& to) {
  if (!lie_alike(from, from_) || !lie_alike(to, to_)) return false;
  for (Outgoing& each : sends_) {
    each.memory = from.memory + (static_cast<const std::byte*>(each.memory) - from_.memory);
  }
  for (Incoming& each : recvs_) {
    each.memory = to.memory + (static_cast<std::byte*>(each.memory) - to_.memory);
  }
  from_.memory = from.memory;
  to_.memory = to.memory;
  return true;
}

void Placement::copy_and_fill(std::span<const std::byte> pattern) const {
  for (const auto& [box, room] : copies_) copy_box(to_.memory, room, from_.memory, box);
  for (const Placed& edge : edges_) {
    edge.runs.fill(to_.memory + edge.offset, edge.bytes, pattern);
  }
}

}  // namespace kadril
