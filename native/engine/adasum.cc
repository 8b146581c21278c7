#include "engine/adasum.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels.h"

namespace kadril {
namespace {

// Combine vectors one after the other, each with its own coefficients; the left one is `a`.
void combine_all(DType dtype, void* buffer, const void* other, bool other_is_left,
                 std::span<const uint64_t> counts) {
  auto mine = static_cast<std::byte*>(buffer);
  auto theirs = static_cast<const std::byte*>(other);
  for (const uint64_t count : counts) {
    combine_adasum(dtype, mine, other_is_left ? theirs : mine, other_is_left ? mine : theirs,
                   count);
    mine += count * size_of(dtype);
    theirs += count * size_of(dtype);
  }
}

}  // namespace

Error adasum(Lane& lane, const Call& call, void* buffer, void* other,
             std::span<const uint64_t> counts) {
  uint64_t count = 0;
  for (const uint64_t each : counts) count += each;
  const uint64_t bytes = count * size_of(call.dtype);
  const int me = lane.me();
  for (int width = 1; width < lane.size(); width *= 2) {
    const int left = me / (2 * width) * (2 * width);
    const int right = left + width;
    const int num_right = std::clamp(lane.size() - right, 0, width);
    std::vector<Outgoing> sends;
    std::vector<Incoming> recvs;
    const bool is_right = me >= right;
    if (num_right > 0 && is_right) {
      recvs.push_back({left + (me - right), call.dtype, other, bytes});
      // A right group may be smaller: its members then serve several of the left.
      for (int peer = left + (me - right); peer < right; peer += num_right) {
        sends.push_back({peer, call.dtype, buffer, bytes});
      }
    } else if (num_right > 0) {
      recvs.push_back({right + (me - left) % num_right, call.dtype, other, bytes});
      if (me - left < num_right) sends.push_back({right + (me - left), call.dtype, buffer, bytes});
    }
    if (auto error = lane.exchange(call, sends, recvs)) return error;
    if (num_right > 0) combine_all(call.dtype, buffer, other, is_right, counts);
  }
  return nullptr;
}

}  // namespace kadril
