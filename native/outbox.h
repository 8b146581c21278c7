// Outboxes: what each rank of a host has for the others, in memory that all see.
//
//     rank 0   | slot 0 | slot 1 | ... |      a block lies in a slot until all have taken it
//     rank 1   | slot 0 | slot 1 | ... |
//                |
//                | for rank 0 | for rank 2 | ... |        each begins at a cache line
//
// Blocks are numbered, alike on all ranks. Beside its slots each rank has words
// that it alone writes:
//
//     posted      blocks that lie in its slots, or did
//     taken       blocks of which it needs nothing any more, from anybody
//     walked      blocks that it has, posted or still to be posted
//     settling    whether it is done for now, and waits for the others
//     marks       of the last blocks: in which slot they lie
//
// A rank posts block n when all have taken block n - num_slots, and takes block n when all have
// posted it. Nothing here waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "kernels.h"

namespace kadril {

// A piece of each rank's part of some memory, posted and taken at once.
struct Block {
  struct Part {
    uint64_t position;  // in the slot
    uint64_t offset;    // where in the memory
    uint64_t bytes;
  };
  std::vector<Part> parts;  // what goes to other ranks
  uint64_t source;          // offset in the memory of what stays here
  uint64_t target;          // and in the result
  uint64_t count;           // elements that stay here
};

class Outbox {
 public:
  // Number of blocks by which a rank may be ahead. The slot that was emptied last is filled next,
  // so that few are in use, and in the cache, while ranks keep pace.
  static constexpr int num_slots = 16;
  static constexpr uint64_t line_bytes = 64;

  // Size of the memory of all ranks, which has to be zeroed.
  static uint64_t num_bytes(uint64_t slot_bytes, int size) {
    return static_cast<uint64_t>(size) * (sizeof(Head) + num_slots * slot_bytes);
  }

  Outbox(std::byte* memory, uint64_t slot_bytes, int rank, int size);

  int64_t num_posted() const { return num_posted_; }
  int64_t num_taken() const { return num_taken_; }
  uint64_t bytes_for_one() const { return bytes_for_one_; }
  // Place within a slot of what one rank gives another.
  uint64_t position(int sender, int receiver) const {
    return static_cast<uint64_t>(receiver - (receiver > sender)) * bytes_for_one_;
  }

  bool has_room();                    // for the next block
  std::vector<int> laggards() const;  // the ranks that still need what the next block would replace
  std::vector<int64_t> all_posted() const;  // by each rank; these may be read

  void set_walked(int64_t number);
  int64_t walked(int rank) const;
  void set_settling(bool is_settling);
  bool is_settling(int rank) const;
  bool are_settling() const;  // all others

  // Give the next blocks while there is room; how many. Without memory they are empty.
  size_t post(std::span<const Block> blocks, const std::byte* memory);
  // Add the next blocks up, in the order of the ranks: where a rank gave nothing there is nothing
  // to add, and zeros where none gave any. `own` is this rank's memory, if it has some. What
  // `posted` does not count is taken for not given.
  void add_up(std::span<const Block> blocks, const std::byte* own, std::byte* result,
              std::span<const int64_t> posted, DType dtype, Scale scale);
  // Need nothing of the next blocks.
  void skip(int64_t count);
  // Go on with a block, alike on all ranks, as if those before had come; all are taken.
  void skip_to(int64_t number);

 private:
  struct Head {
    alignas(line_bytes) int64_t posted;
    alignas(line_bytes) int64_t taken;
    alignas(line_bytes) int64_t walked;
    alignas(line_bytes) int64_t settling;
    alignas(line_bytes) int64_t marks[num_slots];  // 1 + slot, or 0 for nothing
  };

  Head& head(int rank) const { return heads_[rank]; }
  std::byte* slot(int rank, int64_t number) const {
    return slots_ +
           (static_cast<uint64_t>(rank) * num_slots + static_cast<uint64_t>(number)) * slot_bytes_;
  }
  int64_t least_taken() const;
  int64_t empty_slot();
  const std::byte* given(int sender, int64_t number) const;
  void take();

  Head* heads_;
  std::byte* slots_;
  uint64_t slot_bytes_;
  uint64_t bytes_for_one_;
  int rank_, size_;
  int64_t num_posted_ = 0;
  int64_t num_taken_ = 0;
  int64_t least_taken_ = 0;  // at the last look
  std::vector<int64_t> empty_;
  std::deque<std::pair<int64_t, int64_t>> full_;  // number of a block, and its slot
  std::vector<const void*> sources_;
};

}  // namespace kadril
