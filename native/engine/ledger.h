// The ledger: which member has asked for what. Every member keeps one, reads the same messages in
// the same order, and so comes to the same conclusions: what is ready, what does not fit together,
// and which number stands for a name that was used before.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/met_steps.h"
#include "engine/request.h"
#include "failure.h"

namespace kadril {

// One name, for as long as it is remembered.
struct LedgerEntry {
  uint32_t id = 0;
  std::string key;
  std::vector<Descriptor> said;  // by member: the last request under this name
  std::vector<bool> has_said;    // whether `said` was ever filled
  std::vector<bool> is_present;  // whether it waits to be served
  // By member: the first era of which it may still ask for this. Requests of others that are of an
  // earlier one will never be met.
  std::vector<uint64_t> first_era;
  std::vector<uint64_t> last_step;  // by member: that asked for this last, see met_steps.h
  int num_present = 0;
  uint64_t last_used = 0;
  Clock::time_point since;        // when the first member asked
  std::unique_ptr<Request> mine;  // of this member, while it waits
};

// A request that all members have made.
struct Agreement {
  LedgerEntry* entry = nullptr;
  std::unique_ptr<Request> mine;  // null where this member has joined
  std::string problem;            // why it cannot be served; empty where it can
  size_t num_unserved = 0;        // tensors of it, while it is served
  const Descriptor& any() const;  // of some member that made it
};

// A request of this member that will never be met: another member has withdrawn its own, or asks for
// the same in a later era.
struct Stale {
  std::unique_ptr<Request> mine;
  int member = -1;  // the other one
};

// A request that is withdrawn before the others have heard of it: they do all the same, if it is of
// a step, since theirs of that step will not be met.
struct Untold {
  std::string key;
  Stamp stamp;
};

class Ledger {
 public:
  Ledger(int num_members, int me, size_t capacity);

  // Whether the request of this completion was told, and waits for other members.
  bool waits_for(const Completion* completion) const;

  // Which members have not asked for the same as the request of this completion, nor joined, as bits
  // by their number. False where it was not told, or there are too many members.
  bool find_missing(const Completion& completion, Waiters::Members& missing) const;

  // Write the message by which the others learn of these requests, and that the requests of these
  // completions, made before, are withdrawn. One that was served meanwhile is passed over.
  void write(std::vector<std::unique_ptr<Request>> requests,
             const std::vector<std::shared_ptr<Completion>>& withdrawn,
             const std::vector<Untold>& untold, std::vector<std::byte>& message);

  // Write the message by which the others learn that this member is stuck: that it asks for nothing
  // more before the request of this completion is done. Nothing where there is no such request.
  void write_stuck(const Completion* completion, std::vector<std::byte>& message) const;

  // Read the messages of all members, the own included, and append what has become ready. False
  // where a message makes no sense.
  bool read(std::span<const std::vector<std::byte>> messages, std::vector<Agreement>& ready);

  // This member's requests whose withdrawal all members have read, given back.
  std::vector<std::unique_ptr<Request>> take_withdrawn();
  // This member's requests that were found stale.
  std::vector<Stale> take_stale();
  // The first era in which nothing was refused or withdrawn: the same for all members.
  uint64_t era() const { return era_; }
  // From which step on this member is of a later era than it knew; zeros where there is none.
  const Stamp& promotion() const { return promotions_[static_cast<size_t>(me_)]; }

  // Whether there was a request among the messages read last, and whether all members said in them
  // that they are stuck, so that none of what they wait for can come.
  bool has_news() const { return has_news_; }
  bool is_deadlocked() const { return num_stuck_ == num_members_; }
  // What each member is stuck on, and why that is no agreement.
  Error describe_deadlock() const;
  // Forget all that was asked for and not served, of all members, and give this member's requests
  // back. Names keep their numbers. By all members at the same message.
  std::vector<std::unique_ptr<Request>> dissolve();

  // After the agreements were served: forget names beyond the capacity.
  void forget_old();

  bool has_pending() const { return num_mine_ > 0 || join_ != nullptr; }
  // Everything this member waits for, taken out.
  std::vector<std::unique_ptr<Request>> take_pending();
  // A member that the oldest request waits for; another one than this where that is known.
  int first_missing() const;
  // Lines that say who waits for whom, oldest first.
  std::vector<std::string> describe_pending(std::span<const int> world_ranks,
                                            Clock::time_point now) const;
  // Lines for each name that some members use for one kind of request and others for another.
  std::vector<std::string> describe_name_clashes(std::span<const int> world_ranks) const;

 private:
  LedgerEntry& find_or_make(const std::string& key);
  LedgerEntry* find_mine(const Completion* completion) const;  // null where there is none
  void mark_present(LedgerEntry& entry, int member, std::vector<Agreement>& ready);
  bool is_complete(const LedgerEntry& entry) const;
  void close_entry(LedgerEntry& entry, std::vector<Agreement>& ready);
  void mark_joined(int member);
  bool read_one(int member, std::span<const std::byte> message, std::vector<Agreement>& ready);
  bool is_stuck_on_pending() const;  // all members, each on something it has asked for
  std::vector<const LedgerEntry*> pending() const;  // of any member, oldest first
  bool read_withdrawals(int member, Reader& reader);
  void withdraw_era(LedgerEntry& entry, int member, const Stamp& stamp);
  uint64_t era_of(int member, const Stamp& stamp) const;
  struct Later {
    int member = -1;
    uint64_t step = 0;  // by which it was found to have gone on; 0 where it said so
  };
  Later find_later(const LedgerEntry& entry, size_t member) const;
  void end_steps(const LedgerEntry& entry, size_t member, const Stamp& ended);
  void promote(size_t member, const Stamp& from);
  void drop_stale(LedgerEntry& entry);
  void end_eras(const LedgerEntry& entry);
  void settle_joins(std::vector<Agreement>& ready);
  void drop(LedgerEntry& entry);

  const int num_members_;
  const int me_;
  const size_t capacity_;
  std::vector<std::unique_ptr<LedgerEntry>> entries_;  // by id
  std::vector<uint32_t> free_ids_;
  std::unordered_map<std::string, uint32_t> ids_;
  uint64_t num_agreements_ = 0;
  size_t num_mine_ = 0;
  std::vector<std::unique_ptr<Request>> sent_;  // whole descriptors under way, in order
  std::vector<std::unique_ptr<Request>> withdrawn_;
  std::vector<Stale> stale_;
  uint64_t era_ = 1;
  MetSteps met_;
  std::vector<Stamp> promotions_;  // by member: the last
  std::vector<uint32_t> unnamed_;  // served, and never to be used again

  std::vector<bool> joined_;
  int num_joined_ = 0;
  int last_joined_ = -1;
  bool joins_changed_ = false;
  std::unique_ptr<Request> join_;  // of this member

  bool has_news_ = false;
  int num_stuck_ = 0;
  std::vector<uint32_t> stuck_on_;  // by member: the number of a name, or `join_id`
};

}  // namespace kadril
