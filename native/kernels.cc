#include "kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "clones.h"
#include "half.h"

namespace kadril {
namespace {

#define KADRIL_INLINE inline __attribute__((always_inline))  // or it would miss the clone's target

struct boolean {
  uint8_t bits;
};

// Plain data, unlike std::complex, so that it may be packed.
template <typename R>
struct complex {
  R real, imag;
};

template <typename T>
inline constexpr bool is_complex = false;
template <typename R>
inline constexpr bool is_complex<complex<R>> = true;

// The type in which a storage type is reduced.
template <typename T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<float16> {
  using type = float;
};
template <>
struct Accumulator<bfloat16> {
  using type = float;
};
template <>
struct Accumulator<boolean> {
  using type = uint8_t;
};
template <typename T>
using accumulator_t = typename Accumulator<T>::type;

// User memory may be misaligned; a packed member compiles to the same unaligned vector moves.
template <typename T>
struct __attribute__((packed, may_alias)) Unaligned {
  T value;
};

template <typename T>
KADRIL_INLINE accumulator_t<T> load(const T* from, size_t i) {
  const T value = reinterpret_cast<const Unaligned<T>*>(from)[i].value;
  if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
    return widen(value);
  } else if constexpr (std::is_same_v<T, boolean>) {
    return value.bits != 0;
  } else {
    return value;
  }
}

template <typename T>
KADRIL_INLINE void store(T* to, size_t i, accumulator_t<T> result) {
  T value;
  if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
    narrow(result, value);
  } else if constexpr (std::is_same_v<T, boolean>) {
    value.bits = result;
  } else {
    value = result;
  }
  reinterpret_cast<Unaligned<T>*>(to)[i].value = value;
}

// double -> integer without undefined behaviour: truncates, saturates, NaN gives 0.
template <typename I>
KADRIL_INLINE I truncate(double value) {
  constexpr double low = static_cast<double>(std::numeric_limits<I>::min());
  constexpr double high = static_cast<double>(std::numeric_limits<I>::max());
  if (value != value) return 0;
  if (value <= low) return std::numeric_limits<I>::min();
  // For 64-bit integers `high` rounds up to a power of two, which itself does not fit.
  if (value >= high) return std::numeric_limits<I>::max();
  return static_cast<I>(value);
}

template <typename A>
KADRIL_INLINE A scaled(A value, double factor) {
  if constexpr (is_complex<A>) {
    const auto real_factor = static_cast<decltype(value.real)>(factor);
    return A{value.real * real_factor, value.imag * real_factor};
  } else if constexpr (std::is_floating_point_v<A>) {
    return value * static_cast<A>(factor);
  } else {
    return truncate<A>(static_cast<double>(value) * factor);
  }
}

template <Op op, typename T>
KADRIL_INLINE accumulator_t<T> combine(accumulator_t<T> a, accumulator_t<T> b) {
  using A = accumulator_t<T>;
  if constexpr (std::is_same_v<T, boolean>) {
    constexpr bool any = op == Op::sum || op == Op::max || op == Op::bor;
    return any ? a | b : a & b;
  } else if constexpr (op == Op::sum || op == Op::product) {
    if constexpr (std::is_integral_v<A>) {
      // Wraps around: unsigned arithmetic of at least 32 bits, so that promotion to
      // int cannot overflow.
      using U = std::common_type_t<std::make_unsigned_t<A>, uint32_t>;
      const U x = static_cast<U>(a), y = static_cast<U>(b);
      return static_cast<A>(op == Op::sum ? x + y : x * y);
    } else if constexpr (is_complex<A> && op == Op::sum) {
      return A{a.real + b.real, a.imag + b.imag};
    } else if constexpr (is_complex<A>) {
      return A{a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
    } else {
      return op == Op::sum ? a + b : a * b;
    }
  } else if constexpr (op == Op::min) {
    return (a < b || a != a) ? a : b;  // a NaN in b fails a < b and is taken
  } else if constexpr (op == Op::max) {
    return (a > b || a != a) ? a : b;
  } else if constexpr (op == Op::band) {
    return a & b;
  } else {
    return a | b;
  }
}

template <typename T, Op op>
inline constexpr bool makes_sense =
    (op == Op::sum || op == Op::product) || ((op == Op::min || op == Op::max) && !is_complex<T>) ||
    ((op == Op::band || op == Op::bor) && (std::is_integral_v<T> || std::is_same_v<T, boolean>));

// ivdep: a destination may be a source, but only at the same index.
#define KADRIL_IVDEP _Pragma("GCC ivdep")

// The common case, two ranks: no intermediate.
template <Op op, bool scales, typename T>
KADRIL_INLINE void pair_loop(T* const* to, int num_to, const T* a, const T* b, size_t count,
                             double factor) {
  const auto result = [=](size_t i) {
    const auto both = combine<op, T>(load(a, i), load(b, i));
    if constexpr (scales) return scaled(both, factor);
    return both;
  };
  T* first = to[0];
  if (num_to == 1) {
    KADRIL_IVDEP
    for (size_t i = 0; i < count; ++i) store(first, i, result(i));
  } else {
    T* second = to[1];
    KADRIL_IVDEP
    for (size_t i = 0; i < count; ++i) {
      const auto value = result(i);
      store(first, i, value);
      store(second, i, value);
    }
  }
}

// Up to four sources, pairwise, to an accumulator.
template <Op op, bool scales, typename T>
KADRIL_INLINE void leaf_loop(accumulator_t<T>* to, const T* const* from, int num_from, size_t begin,
                             size_t count, double factor) {
  const auto at = [=](const T* source, size_t i) {
    const auto value = load(source, i);
    if constexpr (scales) return scaled(value, factor);
    return value;
  };
  const auto pair = [=](const T* one, const T* other, size_t i) {
    return combine<op, T>(at(one, i), at(other, i));
  };
  const T* a = from[0] + begin;
  const T* b = num_from > 1 ? from[1] + begin : nullptr;
  const T* c = num_from > 2 ? from[2] + begin : nullptr;
  const T* d = num_from > 3 ? from[3] + begin : nullptr;
  if (num_from == 1) {
    KADRIL_IVDEP
    for (size_t i = 0; i < count; ++i) to[i] = at(a, i);
  } else if (num_from == 2) {
    KADRIL_IVDEP
    for (size_t i = 0; i < count; ++i) to[i] = pair(a, b, i);
  } else if (num_from == 3) {
    KADRIL_IVDEP
    for (size_t i = 0; i < count; ++i) to[i] = combine<op, T>(pair(a, b, i), at(c, i));
  } else {
    KADRIL_IVDEP
    for (size_t i = 0; i < count; ++i) to[i] = combine<op, T>(pair(a, b, i), pair(c, d, i));
  }
}

// Any number of ranks, pairwise: partial results lie on a stack of blocks that stay in
// the first-level cache, and two that hold equally many sources become one. The stack is
// a binary counter of the fours of sources taken so far; what is left at the end becomes
// one from the top down.
//
//     sources taken   stack (numbers of sources)
//     4               [4]              = (x0 + x1) + (x2 + x3)
//     8               [8]              = [4] + [4]
//     14              [8][4][2]        -> [8] + ([4] + [2])
template <Op op, typename T>
KADRIL_INLINE void block_loop(T* const* to, int num_to, const T* const* from, int num_from,
                              size_t count, Scale scale) {
  using A = accumulator_t<T>;
  constexpr size_t block = 1024 / sizeof(A);
  constexpr int max_depth = 18;  // counts up to 2^19 sources
  alignas(64) A stack[max_depth][block];
  for (size_t begin = 0; begin < count; begin += block) {
    const size_t n = std::min(block, count - begin);
    int depth = 0;
    const auto merge = [&]() {
      A* const left = stack[depth - 2];
      const A* const right = stack[depth - 1];
      KADRIL_IVDEP
      for (size_t i = 0; i < n; ++i) left[i] = combine<op, T>(left[i], right[i]);
      --depth;
    };
    for (int source = 0; source < num_from; source += 4) {
      const int num = std::min(4, num_from - source);
      if (scale.before == 1) {
        leaf_loop<op, false, T>(stack[depth++], from + source, num, begin, n, 1);
      } else {
        leaf_loop<op, true, T>(stack[depth++], from + source, num, begin, n, scale.before);
      }
      const int num_merges = std::countr_one(static_cast<unsigned>(source / 4));
      for (int merged = 0; merged < num_merges; ++merged) merge();
    }
    while (depth > 1) merge();
    A* const result = stack[0];
    if (scale.after != 1) {
      for (size_t i = 0; i < n; ++i) result[i] = scaled(result[i], scale.after);
    }
    for (int destination = 0; destination < num_to; ++destination) {
      T* output = to[destination] + begin;
      KADRIL_IVDEP
      for (size_t i = 0; i < n; ++i) store(output, i, result[i]);
    }
  }
}

template <Op op, typename T>
KADRIL_CLONES void kernel(void* const* to, int num_to, const void* const* from, int num_from,
                          size_t count, Scale scale) {
  auto typed_to = reinterpret_cast<T* const*>(to);
  auto typed_from = reinterpret_cast<const T* const*>(from);
  if (num_from == 2 && num_to <= 2 && scale == Scale{}) {
    pair_loop<op, false, T>(typed_to, num_to, typed_from[0], typed_from[1], count, 1);
  } else if (num_from == 2 && num_to <= 2 && scale.before == 1) {  // a mean
    pair_loop<op, true, T>(typed_to, num_to, typed_from[0], typed_from[1], count, scale.after);
  } else {
    block_loop<op, T>(typed_to, num_to, typed_from, num_from, count, scale);
  }
}

using Kernel = void (*)(void* const*, int, const void* const*, int, size_t, Scale);

template <Op op, typename T>
constexpr Kernel kernel_or_null() {
  if constexpr (makes_sense<T, op>) {
    return &kernel<op, T>;
  } else {
    return nullptr;
  }
}

template <Op op>
Kernel find(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return kernel_or_null<op, boolean>();
    case DType::uint8:
      return kernel_or_null<op, uint8_t>();
    case DType::int8:
      return kernel_or_null<op, int8_t>();
    case DType::uint16:
      return kernel_or_null<op, uint16_t>();
    case DType::int16:
      return kernel_or_null<op, int16_t>();
    case DType::uint32:
      return kernel_or_null<op, uint32_t>();
    case DType::int32:
      return kernel_or_null<op, int32_t>();
    case DType::uint64:
      return kernel_or_null<op, uint64_t>();
    case DType::int64:
      return kernel_or_null<op, int64_t>();
    case DType::float16:
      return kernel_or_null<op, float16>();
    case DType::bfloat16:
      return kernel_or_null<op, bfloat16>();
    case DType::float32:
      return kernel_or_null<op, float>();
    case DType::float64:
      return kernel_or_null<op, double>();
    case DType::complex64:
      return kernel_or_null<op, complex<float>>();
    case DType::complex128:
      return kernel_or_null<op, complex<double>>();
  }
  return nullptr;
}

Kernel find(DType dtype, Op op) {
  switch (op) {
    case Op::sum:
      return find<Op::sum>(dtype);
    case Op::product:
      return find<Op::product>(dtype);
    case Op::min:
      return find<Op::min>(dtype);
    case Op::max:
      return find<Op::max>(dtype);
    case Op::band:
      return find<Op::band>(dtype);
    case Op::bor:
      return find<Op::bor>(dtype);
  }
  return nullptr;
}

}  // namespace

bool supports(DType dtype, Op op) { return find(dtype, op) != nullptr; }

void reduce_into(void* const* destinations, int num_destinations, const void* const* sources,
                 int num_sources, size_t count, DType dtype, Op op, Scale scale) {
  if (count == 0) return;
  const bool plain_copy =
      num_sources == 1 && scale == Scale{} && num_destinations == 1 && dtype != DType::boolean;
  if (plain_copy) {
    if (destinations[0] != sources[0]) {
      std::memcpy(destinations[0], sources[0], count * size_of(dtype));
    }
    return;
  }
  find(dtype, op)(destinations, num_destinations, sources, num_sources, count, scale);
}

}  // namespace kadril
