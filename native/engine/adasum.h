// Adasum: a sum of gradients that does not grow where they point the same way.
//
// Two vectors are combined by
//
//     adasum(a, b) = (1 - a.b / (2 a.a)) a  +  (1 - a.b / (2 b.b)) b
//
// which is a + b where they are orthogonal and their mean where they are equal. More are combined
// along a binary tree over neighbours, for any number of members:
//
//     level 0     0   1   2   3   4        groups of 1
//     level 1     (0 1)   (2 3)   4        groups of 2: each member gets the vector of the other
//     level 2     (0 1 2 3)       4        group, and computes the same combination
//     level 3     (0 1 2 3 4)
//
// Every member of a group holds the same bits: the left group's vector is always `a`.
#pragma once

#include <span>

#include "engine/lane.h"

namespace kadril {

// In place on `buffer`, which holds vectors of `counts` elements one after the other; each has its
// own coefficients. `other` has room for as many.
Error adasum(Lane& lane, const Call& call, void* buffer, void* other,
             std::span<const uint64_t> counts);

}  // namespace kadril
