// Element types and reduction operations, as small codes that Python
// knows too (transport/buffer.py).
#pragma once

#include <cstddef>
#include <cstdint>

namespace kadril {

enum class DType : uint8_t {
  boolean,
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  uint64,
  int64,
  float16,
  bfloat16,
  float32,
  float64,
  complex64,
  complex128,
};
inline constexpr int num_dtypes = 15;

enum class Op : uint8_t { sum, product, min, max, band, bor };
inline constexpr int num_ops = 6;

inline constexpr const char* dtype_names[num_dtypes] = {
    "bool",  "uint8",   "int8",     "uint16",  "int16",   "uint32",    "int32",     "uint64",
    "int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"};
inline constexpr size_t dtype_sizes[num_dtypes] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16};
inline constexpr const char* op_names[num_ops] = {"sum", "product", "min", "max", "band", "bor"};

inline size_t size_of(DType dtype) { return dtype_sizes[static_cast<int>(dtype)]; }
inline const char* name_of(DType dtype) { return dtype_names[static_cast<int>(dtype)]; }
inline const char* name_of(Op op) { return op_names[static_cast<int>(op)]; }

}  // namespace kadril
