// The binding of outboxes.
#pragma once

#include <nanobind/nanobind.h>

namespace kadril {

void bind_outbox(nanobind::module_& module);

}  // namespace kadril
