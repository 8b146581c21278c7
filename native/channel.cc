#include "channel.h"

#include <sched.h>

#include <algorithm>
#include <new>

#include "fault.h"
#include "futex.h"
#include "recorder.h"

namespace kadril {
namespace {

constexpr uint32_t revoked_bit = 1;
constexpr uint32_t closed_bit = 2;
constexpr uint32_t one_post = 4;

// Seconds asleep before a waiter looks around: at signals that came while it was not asleep yet, at
// first, and then at the peer.
constexpr double first_look_after = 0.05;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Why a channel ended, in one word so that the first reason wins by a single compare-and-swap.
uint64_t pack_cause(Reason reason, int member) {
  return uint64_t{1} << 63 | static_cast<uint64_t>(reason) << 32 | static_cast<uint32_t>(member);
}

}  // namespace

struct alignas(128) Channel::Slot {
  std::atomic<uint32_t> word;
  std::atomic<uint32_t> num_sleepers;
  std::atomic<int32_t> rank;  // in the arena, or -1 before the member has opened the channel
  // The bell of this member: see `await_ring`.
  alignas(64) std::atomic<uint32_t> num_rings;
  std::atomic<uint32_t> is_asleep;     // on the bell
  std::atomic<uint32_t> is_listening;  // to other members
  std::atomic<uint32_t> asked_cycle;
  std::atomic<uint64_t> activity;  // of the engine; 0 where there is none
  alignas(64) Posting postings[2];
};

struct alignas(128) Channel::Board {
  std::atomic<uint64_t> cause;
  Users users;
};

// A slot is followed by its two tables, whose size depends on the number of members.
uint64_t Channel::slot_bytes(int num_members) {
  const uint64_t tables = 2 * sizeof(Entry) * static_cast<uint64_t>(table_capacity(num_members));
  return sizeof(Slot) + (tables + alignof(Slot) - 1) / alignof(Slot) * alignof(Slot);
}

uint64_t Channel::board_bytes(int num_members) {
  return sizeof(Board) + slot_bytes(num_members) * static_cast<uint64_t>(num_members);
}

void Channel::format(Arena& arena, uint64_t offset, int num_members) {
  // Not constructed anew: the count of users goes on from board to board.
  auto board = reinterpret_cast<Board*>(arena.at(offset));
  for (int member = 0; member < num_members; ++member) {
    auto slot = reinterpret_cast<Slot*>(arena.at(offset) + sizeof(Board) +
                                        slot_bytes(num_members) * static_cast<uint64_t>(member));
    new (&slot->word) std::atomic<uint32_t>(0);
    new (&slot->num_sleepers) std::atomic<uint32_t>(0);
    new (&slot->rank) std::atomic<int32_t>(-1);
    new (&slot->num_rings) std::atomic<uint32_t>(0);
    new (&slot->is_asleep) std::atomic<uint32_t>(0);
    new (&slot->is_listening) std::atomic<uint32_t>(0);
    new (&slot->asked_cycle) std::atomic<uint32_t>(0);
    new (&slot->activity) std::atomic<uint64_t>(0);
  }
  board->cause.store(0);
  board->users.reset(static_cast<uint32_t>(num_members));
}

Channel::Channel(std::shared_ptr<Arena> arena, std::shared_ptr<Liveness> liveness, uint64_t board,
                 std::vector<int> ranks, int me, bool owns_board, Waiting waiting, Hooks* hooks)
    : arena_(std::move(arena)),
      liveness_(std::move(liveness)),
      board_offset_(board),
      board_(reinterpret_cast<Board*>(arena_->at(board))),
      ranks_(std::move(ranks)),
      slot_bytes_(slot_bytes(num_members())),
      me_(me),
      owns_board_(owns_board),
      waiting_(waiting),
      hooks_(hooks),
      pointers_(ranks_.size()) {
  slot(me_).rank.store(ranks_[static_cast<size_t>(me_)], std::memory_order_release);
  liveness_->add(this);
  for (const int rank : ranks_) {
    if (liveness_->is_dead(rank)) on_death(rank);  // died before we listened
  }
}

Channel::~Channel() { close(); }

Channel::Slot& Channel::slot(int member) const {
  return *reinterpret_cast<Slot*>(reinterpret_cast<std::byte*>(board_) + sizeof(Board) +
                                  slot_bytes_ * static_cast<uint64_t>(member));
}

Channel::Slot& Channel::slot_of(const Arena& arena, uint64_t board, uint64_t bytes, int member) {
  return *reinterpret_cast<Slot*>(arena.at(board) + sizeof(Board) +
                                  bytes * static_cast<uint64_t>(member));
}

Entry* Channel::table(int member) const {
  auto tables = reinterpret_cast<Entry*>(&slot(member) + 1);
  return tables + parity() * static_cast<uint64_t>(table_capacity(num_members()));
}

Posting& Channel::posting(int member) const { return slot(member).postings[parity()]; }

Error Channel::check_usable(const Call& call) {
  if (fork_mark_.is_in_child()) return fail(Reason::forked);
  if (closed_.load()) return fail(Reason::closed);
  if (slot(me_).word.load(std::memory_order_acquire) & revoked_bit) return why_revoked(call, 0);
  return nullptr;
}

void Channel::post() {
  ++num_posts_;
  Slot& mine = slot(me_);
  // Sequentially consistent, as is a sleeper's announcement: either it sees the post
  // or we see the sleeper.
  mine.word.fetch_add(one_post, std::memory_order_seq_cst);
  if (mine.num_sleepers.load(std::memory_order_seq_cst) > 0) futex_wake_all(mine.word);
}

bool Channel::has_reached(uint32_t word) const {
  const uint32_t ahead = (word & ~(revoked_bit | closed_bit)) - num_posts_ * one_post;
  return static_cast<int32_t>(ahead) >= 0;  // also across the wrap-around
}

Error Channel::meet(const Call& call) {
  post();
  return await_all(call);
}

Error Channel::await_all(const Call& call) {
  fault::hit(call.kind, Phase::wait);
  for (int member = 0; member < num_members(); ++member) {
    if (member == me_ || has_reached(slot(member).word.load(std::memory_order_acquire))) continue;
    if (auto error = await(member, call)) return error;
  }
  return nullptr;
}

Error Channel::await(int member, const Call& call) {
  const std::atomic<uint32_t>& word = slot(member).word;
  const bool is_spinning = is_spinning_.load(std::memory_order_relaxed);
  const int num_spins = is_spinning ? waiting_.num_spins : 0;
  const int num_yields = is_spinning ? waiting_.num_yields : 0;
  for (int i = 0; i < num_spins; ++i) {
    const uint32_t seen = word.load(std::memory_order_acquire);
    if (has_reached(seen)) return nullptr;
    if (seen & (revoked_bit | closed_bit)) break;
    relax();
  }
  for (int i = 0; i < num_yields; ++i) {
    const uint32_t seen = word.load(std::memory_order_acquire);
    if (has_reached(seen)) return nullptr;
    if (seen & (revoked_bit | closed_bit)) break;
    sched_yield();
  }
  return sleep_for(member, call);
}

// One look of a thread that waits; true where the channel was ended for a deadlock.
bool Channel::look(Vigil& vigil, const Call& call, Recorder::LongWait& recorded) {
  Standpoint standpoint;
  vigil.begin();
  if (!hooks_ || !hooks_->describe(call, standpoint)) {
    vigil.withdraw();
    return false;
  }
  recorded.tell(standpoint.text, first_look_after);
  WaitTarget target;
  target.board = board_offset_;
  target.num_members = static_cast<uint32_t>(num_members());
  target.me = static_cast<uint32_t>(me_);
  target.count = num_posts_;
  return vigil.look(target, standpoint);
}

Error Channel::sleep_for(int member, const Call& call) {
  Slot& peer = slot(member);
  const auto start = Clock::now();
  double warn_at = waiting_.warn_after;
  double look_after = first_look_after;
  Vigil vigil(arena_, arena_rank());
  Recorder::LongWait recorded;
  while (true) {
    peer.num_sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = peer.word.load(std::memory_order_seq_cst);
    const bool must_wait = !has_reached(seen) && !(seen & (revoked_bit | closed_bit));
    Wake wake = Wake::changed;
    if (must_wait) {
      const double left = waiting_.patience - seconds_since(start);
      wake = futex_wait(peer.word, seen, std::clamp(left, 0.0, look_after));
    }
    peer.num_sleepers.fetch_sub(1, std::memory_order_relaxed);
    if (is_leaving_.load()) return fail(Reason::closed, call.text());
    if (!must_wait) {
      if (has_reached(seen)) return nullptr;
      if (seen & revoked_bit) return why_ended(call, seconds_since(start));
      return give_up(Reason::peer_left, member, call, seconds_since(start));
    }
    // Also after a time-out: the signal may have come before the sleep.
    if (wake != Wake::changed && hooks_ && hooks_->interrupted()) {
      return give_up(Reason::interrupted, me_, call, seconds_since(start));
    }
    if (wake != Wake::timed_out) continue;
    for (const int late : late_members()) {
      liveness_->notice_killed(ranks_[static_cast<size_t>(late)]);
    }
    if (look(vigil, call, recorded)) return why_ended(call, seconds_since(start));
    look_after = vigil.pause();
    const double elapsed = seconds_since(start);
    if (elapsed >= waiting_.patience) return stalled(call, elapsed);
    if (elapsed >= warn_at) {
      warn_at *= 2;
      if (hooks_)
        hooks_->late(call, late_members(), liveness_->is_stopped(ranks_[member]), elapsed);
    }
  }
}

// All sequentially consistent: either the sleeper sees what was done before the ring, or whoever
// rings sees the sleeper.
void Channel::ask_for(uint32_t cycle) {
  slot(me_).asked_cycle.store(cycle);
  for (int member = 0; member < num_members(); ++member) {
    if (member != me_ && slot(member).is_listening.load()) ring(slot(member));
  }
}

bool Channel::is_asked_for(uint32_t cycle) const {
  for (int member = 0; member < num_members(); ++member) {
    const Slot& theirs = slot(member);
    if (theirs.word.load() & (revoked_bit | closed_bit)) return true;
    if (member != me_ && static_cast<int32_t>(theirs.asked_cycle.load() - cycle) >= 0) return true;
  }
  return false;
}

uint32_t Channel::num_rings() const { return slot(me_).num_rings.load(); }

void Channel::ring(Slot& slot) noexcept {
  slot.num_rings.fetch_add(1);
  if (slot.is_asleep.load()) futex_wake_all(slot.num_rings);
}

void Channel::ring_self() { ring(slot(me_)); }

void Channel::await_ring(uint32_t seen, double seconds) {
  Slot& mine = slot(me_);
  mine.is_asleep.store(1);
  if (mine.num_rings.load() == seen) futex_wait(mine.num_rings, seen, seconds);
  mine.is_asleep.store(0);
}

void Channel::listen(bool on) { slot(me_).is_listening.store(on); }

void Channel::show_activity(uint64_t activity) { slot(me_).activity.store(activity); }

void Channel::leave_call() noexcept {
  is_leaving_.store(true);
  for (int member = 0; member < num_members(); ++member) futex_wake_all(slot(member).word);
}

void Channel::release_when_unused(uint64_t offset, uint64_t bytes) {
  if (fork_mark_.is_in_child()) return;
  arena_->release_when_unused(ranks_[static_cast<size_t>(me_)], offset, bytes, &board_->users);
}

std::vector<int> Channel::late_members() const {
  std::vector<int> late;
  for (int member = 0; member < num_members(); ++member) {
    if (member != me_ && !has_reached(slot(member).word.load())) late.push_back(member);
  }
  return late;
}

Error Channel::stalled(const Call& call, double elapsed) {
  auto late = late_members();
  if (late.empty()) return nullptr;  // the last one came just now
  // A stopped member explains why others that wait for it are late too.
  int culprit = late.front();
  for (const int member : late) {
    if (liveness_->is_stopped(ranks_[member])) {
      culprit = member;
      break;
    }
  }
  auto error = give_up(Reason::stalled, culprit, call, elapsed);
  error->late = std::move(late);
  return error;
}

Error Channel::give_up(Reason reason, int member, const Call& call, double elapsed) {
  end(reason, member);
  auto error = why_ended(call, elapsed);
  // The member that was interrupted raises its own interruption, not the revocation it caused.
  if (reason == Reason::interrupted) error->reason = reason;
  return error;
}

Error Channel::why_revoked(const Call& call, double elapsed) const {
  const uint64_t cause = board_->cause.load(std::memory_order_acquire);
  auto error = fail(static_cast<Reason>(cause >> 32 & 0xff), call.text(), static_cast<int>(cause));
  error->elapsed = elapsed;
  if (error->reason == Reason::interrupted) error->reason = Reason::revoked;
  if (error->reason == Reason::deadlock) {
    error->calls = Waits::read_verdict(*arena_, error->member);
    error->member = -1;
  }
  if (error->reason == Reason::stalled) {
    const int rank = ranks_[static_cast<size_t>(error->member)];
    error->stopped = liveness_->is_stopped(rank);
    error->late = {error->member};
    error->calls = Waits::read_waits(*arena_, rank);
  }
  return error;
}

// Why a call under way ends. Every member has been in all calls before it.
Error Channel::why_ended(const Call& call, double elapsed) const {
  auto error = why_revoked(call, elapsed);
  if (error->reason == Reason::stalled && num_calls_ > 1) {
    error->num_common = num_calls_ - 1;
    error->last_common = slot(me_).postings[parity() ^ 1].call.text();
  }
  return error;
}

void Channel::end(Reason reason, int member) noexcept {
  end_board(*arena_, board_offset_, num_members(), reason, member);
}

void Channel::end_board(const Arena& arena, uint64_t board, int num_members, Reason reason,
                        int who) noexcept {
  name_cause(arena, board, reason, who);
  const uint64_t bytes = slot_bytes(num_members);
  for (int i = 0; i < num_members; ++i) {
    Slot& each = slot_of(arena, board, bytes, i);
    each.word.fetch_or(revoked_bit, std::memory_order_seq_cst);
    futex_wake_all(each.word);
    ring(each);
  }
}

// Only the first one counts.
void Channel::name_cause(const Arena& arena, uint64_t board, Reason reason, int who) noexcept {
  uint64_t none = 0;
  reinterpret_cast<Board*>(arena.at(board))
      ->cause.compare_exchange_strong(none, pack_cause(reason, who));
}

std::vector<int> Channel::late_ranks(const Arena& arena, const WaitTarget& target,
                                     QuietEngines& quiet) {
  std::vector<int> late;
  const uint64_t bytes = slot_bytes(static_cast<int>(target.num_members));
  const auto is_late = [&](const Slot& theirs, uint32_t member, uint32_t word) {
    if (target.kind == WaitKind::meeting) {
      return static_cast<int32_t>(word - target.count * one_post) < 0;
    }
    const uint64_t activity = theirs.activity.load();
    if (!Activity::is_quiet(activity) || Activity::num_cycles(activity) != target.count) {
      return false;
    }
    const bool misses =
        target.kind == WaitKind::cycle ? !Activity::has_pending(activity) : target.misses(member);
    if (misses) quiet.add(theirs.activity, activity);
    return misses;
  };
  for (uint32_t member = 0; member < target.num_members; ++member) {
    const Slot& theirs = slot_of(arena, target.board, bytes, static_cast<int>(member));
    const uint32_t word = theirs.word.load(std::memory_order_seq_cst);
    if (word & (revoked_bit | closed_bit)) return {};
    const int rank = theirs.rank.load(std::memory_order_acquire);
    if (member != target.me && rank >= 0 && is_late(theirs, member, word)) late.push_back(rank);
  }
  return late;
}

std::vector<int> Channel::ranks_of(const Arena& arena, uint64_t board, uint32_t num_members) {
  std::vector<int> ranks;
  const uint64_t bytes = slot_bytes(static_cast<int>(num_members));
  for (int member = 0; member < static_cast<int>(num_members); ++member) {
    ranks.push_back(slot_of(arena, board, bytes, member).rank.load(std::memory_order_acquire));
  }
  return ranks;
}

void Channel::end_deadlocked(const Arena& arena, const std::vector<Deadlock::Place>& boards,
                             int rank) noexcept {
  // On all of them first: a rank that the end of one has woken may close another one at once, and
  // whoever waits for it there is to learn of the deadlock, not that it left.
  for (const auto& [board, _] : boards) name_cause(arena, board, Reason::deadlock, rank);
  for (const auto& [board, num_members] : boards) {
    end_board(arena, board, static_cast<int>(num_members), Reason::deadlock, rank);
  }
}

void Channel::revoke() {
  if (!fork_mark_.is_in_child() && !closed_.load()) end(Reason::revoked, me_);
}

void Channel::on_death(int rank) noexcept {
  const auto member = std::find(ranks_.begin(), ranks_.end(), rank);
  if (member == ranks_.end()) return;
  arena_->quarantine();
  end(Reason::peer_lost, static_cast<int>(member - ranks_.begin()));
}

Error Channel::allocate_staging(uint64_t bytes) {
  if (staging_ != no_offset) return nullptr;
  if (auto error = arena_->allocate(ranks_[static_cast<size_t>(me_)], bytes, staging_)) {
    error->member = me_;
    staging_ = no_offset;
    return error;
  }
  staging_bytes_ = bytes;
  return nullptr;
}

void Channel::close() {
  if (closed_.exchange(true)) return;
  liveness_->remove(this);
  // A child has the parent's memory, and must not say that the parent left.
  if (fork_mark_.is_in_child()) return;
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {  // another thread is in a call: end it
    end(Reason::revoked, me_);
    lock.lock();
  }
  Slot& mine = slot(me_);
  mine.word.fetch_or(closed_bit, std::memory_order_seq_cst);
  futex_wake_all(mine.word);
  for (int member = 0; member < num_members(); ++member) ring(slot(member));
  const int rank = ranks_[static_cast<size_t>(me_)];
  // Peers may still be reading what this member staged for the last call.
  if (staging_ != no_offset) {
    arena_->release_when_unused(rank, staging_, staging_bytes_, &board_->users);
  }
  if (owns_board_) {
    arena_->release_board(rank, board_offset_, board_bytes(num_members()), &board_->users);
  }
  board_->users.remove_one();
}

}  // namespace kadril
