// A call: what one member of a channel asks for, and how it is compared with
// what the others ask for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "dtype.h"
#include "kernels.h"

namespace kadril {

enum class Kind : uint8_t {
  barrier,
  allreduce,
  reduce,
  broadcast,
  allgatherv,
  reduce_scatterv,
  alltoallv,
  exchange,
};
inline constexpr int num_kinds = 8;
const char* name_of(Kind kind);

inline constexpr int max_dims = 8;
inline constexpr int max_name = 64;

// Plain data: it is written into shared memory as it is. What differs between members of one call
// by right (the number of elements a member sends in an all-gather) is not in here.
struct Call {
  Kind kind = Kind::barrier;
  DType dtype = DType::uint8;
  Op op = Op::sum;
  int32_t root = -1;
  uint64_t count = 0;        // elements, where all members must give as many
  uint64_t counts_hash = 0;  // of a vector of counts that all members must give alike
  Scale scale;
  int32_t num_dims = -1;  // of the shape, where all members must give the same; -1: not compared
  uint64_t dims[max_dims] = {};
  bool wish = false;  // said to the others, and not compared
  uint64_t name_hash = 0;
  char name[max_name] = {};  // cut short; only for messages

  void set_name(std::string_view text);
  void set_shape(std::span<const uint64_t> shape);
  void set_counts(std::span<const uint64_t> counts);

  uint64_t fingerprint() const;  // equal for equal calls
  std::string text() const;      // "allreduce(float32[2, 3], sum, name='grad')"
};

uint64_t hash_bytes(const void* data, size_t size, uint64_t seed);

// How many bytes of UTF-8 text fit into `room` without a letter cut in two: Python refuses half of
// one, and a call would fail for the name that its messages give it.
size_t whole_letters(std::string_view text, size_t room);

}  // namespace kadril
