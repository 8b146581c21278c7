// The part of DLPack's C interface (version 1.3) by which a tensor is looked at without being taken
// hold of.
//
// A class that offers it has a capsule "dlpack_exchange_api" in
// its attribute `__dlpack_c_exchange_api__`.
#pragma once

#include <cstdint>

namespace kadril::dlpack {

enum Device : int32_t { cpu = 1 };
enum Kind : uint8_t {
  integer = 0,
  unsigned_integer = 1,
  real = 2,
  brain = 4,
  complex = 5,
  boolean = 6
};

struct Tensor {
  void* data;
  int32_t device;
  int32_t device_id;
  int32_t num_dims;
  uint8_t kind;
  uint8_t bits;
  uint16_t lanes;
  const int64_t* shape;
  const int64_t* strides;  // in elements
  uint64_t byte_offset;
};

struct ExchangeApi {
  uint32_t major, minor;
  const void* previous;
  void* allocate;
  void* from_object;
  void* to_object;
  int (*look_at_object)(void* object, Tensor* out);  // -1 with a Python exception set; may be null
  void* current_stream;
};

inline constexpr uint32_t supported_major = 1;

}  // namespace kadril::dlpack
