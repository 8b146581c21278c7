// A placement: where the boxes of planned moves lie in the tensors of a call.
//
// It follows from how the tensors lie, and is kept for the next call whose tensors lie alike: that
// one only puts its memory in.
#pragma once

#include <utility>
#include <vector>

#include "array.h"
#include "collectives.h"
#include "runs.h"

namespace kadril {

struct PeerBoxes {
  int peer;
  std::vector<Box> boxes;
};

class Placement {
 public:
  // Throws ValueError for a tensor that a box reaches out of.
  Placement(Array from, Array to) : from_(std::move(from)), to_(std::move(to)) {}
  void add_sends(const std::vector<PeerBoxes>& messages);
  void add_recvs(const std::vector<PeerBoxes>& messages);
  // Into a flat tensor, one after the other.
  void add_recvs_beside(const std::vector<PeerBoxes>& messages, const Array& room);
  void add_copy(const Box& box, const Box& room);
  void add_edge(const Box& edge);

  // Whether these tensors lie as those that it was made for; if so, it is theirs from now on.
  bool take_over(const Array& from, const Array& to);

  const std::vector<Outgoing>& sends() const { return sends_; }
  const std::vector<Incoming>& recvs() const { return recvs_; }
  void copy_and_fill(std::span<const std::byte> pattern) const;

 private:
  Array from_, to_;
  std::vector<Outgoing> sends_;
  std::vector<Incoming> recvs_;
  std::vector<std::pair<Placed, Placed>> copies_;
  std::vector<Placed> edges_;
};

}  // namespace kadril
