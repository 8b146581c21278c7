// Book-keeping of one rank's part of the arena: which bytes are taken. Touches no memory itself.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace kadril {

class Heap {
 public:
  Heap(uint64_t begin, uint64_t end) { free_.emplace(begin, end - begin); }

  // First fit; `bytes` is a multiple of the page size.
  std::optional<uint64_t> take(uint64_t bytes);
  void give_back(uint64_t offset, uint64_t bytes);
  uint64_t largest_free() const;

 private:
  std::map<uint64_t, uint64_t> free_;  // offset -> bytes, neighbours merged
};

}  // namespace kadril
