#include "engine/adasum.h"

#include <algorithm>
#include <vector>

#include "half.h"

namespace kadril {
namespace {

double widened(float16 value) { return widen(value); }
double widened(bfloat16 value) { return widen(value); }
double widened(float value) { return value; }
double widened(double value) { return value; }

void round_to(float16& target, double value) { narrow(static_cast<float>(value), target); }
void round_to(bfloat16& target, double value) { narrow(static_cast<float>(value), target); }
void round_to(float& target, double value) { target = static_cast<float>(value); }
void round_to(double& target, double value) { target = value; }

// The products are sums of many terms, so they are taken in float64 whatever the elements are.
template <typename Element>
void combine(Element* target, const Element* a, const Element* b, uint64_t count) {
  double ab = 0, aa = 0, bb = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const double x = widened(a[i]), y = widened(b[i]);
    ab += x * y;
    aa += x * x;
    bb += y * y;
  }
  const double a_share = aa > 0 ? 1 - ab / (2 * aa) : 1;
  const double b_share = bb > 0 ? 1 - ab / (2 * bb) : 1;
  for (uint64_t i = 0; i < count; ++i) {
    round_to(target[i], a_share * widened(a[i]) + b_share * widened(b[i]));
  }
}

template <typename Element>
void combine_all(void* buffer, const void* other, bool other_is_left,
                 std::span<const uint64_t> counts) {
  auto mine = static_cast<Element*>(buffer);
  auto theirs = static_cast<const Element*>(other);
  for (const uint64_t count : counts) {
    combine(mine, other_is_left ? theirs : mine, other_is_left ? mine : theirs, count);
    mine += count;
    theirs += count;
  }
}

void combine_as(DType dtype, void* buffer, const void* other, bool other_is_left,
                std::span<const uint64_t> counts) {
  switch (dtype) {
    case DType::float16:
      return combine_all<float16>(buffer, other, other_is_left, counts);
    case DType::bfloat16:
      return combine_all<bfloat16>(buffer, other, other_is_left, counts);
    case DType::float32:
      return combine_all<float>(buffer, other, other_is_left, counts);
    default:
      return combine_all<double>(buffer, other, other_is_left, counts);
  }
}

}  // namespace

bool supports_adasum(DType dtype) {
  return dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32 ||
         dtype == DType::float64;
}

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
    if (num_right > 0) combine_as(call.dtype, buffer, other, is_right, counts);
  }
  return nullptr;
}

}  // namespace kadril
