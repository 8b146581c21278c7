// The waits of the ranks of one host, in shared memory: enough to prove that some never end.
//
// A thread that has waited for a while says so here, with what it waits for. A rank is *blocked*
// where as many threads say so as it has that could call anything. From the words of the boards
// everybody can read whom each of them waits for:
//
//     rank 0   main thread: meeting 7 of board A, which rank 1 has not reached
//     rank 1   main thread: meeting 3 of board B, which rank 0 has not reached
//     rank 2   main thread: "x" of the process set of board C, which is in cycle 5; rank 1 has been
//              in 4 of its cycles, and its engine has nothing to come to the next one with
//     rank 3   main thread: "y" of the process set of board D, which has been in 9 cycles; rank 1
//              has not asked for it in these, and its engine has nothing more to tell
//
// Named requests are served by a thread of the engine, which is nobody's wait: it goes on by itself
// where it can. What it has to tell comes from the threads of its rank alone. So a wait for one is
// for those ranks only whose engine is *quiet* (`Channel::Activity`): asleep, with nothing to tell.
//
// A set S of blocked ranks is *deadlocked* if every wait of every rank of S is for a member that is
// in S: that member posts only when one of its own threads goes on, and none ever does. The largest
// such set is what is left of all blocked ranks when those are struck out, again and again, that
// have a wait for nobody of the rest.
//
// All of that must hold at one moment. Each rank's part has a version, which changes with every
// change of its waits; where no version of S has changed between the first look and the last, and
// every engine that was quiet still is and has not been awake, there was such a moment. What held
// then holds for ever, since words only grow. So a slow rank, one that computes, or one with a
// thread that might still call, is never taken for a part of a deadlock.
//
// Threads are counted by the rank itself, at each of its looks. A count says something of a version
// only if that version was there before: threads that wait start no others, so if it had no others
// then, it has none as long as the version stays. See `confirm`.
//
// Ranks that wait for each other within one process set are left to its engine, which tells them as
// soon as all members are stuck, and the set goes on (engine/conductor.h); but for a set that has a
// member which waits elsewhere for ever, and will never be stuck there.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kadril {

class Arena;

inline constexpr int max_waits = 8;  // of one rank at a time; with more nothing is proven of it

// What a waiting thread knows of its process; from `Hooks::describe`.
struct Standpoint {
  int num_threads = 0;  // that could call something, this one included; 0: not known
  int name = -1;        // world rank
  std::string text;     // the call, its group and its line, for people
  // Threads that have submitted a named request, which need not be among those above.
  int num_submitters = 0;
  bool is_submitter = false;  // this one
};

enum class WaitKind : uint32_t {
  meeting,  // of a channel, with that number
  cycle,    // of a process set that is under way: all members must come
  request,  // that some members have not made in that many cycles of their process set
};

inline constexpr size_t max_missing = 256;  // members whose request is missed, by their number

// What a thread waits for.
struct WaitTarget {
  WaitKind kind = WaitKind::meeting;
  uint64_t board = 0;
  uint32_t num_members = 0;
  uint32_t me = 0;     // member
  uint32_t count = 0;  // posts of the meeting; cycles that were completed before
  std::array<uint64_t, max_missing / 64> missing{};  // request: members, as bits
  bool operator==(const WaitTarget&) const = default;

  bool misses(uint32_t member) const { return missing[member / 64] >> member % 64 & 1; }
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

// A `WaitTarget`.
struct SharedWait {
  std::atomic<uint64_t> board;  // offset, or 0 where this wait is free
  std::atomic<WaitKind> kind;
  std::atomic<uint32_t> count;
  std::atomic<uint32_t> num_members;
  std::atomic<uint32_t> me;
  std::array<std::atomic<uint64_t>, max_missing / 64> missing;
  std::atomic<uint32_t> is_submitter;
  SharedText<384> text;
};

// The part of one rank. Zeroed memory is a rank without waits.
struct alignas(128) RankWaits {
  std::atomic<uint64_t> version;    // odd while it changes
  std::atomic<uint64_t> confirmed;  // the version in which all threads wait
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

// The engines that were found quiet in one look.
class QuietEngines {
 public:
  void add(const std::atomic<uint64_t>& activity, uint64_t seen) {
    seen_.push_back({&activity, seen});
  }
  // Whether none of them has been awake since.
  bool are_still() const;

 private:
  struct Seen {
    const std::atomic<uint64_t>* activity;
    uint64_t value;
  };
  std::vector<Seen> seen_;
};

// One rank's access to the waits of all ranks of its arena.
class Waits {
 public:
  Waits(Arena& arena, int rank) : arena_(arena), rank_(rank) {}

  // Say that this thread waits; the place of its wait, or -1 where there is no room for it.
  int enter(const WaitTarget& target, const Standpoint& standpoint);
  void leave(int place);
  // Say whether all threads of this process wait, which were counted after this version was there.
  uint64_t version() const;
  void confirm(uint64_t version, const Standpoint& standpoint);

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
