// A quick look at a torch tensor from C++, for the calls whose latency counts.
//
// The core links no torch. What it needs to know of it, the class and the dtypes, Python tells
// once; after that a tensor is asked for its address and shape through its own methods. That takes
// a quarter of what the same questions take in Python.
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
