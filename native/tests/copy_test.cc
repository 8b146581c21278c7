// Copies: every byte arrives, and none beside them changes, whichever way is used.
#include "copy.h"

#include <vector>

#include "harness.h"

using namespace kadril;

namespace {

using Copy = void (*)(void*, const void*, size_t);

constexpr std::byte untouched{0xa5};

std::vector<std::byte> numbered(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 256);
  return bytes;
}

void check_copy(Copy copy, size_t bytes, size_t target_shift, size_t source_shift) {
  const auto source = numbered(bytes + source_shift);
  std::vector<std::byte> target(bytes + target_shift + 64, untouched);
  copy(target.data() + target_shift, source.data() + source_shift, bytes);
  for (size_t i = 0; i < target.size(); ++i) {
    const bool is_inside = i >= target_shift && i < target_shift + bytes;
    CHECK(target[i] == (is_inside ? source[i - target_shift + source_shift] : untouched));
  }
}

void every_byte_arrives() {
  // Below and above the length from which ways to copy are compared.
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{1000},
                             size_t{16384}, size_t{16385}, size_t{40000}}) {
    for (const size_t target_shift : {0, 1, 16, 63}) {
      for (const size_t source_shift : {0, 3}) {
        // The first ones try each way, later ones use the quicker and at times the other.
        for (int number = 0; number < 4; ++number) {
          check_copy(copy_shared, bytes, target_shift, source_shift);
        }
        check_copy(copy_cached, bytes, target_shift, source_shift);
      }
    }
  }
}

}  // namespace

int main() {
  every_byte_arrives();
  return 0;
}
