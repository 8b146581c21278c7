#include "kernels.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "half.h"
#include "harness.h"

using namespace kadril;

namespace {

// float16 by its definition, in double, where every step is exact.
double float16_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  double magnitude;
  if (exponent == 31) {
    magnitude = fraction ? std::numeric_limits<double>::quiet_NaN() : INFINITY;
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, -24);
  } else {
    magnitude = std::ldexp(1024 + fraction, exponent - 25);
  }
  return bits & 0x8000 ? -magnitude : magnitude;
}

void every_float16_survives_the_round_trip() {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float16 value{static_cast<uint16_t>(bits)};
    const double expected = float16_value(value.bits);
    const float wide = widen(value);
    if (std::isnan(expected)) {
      CHECK(std::isnan(wide));
      continue;
    }
    CHECK(wide == expected && std::signbit(wide) == std::signbit(expected));
    float16 back;
    narrow(wide, back);
    CHECK(back.bits == value.bits);
  }
}

// Between two neighbours the nearer one is taken, and the even one at the exact middle.
void float16_rounds_to_nearest_even() {
  for (uint16_t low = 0; low < 0x7bff; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const double middle = (float16_value(low) + float16_value(high)) / 2;
    float16 out;
    narrow(static_cast<float>(middle), out);  // 11 + 1 bits: exact in float32
    CHECK(out.bits == (low & 1 ? high : low));
    narrow(std::nextafter(static_cast<float>(middle), 0.0f), out);
    CHECK(out.bits == low);
    narrow(std::nextafter(static_cast<float>(middle), INFINITY), out);
    CHECK(out.bits == high);
  }
  float16 out;
  narrow(65519.99f, out);
  CHECK(out.bits == 0x7bff);
  narrow(65520.0f, out);
  CHECK(out.bits == 0x7c00);
  narrow(std::numeric_limits<float>::quiet_NaN(), out);
  CHECK((out.bits & 0x7fff) > 0x7c00);
}

void bfloat16_rounds_to_nearest_even() {
  for (uint32_t low = 0; low < 0x7f80; ++low) {
    for (const uint32_t rest : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = std::bit_cast<float>(low << 16 | rest);
      const bool up = rest > 0x8000 || (rest == 0x8000 && (low & 1));
      bfloat16 out;
      narrow(value, out);
      CHECK(out.bits == low + up);
    }
  }
  bfloat16 out;
  narrow(std::bit_cast<float>(0x7f800001u), out);  // a NaN whose payload would be cut off
  CHECK((out.bits & 0x7fff) > 0x7f80);
}

template <typename T>
std::vector<T> reduced(std::vector<std::vector<T>> inputs, DType dtype, Op op, Scale scale = {}) {
  std::vector<const void*> sources;
  for (auto& input : inputs) sources.push_back(input.data());
  std::vector<T> result(inputs[0].size());
  void* const targets[] = {result.data()};
  CHECK(supports(dtype, op));
  reduce_into(targets, 1, sources.data(), static_cast<int>(sources.size()), result.size(), dtype,
              op, scale);
  return result;
}

void integers_wrap_and_scale_in_double() {
  CHECK((reduced<int8_t>({{127}, {1}}, DType::int8, Op::sum)[0] == -128));
  CHECK((reduced<uint16_t>({{65535}, {65535}}, DType::uint16, Op::product)[0] == 1));
  CHECK((reduced<int64_t>({{INT64_MAX}, {1}}, DType::int64, Op::sum)[0] == INT64_MIN));
  CHECK((reduced<int32_t>({{-7}, {0}}, DType::int32, Op::sum, {1, 0.5})[0] == -3));  // toward zero
  CHECK((reduced<int32_t>({{5}, {5}}, DType::int32, Op::sum, {0.5, 1})[0] == 4));    // each input
  CHECK((reduced<uint8_t>({{200}, {0}}, DType::uint8, Op::sum, {1, -1})[0] == 0));   // saturates
  CHECK((reduced<int64_t>({{INT64_MAX}}, DType::int64, Op::sum, {1, 2})[0] == INT64_MAX));
  CHECK((reduced<int32_t>({{6, 3}, {5, 8}}, DType::int32, Op::band) == std::vector<int32_t>{4, 0}));
  CHECK((reduced<int32_t>({{6, 3}, {5, 8}}, DType::int32, Op::bor) == std::vector<int32_t>{7, 11}));
}

// A NaN in any position of any input is the result, in vectorized bodies and in tails alike.
void nan_propagates() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Op op : {Op::min, Op::max}) {
    for (size_t place = 0; place < 19; ++place) {
      for (size_t from = 0; from < 3; ++from) {
        std::vector<std::vector<float>> inputs(3, std::vector<float>(19, 1.0f));
        inputs[from][place] = nan;
        const auto three = reduced(inputs, DType::float32, op);
        for (size_t i = 0; i < 19; ++i) CHECK(std::isnan(three[i]) == (i == place));
        if (from == 2) continue;
        inputs.pop_back();
        const auto two = reduced(inputs, DType::float32, op);
        for (size_t i = 0; i < 19; ++i) CHECK(std::isnan(two[i]) == (i == place));
      }
    }
  }
}

float total(const std::vector<std::vector<float>>& inputs, size_t low, size_t high) {
  if (high - low == 1) return inputs[low][0];
  const size_t middle = low + std::bit_floor(high - low - 1);
  return total(inputs, low, middle) + total(inputs, middle, high);
}

// 12 times 0.1 one after the other is 1.2000002 in float32; pairwise it is 1.2, as trees give it.
void sums_are_pairwise() {
  for (size_t num_sources = 1; num_sources <= 33; ++num_sources) {
    std::vector<std::vector<float>> equal(num_sources, {0.1f}), inputs;
    for (size_t source = 0; source < num_sources; ++source) {
      inputs.push_back({1.0f / static_cast<float>(3 * source + 1)});
    }
    CHECK(reduced(inputs, DType::float32, Op::sum)[0] == total(inputs, 0, num_sources));
    CHECK(reduced(equal, DType::float32, Op::sum)[0] == total(equal, 0, num_sources));
    // With a factor for each input, which goes another way through the kernel.
    const auto half = reduced(inputs, DType::float32, Op::sum, {0.5, 2});
    CHECK(half[0] == total(inputs, 0, num_sources));
  }
  CHECK((reduced<float>(std::vector<std::vector<float>>(12, {0.1f}), DType::float32, Op::sum)[0] ==
         1.2f));
}

void halves_accumulate_in_float() {
  // 2048 + 1 + 1 in float16 steps would stay 2048.
  auto half = [](float value) {
    float16 out;
    narrow(value, out);
    return out.bits;
  };
  const auto sum = reduced<uint16_t>({{half(2048)}, {half(1)}, {half(1)}}, DType::float16, Op::sum);
  CHECK(sum[0] == half(2050));
}

void memory_may_be_misaligned_and_shared() {
  constexpr size_t count = 1001;
  std::vector<char> raw(3 * (count * 8 + 1));
  char* const a = raw.data() + 1;
  char* const b = a + count * 8 + 1;
  for (size_t i = 0; i < count; ++i) {
    const double x = static_cast<double>(i), y = static_cast<double>(2 * i);
    std::memcpy(a + 8 * i, &x, 8);
    std::memcpy(b + 8 * i, &y, 8);
  }
  // In place into both, as the zero-copy all-reduce does.
  void* const targets[] = {a, b};
  const void* const sources[] = {a, b};
  reduce_into(targets, 2, sources, 2, count, DType::float64, Op::sum, {});
  for (size_t i = 0; i < count; ++i) {
    double x, y;
    std::memcpy(&x, a + 8 * i, 8);
    std::memcpy(&y, b + 8 * i, 8);
    CHECK(x == static_cast<double>(3 * i) && y == x);
  }
}

void ops_that_make_no_sense_are_known() {
  CHECK(!supports(DType::complex64, Op::max));
  CHECK(!supports(DType::float32, Op::band));
  CHECK(!supports(DType::bfloat16, Op::bor));
  CHECK(supports(DType::boolean, Op::bor));
  CHECK(supports(DType::complex128, Op::product));
}

}  // namespace

int main() {
  every_float16_survives_the_round_trip();
  float16_rounds_to_nearest_even();
  bfloat16_rounds_to_nearest_even();
  integers_wrap_and_scale_in_double();
  nan_propagates();
  sums_are_pairwise();
  halves_accumulate_in_float();
  memory_may_be_misaligned_and_shared();
  ops_that_make_no_sense_are_known();
}
