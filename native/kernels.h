// Kernels: all arithmetic on elements, and all that depends on their type. Everything else in the
// core moves bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtype.h"

namespace kadril {

struct Scale {
  double before = 1;  // applied to every input
  double after = 1;   // applied to the result
  bool operator==(const Scale&) const = default;
};

// Whether `op` makes sense for `dtype`: no order for complex numbers, no bits for floats.
bool supports(DType dtype, Op op);

// For every destination d and every i below `count`:
//
//     d[i] = after * total(0, num_sources)
//
//     total(lo, lo + 1) = before * s_lo[i]
//     total(lo, hi)     = total(lo, mid) op total(mid, hi),
//                         mid = lo + the largest power of two below hi - lo
//
// Pairwise, in the order of `sources`: the bits depend on nothing but the inputs, errors grow with
// the logarithm of num_sources, and sources that are reduced in groups of a power of two first, and
// then across the groups, give the same bits. 16-bit floats are reduced and scaled in float32 and
// rounded once; integers wrap around, and are scaled in float64 and truncated toward zero
// (saturating, NaN to 0); bools add by `or` and multiply by `and`. A NaN among the inputs of min or
// max is the result.
//
// Memory may have any alignment. A destination may be one of the sources; it may not overlap one
// partly. Requires supports(dtype, op) and 1 to 2^19 sources.
void reduce_into(void* const* destinations, int num_destinations, const void* const* sources,
                 int num_sources, size_t count, DType dtype, Op op, Scale scale);

// Fill memory with the element that changes nothing when it is reduced by `op`.
void fill_neutral(DType dtype, Op op, void* memory, uint64_t count);

inline bool is_integer(DType dtype) { return dtype >= DType::uint8 && dtype <= DType::int64; }

// Between integers of at most 32 bits and int64.
void widen_integers(DType dtype, const void* source, int64_t* target, uint64_t count);
void narrow_integers(DType dtype, const int64_t* source, void* target, uint64_t count);

// Divide integers in place, truncating toward zero; other types are left as they are.
void divide_integers(DType dtype, void* memory, uint64_t count, int divisor);

// Whether vectors of a type can be combined by Adasum: real floats.
bool supports_adasum(DType dtype);

// target = (1 - a.b / (2 a.a)) a  +  (1 - a.b / (2 b.b)) b, where the target may be `a` or `b`.
void combine_adasum(DType dtype, void* target, const void* a, const void* b, uint64_t count);

}  // namespace kadril
