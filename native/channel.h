// A channel: the ordered meeting point of the members of one partition on one host.
//
// Each member has a slot on a shared board. Its *word* counts the meetings that
// the member has reached:
//
//     31                                  2   1        0
//     +------------------------------------+--------+---------+
//     | meetings posted, modulo 2^30       | closed | revoked |
//     +------------------------------------+--------+---------+
//
// A meeting is: add one to the own word, then wait until every other word has got as far. A waiter
// looks for a while and then sleeps on the peer's word, so whatever happens to the peer must change
// that word: its posting, its leaving (closed) and the end of the channel (revoked, set by anyone
// in all words). No wake-up can be lost, and nobody needs to look elsewhere.
//
// A *call* (one collective) starts with a meeting in which every member posts what it calls.
// Postings are double-buffered by the parity of the call: a member can overwrite the posting of
// call n only in call n+2, and it gets there only after all have posted n+1, that is, have finished
// reading n.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "arena.h"
#include "call.h"
#include "failure.h"
#include "fork_mark.h"
#include "liveness.h"
#include "recorder.h"
#include "vigil.h"
#include "waits.h"

namespace kadril {

// A call that gives no more needs only its first meeting.
inline constexpr size_t inline_bytes = 4096;

// What a member shows the others at the first meeting of a call.
struct Posting {
  uint64_t fingerprint;
  uint64_t bytes;   // that this member gives to others
  uint64_t source;  // offset in the arena, or no_offset: where it gives them from
  uint64_t target;  // and where it wants the result
  // Offset of its staging memory, or no_offset where it had none before this call.
  uint64_t staging;
  // Offset of what it made for this call instead; to be read only after the next meeting.
  uint64_t supplied;
  uint64_t inlined;    // whether what it gives is in `payload`
  uint64_t early;      // offset of where it has laid out all that it gives, or no_offset
  uint32_t num_sends;  // in its table, before its receives
  uint32_t num_recvs;
  Call call;
  alignas(64) std::byte payload[inline_bytes];
};

// One message of a member's exchange, as the others see it.
struct Entry {
  int32_t peer;
  uint16_t stripe;  // its number among the messages that leave this member
  DType dtype;
  uint64_t bytes;
  uint64_t memory;    // offset in the arena, or no_offset
  uint64_t position;  // in the payload
};

// How a member waits. Spinning helps only while every waiting rank has a core to itself.
struct Waiting {
  double patience = 300;   // seconds, for a peer that is alive
  double warn_after = 10;  // seconds, and again after each doubling
  int num_spins = 0;
  int num_yields = 0;
};

// What the engine on a channel tells of itself, in one word. It is *quiet* while it sleeps between
// cycles and has nothing to tell; then only threads of its own rank can make it tell something.
//
//     63                   32                           2        1       0
//     +----------------------+---------------------------+---------+-------+
//     | cycles it has been in| number of the quiet time  | pending | quiet |
//     +----------------------+---------------------------+---------+-------+
//
// No two quiet times look the same: where the word has not changed, it was quiet all the while. With
// something pending it comes to a cycle when others do, and otherwise only with something to tell.
struct Activity {
  static constexpr uint64_t quiet_bit = 1, pending_bit = 2;
  static uint64_t quiet(uint32_t num_cycles, uint32_t number, bool has_pending) {
    return uint64_t{num_cycles} << 32 | uint64_t{number & 0x3fffffff} << 2 |
           (has_pending ? pending_bit : 0) | quiet_bit;
  }
  static bool is_quiet(uint64_t word) { return word & quiet_bit; }
  static bool has_pending(uint64_t word) { return word & pending_bit; }
  static uint32_t num_cycles(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
};

// What the owner of a channel wants to know while a member waits. Called without any lock held but
// the channel's own.
class Hooks {
 public:
  virtual ~Hooks() = default;
  virtual bool interrupted() noexcept { return false; }  // true gives the channel up
  virtual void late(const Call&, const std::vector<int>&, bool, double) noexcept {}
  // Describe the waiting thread to those who look for deadlocks. False where nothing can be said of
  // its process, so that it is never taken for a part of one.
  virtual bool describe(const Call&, Standpoint&) noexcept { return false; }
};

class Channel final : public DeathListener {
 public:
  static uint64_t board_bytes(int num_members);
  static void format(Arena& arena, uint64_t board, int num_members);

  // `ranks[m]` is the rank in the arena of member m; this process is member `me`. The member that
  // owns the board's memory gives it back when the last one has closed.
  Channel(std::shared_ptr<Arena> arena, std::shared_ptr<Liveness> liveness, uint64_t board,
          std::vector<int> ranks, int me, bool owns_board, Waiting waiting, Hooks* hooks);
  ~Channel() override;

  int num_members() const { return static_cast<int>(ranks_.size()); }
  int me() const { return me_; }
  Arena& arena() { return *arena_; }

  // One collective at a time: whoever holds this may post.
  std::mutex& mutex() { return mutex_; }

  Error check_usable(const Call& call);
  Error meet(const Call& call);  // post, then wait for all others
  void post();
  Error await_all(const Call& call);

  Posting& posting(int member) const;  // of the call under way
  void begin_call() { ++num_calls_; }
  uint64_t num_calls() const { return num_calls_; }
  uint64_t board() const { return board_offset_; }
  unsigned parity() const { return num_calls_ & 1; }  // of the call under way
  // Room for the messages of one exchange, beside the posting.
  Entry* table(int member) const;
  static int table_capacity(int num_members) { return 64 + 4 * num_members; }
  uint64_t staging() const { return staging_; }
  Error allocate_staging(uint64_t bytes);
  // One for each member, for use during a call: making it anew would cost as much as a short call.
  std::vector<const void*>& pointers() { return pointers_; }

  // For a member that sleeps between calls and wants to know when another one comes to the next
  // meeting, or when a thread of its own process has something for it: a bell per member. Cycles
  // are counted by the owner.
  void ask_for(uint32_t cycle);             // say that this member comes to that cycle
  bool is_asked_for(uint32_t cycle) const;  // by another member; also true once one is gone
  uint32_t num_rings() const;
  void ring_self();
  void await_ring(uint32_t seen, double seconds);
  void listen(bool on);  // whether another member's asking shall ring
  // Say what the engine on this channel does, for those who look for deadlocks.
  void show_activity(uint64_t activity);

  // The owner may take the hooks over, and choose whether it pays to spin.
  void set_hooks(Hooks* hooks) { hooks_ = hooks; }
  void set_spinning(bool on) { is_spinning_.store(on, std::memory_order_relaxed); }
  // Make a call of another thread of this process return with `closed`. Only `close` may follow. To
  // be repeated until it has: a wake-up may come just before the sleep.
  void leave_call() noexcept;
  // Memory of this member that others may still read in the last call.
  void release_when_unused(uint64_t offset, uint64_t bytes);

  // The ranks that a wait is for, see waits.h: those which have not reached the meeting, or whose
  // engine is quiet and has not brought what is waited for. None where the wait is about to end by
  // itself, and none that has not opened its channel.
  static std::vector<int> late_ranks(const Arena& arena, const WaitTarget& target,
                                     QuietEngines& quiet);
  // Rank of each member of a board; -1 for one that has not opened its channel.
  static std::vector<int> ranks_of(const Arena& arena, uint64_t board, uint32_t num_members);
  // End channels for everyone, because of a deadlock that this rank has published.
  static void end_deadlocked(const Arena& arena, const std::vector<Deadlock::Place>& boards,
                             int rank) noexcept;
  // Memory that outlives the channel, and the rank of this process in it.
  std::shared_ptr<Arena> shared_arena() const { return arena_; }
  int arena_rank() const { return ranks_[static_cast<size_t>(me_)]; }

  // End the channel for everyone, for the reason given; the first reason stays.
  Error give_up(Reason reason, int member, const Call& call, double elapsed = 0);
  void revoke();  // because this member wants to
  void close();
  bool is_closed() const { return closed_.load(); }

  void on_death(int rank) noexcept override;

 private:
  struct Slot;
  struct Board;

  static uint64_t slot_bytes(int num_members);
  Slot& slot(int member) const;
  static void ring(Slot& slot) noexcept;
  Error await(int member, const Call& call);
  Error sleep_for(int member, const Call& call);
  Error why_revoked(const Call& call, double elapsed) const;
  Error why_ended(const Call& call, double elapsed) const;
  Error stalled(const Call& call, double elapsed);
  std::vector<int> late_members() const;
  bool has_reached(uint32_t word) const;
  bool look(Vigil& vigil, const Call& call, Recorder::LongWait& recorded);
  void end(Reason reason, int member) noexcept;
  static void end_board(const Arena& arena, uint64_t board, int num_members, Reason reason,
                        int who) noexcept;
  static void name_cause(const Arena& arena, uint64_t board, Reason reason, int who) noexcept;
  static Slot& slot_of(const Arena& arena, uint64_t board, uint64_t bytes, int member);

  std::shared_ptr<Arena> arena_;
  std::shared_ptr<Liveness> liveness_;
  uint64_t board_offset_;
  Board* board_;
  std::vector<int> ranks_;
  uint64_t slot_bytes_;
  int me_;
  bool owns_board_;
  Waiting waiting_;
  Hooks* hooks_;

  const ForkMark fork_mark_;
  std::mutex mutex_;
  std::atomic<bool> closed_{false};
  uint32_t num_posts_ = 0;
  uint64_t num_calls_ = 0;
  uint64_t staging_ = no_offset;
  uint64_t staging_bytes_ = 0;
  std::vector<const void*> pointers_;
  std::atomic<bool> is_spinning_{true};
  std::atomic<bool> is_leaving_{false};
};

}  // namespace kadril
