// The binding of planned moves between tensors.
#pragma once

#include <nanobind/nanobind.h>

#include "failure.h"

namespace kadril {

// None, or the failure as an object; an interruption is the Python exception that its signal
// handler raised.
nanobind::object outcome(Error error);

void bind_moves(nanobind::module_& module);

}  // namespace kadril
