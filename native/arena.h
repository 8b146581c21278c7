// The arena: one shared-memory segment per job and host, mapped by every local rank.
//
//     0            control                heap of rank 0            heap of rank 1
//     +--------+--------------------+-------------------------+-------------------------+--
//     | header | the world's channel| blocks | ... free ...    | blocks | ... free ...   |
//     |        | waits of all ranks |                         |                         |
//     +--------+--------------------+-------------------------+-------------------------+--
//
// The segment is sparse: its size is address space, and memory is taken page by page as blocks are
// allocated and given back when they are freed. Each rank allocates only in its own heap, so that
// no lock is shared between processes and a dying rank can leave none behind. Positions are
// offsets, since every process maps the segment somewhere else.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "failure.h"
#include "heap.h"
#include "waits.h"

namespace kadril {

inline constexpr uint64_t no_offset = ~uint64_t{0};

// How many users a board has, with the number of times it was handed out: whoever looks late at the
// word of a board that serves others by then knows that its own users are gone.
class Users {
 public:
  void reset(uint32_t count) {
    const uint64_t next = (word_.load(std::memory_order_relaxed) >> 32) + 1;
    word_.store(next << 32 | count, std::memory_order_release);
  }
  void remove_one() { word_.fetch_sub(1, std::memory_order_acq_rel); }
  uint32_t incarnation() const {
    return static_cast<uint32_t>(word_.load(std::memory_order_acquire) >> 32);
  }
  bool are_gone(uint32_t incarnation) const {
    const uint64_t word = word_.load(std::memory_order_acquire);
    return static_cast<uint32_t>(word >> 32) != incarnation || static_cast<uint32_t>(word) == 0;
  }

 private:
  std::atomic<uint64_t> word_;
};

struct ArenaOptions {
  int num_ranks = 1;
  uint64_t capacity = 0;  // address space of one rank's heap; 0: as much as the machine has memory
  uint64_t control_bytes = 0;  // of the world's channel
  uint64_t generation = 0;
  bool named = false;  // a file in /dev/shm instead of memfd
};

class Arena {
 public:
  static Error create(const ArenaOptions& options, std::shared_ptr<Arena>& arena);
  // Takes over the descriptor, which came from the creator.
  static Error attach(int descriptor, uint64_t generation, std::shared_ptr<Arena>& arena);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int descriptor() const { return descriptor_; }
  int num_ranks() const { return static_cast<int>(heaps_.size()); }
  uint64_t control_offset() const;

  // The waits of a rank, and what threads of this process hold while they change those of their own.
  RankWaits& waits(int rank) const;
  std::mutex& waits_mutex() { return waits_mutex_; }

  // Zeroed memory in the heap of `rank`, which must be a rank of this process.
  Error allocate(int rank, uint64_t bytes, uint64_t& offset);
  void release(int rank, uint64_t offset, uint64_t bytes);
  // As soon as the users of a board, as counted now, are gone.
  void release_when_unused(int rank, uint64_t offset, uint64_t bytes, const Users* users);

  // Boards hold such words, so their memory is only ever used for boards again.
  Error allocate_board(int rank, uint64_t bytes, uint64_t& offset);
  void release_board(int rank, uint64_t offset, uint64_t bytes, const Users* users);
  uint64_t num_allocated_bytes() const { return num_allocated_bytes_.load(); }

  // After a peer died in the middle of a call, survivors that have not noticed may still write to
  // memory that belonged to it. So from then on nothing is given back before the arena ends.
  void quarantine() { quarantined_.store(true); }

  std::byte* at(uint64_t offset) const { return base_ + offset; }
  // The offset of memory that lies wholly in a heap, or no_offset.
  uint64_t offset_of(const void* memory, uint64_t bytes) const;

 private:
  struct Header;
  struct Grave {
    int rank;
    uint64_t offset, bytes;
    const Users* users;
    uint32_t incarnation;
    bool is_board;
  };

  Arena() = default;
  Error map(uint64_t bytes);
  const Header& header() const;
  Error no_room(uint64_t bytes, int64_t available, const char* what) const;
  void reap();

  int descriptor_ = -1;
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  std::mutex waits_mutex_;
  std::mutex mutex_;  // guards the three below
  std::vector<Heap> heaps_;
  std::vector<Grave> graves_;
  std::multimap<uint64_t, uint64_t> spare_boards_;  // bytes -> offset
  std::atomic<uint64_t> num_allocated_bytes_{0};
  std::atomic<bool> quarantined_{false};
};

}  // namespace kadril
