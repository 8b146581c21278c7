// Runs: a box of an array is read and written as one stream, in pieces of any length.
#include "runs.h"

#include <algorithm>
#include <vector>

#include "harness.h"

using namespace kadril;

namespace {

// A box of 2 x 3 x 4 bytes in an array of 3 x 5 x 6, from (1, 1, 2) on.
const Runs box(4, {{2, 30}, {3, 6}});
constexpr int start = 30 + 6 + 2;

std::vector<std::byte> numbered(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

void test_read() {
  const auto array = numbered(90);
  std::vector<std::byte> expected;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 4; ++k) {
        expected.push_back(array[static_cast<size_t>(start + i * 30 + j * 6 + k)]);
      }
    }
  }
  for (uint64_t begin = 0; begin < 24; ++begin) {
    for (uint64_t bytes = 1; begin + bytes <= 24; ++bytes) {
      std::vector<std::byte> piece(bytes);
      box.read(piece.data(), array.data() + start, begin, bytes);
      CHECK(std::equal(piece.begin(), piece.end(), expected.begin() + static_cast<long>(begin)));
    }
  }
}

void test_write_is_the_inverse_of_read() {
  const auto stream = numbered(24);
  for (uint64_t cut = 0; cut <= 24; ++cut) {
    std::vector<std::byte> array(90, std::byte{255});
    box.write(array.data() + start, stream.data(), 0, cut);
    box.write(array.data() + start, stream.data() + cut, cut, 24 - cut);
    std::vector<std::byte> again(24);
    box.read(again.data(), array.data() + start, 0, 24);
    CHECK(again == stream);
    const auto untouched = std::count(array.begin(), array.end(), std::byte{255});
    CHECK(untouched == 90 - 24);
  }
}

void test_contiguous() {
  const auto array = numbered(10);
  std::vector<std::byte> piece(4);
  Runs().read(piece.data(), array.data(), 3, 4);
  CHECK(piece[0] == std::byte{3} && piece[3] == std::byte{6});
}

}  // namespace

int main() {
  test_read();
  test_write_is_the_inverse_of_read();
  test_contiguous();
  return 0;
}
