// A quick look at a torch tensor from C++, for the calls whose latency counts.
//
// The core links no torch. What it needs to know of it, the class and the dtypes, Python tells
// once. A torch that offers DLPack's C interface then shows a tensor in nanoseconds; an older one
// is asked through the tensor's own methods.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "call.h"

namespace kadril {

// Tell what a tensor is: its class, and the code of each of its dtypes.
void register_tensor(nanobind::type_object tensor_class, nanobind::dict dtype_codes);

// Fill in dtype, shape and count of the call and give the address of the memory; null for anything
// but a contiguous tensor in CPU memory, about which the caller then finds out more, and says it in
// an error.
void* look(nanobind::handle tensor, Call& call);

// A tensor in CPU memory as it lies there; strides are in elements.
struct Array {
  std::byte* memory = nullptr;
  DType dtype = DType::uint8;
  std::vector<int64_t> shape, strides;
};

// Throws TypeError for anything else. Lazy conjugation and negation are not seen: whoever calls has
// resolved them.
Array array_of(nanobind::handle tensor);

}  // namespace kadril
