#include "arena.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstring>

#include "harness.h"

using namespace kadril;

namespace {

std::shared_ptr<Arena> small_arena(bool named = false) {
  ArenaOptions options;
  options.num_ranks = 2;
  options.capacity = 8 << 20;
  options.control_bytes = 4096;
  options.generation = 7;
  options.named = named;
  std::shared_ptr<Arena> arena;
  CHECK_OK(Arena::create(options, arena));
  return arena;
}

void a_heap_merges_what_comes_back() {
  Heap heap(0, 100);
  const auto a = heap.take(30), b = heap.take(30), c = heap.take(40);
  CHECK(a && b && c && !heap.take(1));
  heap.give_back(*a, 30);
  heap.give_back(*c, 40);
  CHECK(heap.largest_free() == 40);
  heap.give_back(*b, 30);
  CHECK(heap.largest_free() == 100 && heap.take(100));
}

void memory_is_zeroed_and_comes_back() {
  for (const bool named : {false, true}) {
    auto arena = small_arena(named);
    uint64_t first, second;
    CHECK_OK(arena->allocate(1, 100'000, first));
    std::memset(arena->at(first), 1, 100'000);
    CHECK(arena->offset_of(arena->at(first), 100'000) == first);
    arena->release(1, first, 100'000);
    CHECK(arena->num_allocated_bytes() == 0);
    CHECK_OK(arena->allocate(1, 100'000, second));
    CHECK(first == second);
    for (int i = 0; i < 100'000; ++i) CHECK(arena->at(second)[i] == std::byte{0});
  }
}

void a_second_mapping_sees_the_same_memory() {
  auto arena = small_arena();
  std::shared_ptr<Arena> other;
  CHECK_OK(Arena::attach(dup(arena->descriptor()), 7, other));
  uint64_t offset;
  CHECK_OK(arena->allocate(0, 10, offset));
  arena->at(offset)[3] = std::byte{42};
  CHECK(other->at(offset)[3] == std::byte{42});
}

void a_segment_of_another_job_is_refused() {
  auto arena = small_arena();
  std::shared_ptr<Arena> other;
  auto error = Arena::attach(dup(arena->descriptor()), 8, other);
  CHECK(error && error->reason == Reason::invalid && !other);
}

void no_room_is_an_error_with_figures() {
  auto arena = small_arena();
  uint64_t offset;
  auto error = arena->allocate(0, 9 << 20, offset);
  CHECK(error && error->reason == Reason::no_room);
  CHECK(error->needed == 9 << 20 && error->available >= 8 << 20 && error->available < 9 << 20);
  CHECK_OK(arena->allocate(0, 8 << 20, offset));  // and the arena still works
}

// Growing a file beyond the limit raises SIGXFSZ, whose default action ends the process.
void a_file_size_limit_is_an_error_and_no_signal() {
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit limit = before;
  limit.rlim_cur = 1 << 20;
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  ArenaOptions options;
  options.capacity = 8 << 20;
  std::shared_ptr<Arena> arena;
  auto error = Arena::create(options, arena);
  CHECK(error && error->reason == Reason::no_room && error->available == 1 << 20);
  setrlimit(RLIMIT_FSIZE, &before);
}

void quarantined_memory_is_not_used_again() {
  auto arena = small_arena();
  uint64_t first, second;
  CHECK_OK(arena->allocate(0, 4096, first));
  arena->quarantine();
  arena->release(0, first, 4096);
  CHECK_OK(arena->allocate(0, 4096, second));
  CHECK(first != second);
}

void a_block_waits_for_its_users() {
  auto arena = small_arena();
  uint64_t board, block, again;
  CHECK_OK(arena->allocate_board(0, 4096, board));
  auto users = reinterpret_cast<Users*>(arena->at(board));
  users->reset(1);
  CHECK_OK(arena->allocate(0, 4096, block));
  arena->release_when_unused(0, block, 4096, users);
  CHECK_OK(arena->allocate(0, 4096, again));
  CHECK(again != block);
  users->remove_one();
  CHECK_OK(arena->allocate(0, 4096, again));
  CHECK(again == block);
  // The board serves others before anybody looks: the block's own users are gone all the same.
  users->reset(1);
  arena->release_when_unused(0, block, 4096, users);
  users->remove_one();
  users->reset(2);
  CHECK_OK(arena->allocate(0, 4096, again));
  CHECK(again == block);
}

}  // namespace

int main() {
  a_heap_merges_what_comes_back();
  memory_is_zeroed_and_comes_back();
  a_second_mapping_sees_the_same_memory();
  a_segment_of_another_job_is_refused();
  no_room_is_an_error_with_figures();
  a_file_size_limit_is_an_error_and_no_signal();
  quarantined_memory_is_not_used_again();
  a_block_waits_for_its_users();
}
