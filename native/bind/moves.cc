// Planned moves: boxes of one tensor go to other members and into another tensor, boxes of that one
// come from other members, and the rest of it is filled. What follows from shapes alone is put down
// once; a call places the boxes in the tensors that it is given.
#include "moves.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>

#include "engine.h"
#include "placement.h"

namespace nb = nanobind;

namespace kadril {
namespace {

using Extents = std::vector<std::pair<int64_t, int64_t>>;  // (start, size) of each dim

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

  // None once everything has moved; bytes, what all members hold, where that was not planned
  // for; or a Failure. What comes goes to where it belongs in the target, or one after the
  // other into `beside`.
  nb::object run(nb::handle channel, nb::handle source, nb::handle target, nb::handle beside,
                 nb::bytes mine, bool copies, const char* name) {
    const std::string said(mine.c_str(), mine.size());
    if (beside.is_none() && copies && kept_ && kept_->mine == said) {
      nb::object found = run_again(channel, source, target, name);
      if (found.ptr() != Py_NotImplemented) return found;
    }
    Placement placement(array_of(source), array_of(target));
    placement.add_sends(sends_);
    if (beside.is_none()) {
      placement.add_recvs(recvs_);
    } else {
      placement.add_recvs_beside(recvs_, array_of(beside));
    }
    if (copies) {
      for (const auto& [box, room] : copies_) placement.add_copy(box, room);
    }
    for (const Box& edge : edges_) placement.add_edge(edge);
    Kept now{std::move(placement), said};
    nb::object found = move(channel, now, name);
    if (beside.is_none() && copies) kept_ = std::move(now);
    return found;
  }

  // Repeat the last `run` with copies and nothing beside, for tensors that lie as those of it did;
  // NotImplemented for others.
  nb::object run_again(nb::handle channel, nb::handle source, nb::handle target, const char* name) {
    if (!kept_ || !kept_->placement.take_over(array_of(source), array_of(target))) {
      return nb::borrow(Py_NotImplemented);
    }
    // Taken out meanwhile: another thread may come by while this one has let go of the GIL.
    std::optional<Kept> now = std::exchange(kept_, std::nullopt);
    nb::object found = move(channel, *now, name);
    kept_ = std::move(now);
    return found;
  }

 private:
  struct Kept {
    Placement placement;
    std::string mine;  // what this member says of itself
  };

  nb::object move(nb::handle channel, const Kept& now, const char* name) const {
    Premise premise{as_bytes(now.mine), as_bytes(planned_)};
    Call call;
    call.set_name(name);
    Channel& meeting = channel_of(channel);
    Error error;
    {
      nb::gil_scoped_release release;
      error = exchange_planned(meeting, call, now.placement.sends(), now.placement.recvs(), premise,
                               [&] { now.placement.copy_and_fill(as_bytes(fill_)); });
    }
    if (error) return outcome(std::move(error));
    if (premise.found.empty()) return nb::none();
    return nb::bytes(reinterpret_cast<const char*>(premise.found.data()), premise.found.size());
  }

  static std::span<const std::byte> as_bytes(const std::string& text) {
    return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
  }

  std::vector<PeerBoxes> sends_, recvs_;
  std::vector<std::pair<Box, Box>> copies_;
  std::vector<Box> edges_;
  std::string fill_, planned_;
  std::optional<Kept> kept_;  // guarded by the GIL
};

}  // namespace

void bind_moves(nb::module_& module) {
  nb::class_<MovePlan>(module, "MovePlan")
      .def(nb::init<const std::vector<std::pair<int, std::vector<Extents>>>&,
                    const std::vector<std::pair<int, std::vector<Extents>>>&,
                    const std::vector<std::pair<Extents, Extents>>&, const std::vector<Extents>&,
                    nb::bytes, nb::bytes>())
      .def("run", &MovePlan::run, nb::arg("channel"), nb::arg("source"), nb::arg("target"),
           nb::arg("beside").none(), nb::arg("mine"), nb::arg("copies"), nb::arg("name"))
      .def("run_again", &MovePlan::run_again, nb::arg("channel"), nb::arg("source"),
           nb::arg("target"), nb::arg("name"));
}

}  // namespace kadril
