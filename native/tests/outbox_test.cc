// Outboxes between threads that drift apart: every block is added up whole, whoever comes first.
#include "outbox.h"

#include <thread>

#include "harness.h"

using namespace kadril;

namespace {

constexpr uint64_t slot_bytes = 4096;
constexpr int num_rounds = 60;

// Blocks of some memory that holds `count` elements for each rank, one rank after the other.
std::vector<Block> cut(const Outbox& box, int rank, int size, uint64_t count) {
  const uint64_t length = box.bytes_for_one() / 4;
  std::vector<Block> blocks;
  for (uint64_t begin = 0; begin < count; begin += length) {
    const uint64_t some = std::min(length, count - begin);
    Block& block = blocks.emplace_back(
        Block{{}, (static_cast<uint64_t>(rank) * count + begin) * 4, begin * 4, some});
    for (int other = 0; other < size; ++other) {
      const uint64_t offset = (static_cast<uint64_t>(other) * count + begin) * 4;
      if (other != rank) block.parts.push_back({box.position(rank, other), offset, some * 4});
    }
  }
  return blocks;
}

int32_t value(int rank, int round, uint64_t i) {
  return static_cast<int32_t>(i % 1009) + 10'000 * rank + round;
}

// Whether a rank gives nothing in a round.
bool is_absent(int rank, int round) { return (rank + round) % 7 == 0; }

void work(std::byte* memory, int rank, int size) {
  Outbox box(memory, slot_bytes, rank, size);
  const uint64_t count = 20 * box.bytes_for_one() / 4 + 3;  // more than there are slots
  const auto blocks = cut(box, rank, size, count);
  std::vector<int32_t> given(count * static_cast<uint64_t>(size)), sum(count);
  for (int round = 0; round < num_rounds; ++round) {
    for (uint64_t i = 0; i < given.size(); ++i) given[i] = value(rank, round, i);
    const auto* own =
        is_absent(rank, round) ? nullptr : reinterpret_cast<const std::byte*>(given.data());
    const bool is_discarded = round % 11 == 5;
    size_t posted = 0, taken = 0;
    while (taken < blocks.size()) {
      posted += box.post(std::span(blocks).subspan(posted), own);
      const auto all = box.all_posted();
      const int64_t least = *std::min_element(all.begin(), all.end());
      const auto there =
          std::min(blocks.size() - taken,
                   static_cast<size_t>(std::max<int64_t>(0, least - box.num_taken())));
      if (is_discarded) {
        box.skip(static_cast<int64_t>(there));
      } else {
        box.add_up(std::span(blocks).subspan(taken, there), own,
                   reinterpret_cast<std::byte*>(sum.data()), all, DType::int32, {});
      }
      taken += there;
      if (!there) std::this_thread::yield();
    }
    for (uint64_t i = 0; i < count && !is_discarded; ++i) {
      int32_t expected = 0;
      for (int each = 0; each < size; ++each) {
        const uint64_t place = static_cast<uint64_t>(rank) * count + i;
        if (!is_absent(each, round)) expected += value(each, round, place);
      }
      CHECK(sum[i] == expected);
    }
  }
}

// A rank that is alone for a while stops when its slots are full, and goes on when they are taken.
void room_ends() {
  alignas(64) static std::byte memory[1 << 20] = {};
  Outbox first(memory, slot_bytes, 0, 2), second(memory, slot_bytes, 1, 2);
  const Block block{{{0, 0, 4}}, 4, 0, 1};
  const std::vector<Block> blocks(40, block);
  const int32_t numbers[2] = {3, 4};
  const auto* own = reinterpret_cast<const std::byte*>(numbers);
  CHECK(first.post(blocks, own) == Outbox::num_slots);
  CHECK(!first.has_room() && first.laggards() == (std::vector<int>{0, 1}));
  CHECK(second.post(std::span(blocks).first(1), nullptr) == 1);
  int32_t sum = 0;
  for (Outbox* box : {&first, &second}) {
    box->add_up(std::span(blocks).first(1), nullptr, reinterpret_cast<std::byte*>(&sum),
                box->all_posted(), DType::int32, {});
  }
  CHECK(sum == 3);  // the second one has it from the first
  CHECK(first.has_room() && first.laggards().empty());
  second.set_settling(true);
  CHECK(first.are_settling() && !second.are_settling());
}

}  // namespace

int main() {
  for (int size = 2; size <= 4; ++size) {
    std::vector<uint64_t> memory(Outbox::num_bytes(slot_bytes, size) / 8 + 8);
    const auto start = reinterpret_cast<uintptr_t>(memory.data());
    auto* aligned = reinterpret_cast<std::byte*>((start + 63) / 64 * 64);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) threads.emplace_back(work, aligned, rank, size);
    for (auto& thread : threads) thread.join();
  }
  room_ends();
}
