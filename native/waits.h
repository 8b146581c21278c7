// The waits of the ranks of one host, in shared memory: enough to prove that some never end.
//
// A thread that has waited for a while says so here, with the meeting that it waits for. A rank is
// *blocked* where as many threads say so as it has that could call anything. From the words of the
// boards everybody can read whom each of them waits for:
//
//     rank 0   main thread: meeting 7 of board A, which rank 1 has not reached
//     rank 1   main thread: meeting 3 of board B, which rank 0 has not reached
//
// A set S of blocked ranks is *deadlocked* if every wait of every rank of S is for a member that is
// in S: that member posts only when one of its own threads goes on, and none ever does. The largest
// such set is what is left of all blocked ranks when those are struck out, again and again, that
// have a wait for nobody of the rest.
//
// All of that must hold at one moment. Each rank's part has a version, which changes with every
// change of its waits; where no version of S has changed between the first look and the last, there
// was such a moment. What held then holds for ever, since words only grow. So a slow rank, one that
// computes, or one with a thread that might still call, is never taken for a part of a deadlock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace kadril {

class Arena;

inline constexpr int max_waits = 8;  // of one rank at a time; with more nothing is proven of it

// What a waiting thread knows of its process; from `Hooks::describe`.
struct Standpoint {
  int num_threads = 0;  // that could call something, this one included
  int name = -1;        // world rank
  std::string text;     // the call, its group and its line, for people
};

// Text that others may read while it is written: torn at worst, and then the version tells.
template <size_t num_bytes>
class SharedText {
 public:
  void write(const std::string& text);
  std::string read() const;

 private:
  std::array<std::atomic<uint64_t>, num_bytes / 8> words_;
};

struct SharedWait {
  std::atomic<uint64_t> board;        // offset, or 0 where this wait is free
  std::atomic<uint32_t> num_posts;    // of the meeting that is waited for
  std::atomic<uint32_t> num_members;  // of the board
  std::atomic<uint32_t> me;           // member
  SharedText<384> text;
};

// The part of one rank. Zeroed memory is a rank without waits.
struct alignas(128) RankWaits {
  std::atomic<uint64_t> version;  // odd while it changes
  std::atomic<uint32_t> num_threads;
  std::atomic<int32_t> name;
  SharedWait waits[max_waits];
  SharedText<8192> verdict;  // of the last deadlock that this rank has proven
};

// What is known of a deadlock: each line says who waits for whom, and where.
struct Deadlock {
  uint64_t digest = 0;  // of the ranks and their versions; 0: there is none
  std::vector<std::string> lines;
  struct Place {
    uint64_t board;
    uint32_t num_members;
    auto operator<=>(const Place&) const = default;
  };
  std::vector<Place> boards;  // that its ranks wait at
};

// One rank's access to the waits of all ranks of its arena.
class Waits {
 public:
  Waits(Arena& arena, int rank) : arena_(arena), rank_(rank) {}

  // Say that this thread waits; the place of its wait, or -1 where there is no room for it.
  int enter(uint64_t board, uint32_t num_members, uint32_t me, uint32_t num_posts,
            const Standpoint& standpoint);
  void leave(int place);
  void recount(int num_threads);  // of this process

  // A deadlock that this rank is in, by one look at everything.
  Deadlock find() const;
  // Leave the text for the others, who read it by the number of this rank.
  void publish(const Deadlock& deadlock);
  static std::vector<std::string> read_verdict(const Arena& arena, int rank);
  // Where a rank has waited for a while, for people.
  static std::vector<std::string> read_waits(const Arena& arena, int rank);

 private:
  RankWaits& mine() const;

  Arena& arena_;
  const int rank_;
};

}  // namespace kadril
