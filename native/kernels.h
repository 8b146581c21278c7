// The reduction kernel: the only arithmetic in the core.
#pragma once

#include <cstddef>

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

}  // namespace kadril
