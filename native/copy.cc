#include "copy.h"

#include <cstdint>
#include <cstring>

#include "clones.h"

namespace kadril {

// Without the attribute the compiler would recognize the loop and call memcpy.
KADRIL_CLONES __attribute__((optimize("no-tree-loop-distribute-patterns"))) void copy_cached(
    void* target, const void* source, size_t bytes) {
  struct __attribute__((packed, may_alias)) Word {
    uint64_t value;
  };
  auto to = static_cast<Word*>(target);
  auto from = static_cast<const Word*>(source);
  const size_t num_words = bytes / sizeof(Word);
#pragma GCC ivdep
  for (size_t i = 0; i < num_words; ++i) to[i].value = from[i].value;
  const size_t rest = bytes % sizeof(Word);
  if (rest) std::memcpy(to + num_words, from + num_words, rest);
}

}  // namespace kadril
