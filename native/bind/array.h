// A quick look at a torch tensor from C++, for the calls whose latency counts.
//
// The core links no torch. What it needs to know of it, the class and the dtypes, Python tells
// once. A torch that offers DLPack's C interface then shows a tensor in nanoseconds; an older one
// is asked through the tensor's own methods.
#pragma once

#include <nanobind/nanobind.h>

#include "call.h"

namespace kadril {

// Tell what a tensor is: its class, and the code of each of its dtypes.
void register_tensor(nanobind::type_object tensor_class, nanobind::dict dtype_codes);

// Fill in dtype, shape and count of the call and give the address of the memory; null for anything
// but a contiguous tensor in CPU memory, about which the caller then finds out more, and says it in
// an error.
void* look(nanobind::handle tensor, Call& call);

}  // namespace kadril
