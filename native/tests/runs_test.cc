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

// Elements of 2 bytes in an array of 3 x 4 x 5: boxes whose runs are elements, rows, planes.
constexpr size_t item = 2;
constexpr int64_t strides[] = {20, 5, 1};
const Box boxes[] = {{{1, 2}, {1, 3}, {4, 1}}, {{0, 3}, {1, 2}, {1, 3}}, {{0, 3}, {2, 1}, {0, 5}},
                     {{1, 2}, {0, 4}, {0, 5}}, {{2, 1}, {3, 1}, {4, 1}}, {{0, 2}, {0, 4}, {2, 2}}};

std::vector<std::byte> elements_of(const Box& box, const std::vector<std::byte>& array) {
  std::vector<std::byte> found;
  for (int64_t i = box[0].start; i < box[0].start + box[0].size; ++i) {
    for (int64_t j = box[1].start; j < box[1].start + box[1].size; ++j) {
      for (int64_t k = box[2].start; k < box[2].start + box[2].size; ++k) {
        const auto first = static_cast<size_t>(i * strides[0] + j * strides[1] + k * strides[2]);
        for (size_t byte = 0; byte < item; ++byte) found.push_back(array[first * item + byte]);
      }
    }
  }
  return found;
}

void test_place() {
  const auto array = numbered(60 * item);
  for (const Box& box : boxes) {
    const auto expected = elements_of(box, array);
    const Placed placed = place(box, strides, item);
    CHECK(placed.bytes == expected.size());
    std::vector<std::byte> found(placed.bytes);
    placed.runs.read(found.data(), array.data() + placed.offset, 0, placed.bytes);
    CHECK(found == expected);
  }
}

void test_boxes_one_after_the_other() {
  const auto array = numbered(60 * item);
  std::vector<std::byte> expected;
  Runs all;
  for (const Box& box : boxes) {
    const auto part = elements_of(box, array);
    expected.insert(expected.end(), part.begin(), part.end());
    Placed placed = place(box, strides, item);
    all.append(placed.offset, placed.bytes, std::move(placed.runs));
  }
  for (uint64_t begin = 0; begin < expected.size(); begin += 3) {
    for (uint64_t bytes = 1; begin + bytes <= expected.size(); bytes += 5) {
      std::vector<std::byte> piece(bytes);
      all.read(piece.data(), array.data(), begin, bytes);
      CHECK(std::equal(piece.begin(), piece.end(), expected.begin() + static_cast<long>(begin)));
    }
  }
}

void test_copy_and_fill() {
  const auto array = numbered(60 * item);
  const Box& box = boxes[1];  // 3 x 2 x 3, neither side contiguous
  const int64_t wider[] = {42, 7, 1};
  const Box room = {{0, 3}, {2, 2}, {3, 3}};
  std::vector<std::byte> target(126 * item, std::byte{255});
  const Placed from = place(box, strides, item);
  const Placed to = place(room, wider, item);
  copy_box(target.data(), to, array.data(), from);
  std::vector<std::byte> found(to.bytes);
  to.runs.read(found.data(), target.data() + to.offset, 0, to.bytes);
  CHECK(found == elements_of(box, array));
  const std::byte pattern[] = {std::byte{1}, std::byte{2}};
  to.runs.fill(target.data() + to.offset, to.bytes, pattern);
  CHECK(std::count(target.begin(), target.end(), std::byte{2}) == 18);
  CHECK(std::count(target.begin(), target.end(), std::byte{255}) == 126 * 2 - 36);
}

}  // namespace

int main() {
  test_read();
  test_write_is_the_inverse_of_read();
  test_contiguous();
  test_place();
  test_boxes_one_after_the_other();
  test_copy_and_fill();
  return 0;
}
