#include "call.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

namespace kadril {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 29);
}

bool reduces(Kind kind) {
  return kind == Kind::allreduce || kind == Kind::reduce || kind == Kind::reduce_scatterv;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

}  // namespace

size_t whole_letters(std::string_view text, size_t room) {
  if (text.size() <= room) return text.size();
  while (room > 0 && (static_cast<uint8_t>(text[room]) & 0xC0) == 0x80) --room;
  return room;
}

const char* name_of(Kind kind) {
  static constexpr const char* names[num_kinds] = {"barrier",   "allreduce",  "reduce",
                                                   "broadcast", "allgatherv", "reduce_scatterv",
                                                   "alltoallv", "exchange"};
  return names[static_cast<int>(kind)];
}

uint64_t hash_bytes(const void* data, size_t size, uint64_t seed) {
  auto bytes = static_cast<const unsigned char*>(data);
  uint64_t hash = mix(seed, size);
  for (; size >= 8; bytes += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    hash = mix(hash, word);
  }
  uint64_t rest = 0;
  if (size > 0) std::memcpy(&rest, bytes, size);
  return mix(hash, rest);
}

void Call::set_name(std::string_view text) {
  if (text.empty()) return;
  name_hash = hash_bytes(text.data(), text.size(), 1);
  std::memcpy(name, text.data(), whole_letters(text, max_name - 1));
}

void Call::set_shape(std::span<const uint64_t> shape) {
  if (shape.size() > max_dims) {  // compared by number of elements and by hash
    set_counts(shape);
    return;
  }
  num_dims = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), dims);
}

void Call::set_counts(std::span<const uint64_t> counts) {
  counts_hash = hash_bytes(counts.data(), counts.size_bytes(), 2);
}

uint64_t Call::fingerprint() const {
  uint64_t hash = mix(static_cast<uint64_t>(kind) | static_cast<uint64_t>(dtype) << 8 |
                          static_cast<uint64_t>(op) << 16 |
                          static_cast<uint64_t>(static_cast<uint32_t>(root)) << 32,
                      count);
  hash = mix(hash, counts_hash);
  hash = mix(hash, std::bit_cast<uint64_t>(scale.before));
  hash = mix(hash, std::bit_cast<uint64_t>(scale.after));
  hash = mix(hash, static_cast<uint64_t>(num_dims));
  for (int i = 0; i < num_dims; ++i) hash = mix(hash, dims[i]);
  return mix(hash, name_hash);
}

std::string Call::text() const {
  std::string text = name_of(kind);
  text += "(";
  if (kind != Kind::barrier) {
    text += name_of(dtype);
    if (num_dims >= 0) {
      text += "[";
      for (int i = 0; i < num_dims; ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
      text += "]";
    } else if (count > 0) {
      (text += '[').append(std::to_string(count)) += ']';
    }
    if (reduces(kind)) text += std::string(", ") + name_of(op);
    if (root >= 0) text += ", root=" + std::to_string(root);
    if (scale.before != 1) text += ", prescale=" + number(scale.before);
    if (scale.after != 1) text += ", postscale=" + number(scale.after);
  }
  if (name[0] != 0) {
    if (kind != Kind::barrier) text += ", ";
    // A peer's memory is not trusted to end with a zero.
    (text += "name='").append(name, strnlen(name, max_name)) += '\'';
  }
  return text + ")";
}

}  // namespace kadril
