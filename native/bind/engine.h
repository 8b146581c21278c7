// The binding of the engine.
#pragma once

#include <nanobind/nanobind.h>

#include "channel.h"

namespace kadril {

// The channel within a Python object of class Channel.
Channel& channel_of(nanobind::handle channel);

class Conductor;
struct Descriptor;
struct Piece;

// Whether the reduction that is asked for, if any, makes sense for the dtype of this piece.
bool is_supported(const Descriptor& descriptor, const Piece& piece);

// The conductor within a Python object of class Conductor.
Conductor& conductor_of(nanobind::handle conductor);

// None, or the failure as an object.
nanobind::object failure_object(const Failure& failure);

void bind_engine(nanobind::module_& module);

}  // namespace kadril
