// The two 16-bit floats, widened to float32 and rounded back (to nearest, ties to even).
//
// Plain integer and float arithmetic without branches, so that loops over them vectorize on every
// machine; the results do not depend on whether the machine has conversion instructions.
#pragma once

#include <bit>
#include <cstdint>

namespace kadril {

struct float16 {
  uint16_t bits;
};

struct bfloat16 {
  uint16_t bits;
};

inline float widen(bfloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

inline void narrow(float value, bfloat16& out) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // Adding half of the last kept bit, less one where that bit is even, carries exactly when
  // rounding up.
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  // A NaN must stay one: truncation keeps its sign and payload, and the quiet
  // bit keeps it non-zero.
  const uint32_t quiet = (bits >> 16) | 0x40;
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  out.bits = static_cast<uint16_t>(is_nan ? quiet : rounded);
}

inline float widen(float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fff) << 13;
  // The exponent moves from bias 15 to bias 127 by a multiplication with 2^112, which is exact and
  // turns subnormals into the normal numbers that they are in float32.
  const float scaled = std::bit_cast<float>(magnitude) *
                       std::bit_cast<float>(static_cast<uint32_t>(127 + 112) << 23);
  // Infinities and NaNs have all exponent bits set in both formats.
  const uint32_t special = magnitude | 0x7f800000;
  const uint32_t finite = std::bit_cast<uint32_t>(scaled);
  return std::bit_cast<float>(sign | (magnitude >= 0x0f800000 ? special : finite));
}

inline void narrow(float value, float16& out) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  // Normal results: rebias by subtracting 112 from the exponent, round to even as above.
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Subnormal results: adding 0.5 puts the value's last float16 bit at float32's last bit, so that
  // the adder itself rounds to even.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - 0x3f000000;
  const uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x1ff);
  uint32_t result = magnitude < 0x38800000 ? subnormal : normal;  // below 2^-14
  result = magnitude >= 0x477ff000 ? 0x7c00 : result;             // rounds to more than 65504
  result = magnitude > 0x7f800000 ? nan : result;
  out.bits = static_cast<uint16_t>(sign | result);
}

}  // namespace kadril
