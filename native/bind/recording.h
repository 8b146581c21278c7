// The flight recorder, for calls that Python makes itself.
#pragma once

#include <nanobind/nanobind.h>

namespace kadril {

void bind_recorder(nanobind::module_& module);

}  // namespace kadril
