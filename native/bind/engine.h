// The binding of the engine.
#pragma once

#include <nanobind/nanobind.h>

#include "channel.h"

namespace kadril {

// The channel within a Python object of class Channel.
Channel& channel_of(nanobind::handle channel);

// None, or the failure as an object.
nanobind::object failure_object(const Failure& failure);

void bind_engine(nanobind::module_& module);

}  // namespace kadril
