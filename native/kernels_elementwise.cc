// Kernels beside the reduction: neutral elements, integer means, the combination of Adasum.
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "half.h"
#include "kernels.h"

namespace kadril {
namespace {

// Call `function` with a value of the integer type that a dtype stands for; not at all for others.
template <typename Function>
void with_integer(DType dtype, Function function) {
  switch (dtype) {
    case DType::uint8:
      return function(uint8_t{});
    case DType::int8:
      return function(int8_t{});
    case DType::uint16:
      return function(uint16_t{});
    case DType::int16:
      return function(int16_t{});
    case DType::uint32:
      return function(uint32_t{});
    case DType::int32:
      return function(int32_t{});
    case DType::uint64:
      return function(uint64_t{});
    case DType::int64:
      return function(int64_t{});
    default:
      return;
  }
}

template <typename Value>
void fill(void* memory, uint64_t count, Value value) {
  std::fill_n(static_cast<Value*>(memory), count, value);
}

template <typename Integer>
Integer neutral_integer(Op op) {
  using Limits = std::numeric_limits<Integer>;
  return op == Op::min   ? Limits::max()
         : op == Op::max ? Limits::lowest()
                         : static_cast<Integer>(op == Op::product);
}

template <typename Float>
Float neutral_float(Op op) {
  constexpr Float infinity = std::numeric_limits<Float>::infinity();
  return op == Op::min   ? infinity
         : op == Op::max ? -infinity
                         : static_cast<Float>(op == Op::product);
}

template <typename Half>
uint16_t neutral_half(Op op) {
  Half neutral;
  narrow(neutral_float<float>(op), neutral);  // 0, 1 and the infinities are exact
  return neutral.bits;
}

template <typename Real>
void fill_neutral_complex(Op op, void* memory, uint64_t count) {
  std::memset(memory, 0, count * 2 * sizeof(Real));
  for (uint64_t i = 0; op == Op::product && i < count; ++i) static_cast<Real*>(memory)[2 * i] = 1;
}

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
void combine(void* result, const void* left, const void* right, uint64_t count) {
  const auto target = static_cast<Element*>(result);
  const auto a = static_cast<const Element*>(left);
  const auto b = static_cast<const Element*>(right);
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

}  // namespace

void fill_neutral(DType dtype, Op op, void* memory, uint64_t count) {
  switch (dtype) {
    case DType::boolean:
      return fill<uint8_t>(memory, count, op == Op::min || op == Op::product);
    case DType::float16:
      return fill(memory, count, neutral_half<float16>(op));
    case DType::bfloat16:
      return fill(memory, count, neutral_half<bfloat16>(op));
    case DType::float32:
      return fill(memory, count, neutral_float<float>(op));
    case DType::float64:
      return fill(memory, count, neutral_float<double>(op));
    case DType::complex64:
      return fill_neutral_complex<float>(op, memory, count);
    case DType::complex128:
      return fill_neutral_complex<double>(op, memory, count);
    default:
      with_integer(dtype, [&]<typename Integer>(Integer) {
        fill(memory, count, neutral_integer<Integer>(op));
      });
  }
}

void widen_integers(DType dtype, const void* source, int64_t* target, uint64_t count) {
  with_integer(dtype, [&]<typename Integer>(Integer) {
    std::copy_n(static_cast<const Integer*>(source), count, target);
  });
}

void narrow_integers(DType dtype, const int64_t* source, void* target, uint64_t count) {
  with_integer(dtype, [&]<typename Integer>(Integer) {
    std::transform(source, source + count, static_cast<Integer*>(target),
                   [](int64_t value) { return static_cast<Integer>(value); });
  });
}

void divide_integers(DType dtype, void* memory, uint64_t count, int divisor) {
  with_integer(dtype, [&]<typename Integer>(Integer) {
    using Wide = std::conditional_t<std::is_signed_v<Integer>, int64_t, uint64_t>;
    const auto values = static_cast<Integer*>(memory);
    for (uint64_t i = 0; i < count; ++i) {
      values[i] = static_cast<Integer>(values[i] / static_cast<Wide>(divisor));
    }
  });
}

bool supports_adasum(DType dtype) {
  return dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32 ||
         dtype == DType::float64;
}

void combine_adasum(DType dtype, void* target, const void* a, const void* b, uint64_t count) {
  switch (dtype) {
    case DType::float16:
      return combine<float16>(target, a, b, count);
    case DType::bfloat16:
      return combine<bfloat16>(target, a, b, count);
    case DType::float32:
      return combine<float>(target, a, b, count);
    default:
      return combine<double>(target, a, b, count);
  }
}

}  // namespace kadril
