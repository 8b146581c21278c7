#include "heap.h"

#include <algorithm>
#include <iterator>

namespace kadril {

std::optional<uint64_t> Heap::take(uint64_t bytes) {
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    const auto [offset, size] = *hole;
    if (size < bytes) continue;
    free_.erase(hole);
    if (size > bytes) free_.emplace(offset + bytes, size - bytes);
    return offset;
  }
  return std::nullopt;
}

void Heap::give_back(uint64_t offset, uint64_t bytes) {
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += bytes;
      return;
    }
  }
  free_.emplace(offset, bytes);
}

uint64_t Heap::largest_free() const {
  uint64_t largest = 0;
  for (const auto& [offset, size] : free_) largest = std::max(largest, size);
  return largest;
}

}  // namespace kadril
