// The conductor of one process set: takes named requests in any order, finds out what
// all members have asked for, and has it run. Each set has its own thread, so that a
// slow set holds up no other.
//
//     callers              the conductor's thread                        other members
//     submit() --inbox-->    sleep on the bell until there is work
//                            cycle: exchange messages of what is new  <------------>
//                                   ledger: what is ready everywhere
//                                   executor: run it                  <------------>
//     completion   <-----           finish the completions
//
// A member comes to a cycle when it has something new, or when it waits for something and another
// member comes. A member that has asked for nothing is not disturbed: the others wait for it inside
// the cycle, asleep. Where members cannot ring each other (no shared memory) one that waits comes
// again by itself, after a pause that doubles as long as nothing changes.
//
// Requests that never meet, such as an allreduce of "x" here and an allgather of "x"
// there, are no mistake as long as anybody may yet ask for the other half. Nobody does
// where every member is *stuck*:
//
//              a submitter wakes, or a thread submits for the first time
//        +------------------------------------------------------------------+
//        v                                                                  |
//      free  -- all submitters of the process are blocked on this set -->  stuck
//                                                                            |
//                 one cycle in which every member says "stuck", and nothing new
//                                                                            v
//                                            deadlock: all requests fail as a mismatch, on all
//
// A submitter is blocked when it has slept for a while on a request of this set that is not done;
// see `Waiters::stuck_from`. A member says that it is stuck in each of its messages without news,
// and comes to a cycle once to say so. So it is the last one to get stuck that finds all others
// stuck. Of members that may still compute or poll nothing is known: for them there is patience.
// Members that wait for each other in several sets of one host are found by waits.h.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "engine/eras.h"
#include "engine/executor.h"
#include "engine/lane.h"
#include "engine/ledger.h"
#include "engine/timeline.h"
#include "fork_mark.h"

namespace kadril {

struct ConductorOptions {
  double patience = 300;      // seconds a request waits for the other members
  double stall_warning = 10;  // seconds after which that is reported; 0 never
  FusionOptions fusion;
  size_t cache_capacity = 65536;  // names remembered
  std::vector<int> world_ranks;   // of each member
  std::shared_ptr<Submitters> submitters = Submitters::of_this_process();
};

class Conductor final {
 public:
  // What it has to say to a person, from its own thread.
  using Reporter = std::function<void(const std::string&)>;

  Conductor(std::unique_ptr<Lane> lane, ConductorOptions options, Reporter report);
  ~Conductor();

  // Take a request; it is done when its completion is. Misuse is an error here and now.
  Error submit(std::unique_ptr<Request> request);

  // Withdraw a request: it fails with `cancelled` unless all members have made it by the time they
  // hear of this. Its memory is in use until its completion is done; its name is free at once.
  void cancel(const std::shared_ptr<Completion>& completion);

  // Leave the set. Requests under way fail.
  void close();

  // Tell a person who waits for whom: in a cycle for these members, or at the bell for nobody in
  // particular. By the conductor's own thread, which may be in a call of its lane.
  void report_late(const std::vector<int>& members, bool stopped, double elapsed);

  void set_timeline(std::shared_ptr<Timeline> timeline, bool mark_cycles);

  int size() const { return lane_->size(); }
  int me() const { return lane_->me(); }
  uint64_t num_cycles() const { return num_cycles_.load(std::memory_order_relaxed); }
  int num_in_flight();  // requests that are not done
  // The stamp of a step of this member, for its descriptors; the caller's number is 0 for no step.
  Stamp stamp_of(uint64_t caller_step) { return eras_.of_step(caller_step); }
  // Deadlocks that were found: the same number on all members whose requests they ended.
  uint64_t num_deadlocks() const { return num_deadlocks_.load(); }

 private:
  // Of a request, which may have been served by the time that the others would hear of it.
  struct Cancellation {
    std::shared_ptr<Completion> completion;
    uint64_t next_step;  // the first one that began after it
  };

  void run() noexcept;
  Error fail_late(const Request& request);
  bool await_work();  // false at the end
  uint64_t become_quiet(bool has_pending);
  void stir();  // the caller holds the mutex
  void linger(uint32_t cycle);
  bool is_large(const Request& request) const;
  Error check_patience(Clock::time_point now);
  double seconds_to_sleep(Clock::time_point start, Clock::time_point now) const;
  std::vector<std::byte> next_message();
  void end_deadlock();
  void end_cancelled(const std::vector<std::unique_ptr<Request>>& requests);
  void end_stale(std::vector<Stale> requests);
  bool has_mail();
  std::vector<std::unique_ptr<Request>> take_untold();
  std::vector<Cancellation>::iterator find_cancelled(const Request& request);
  void end_era_of(const Cancellation& cancellation);
  Error cycle();
  Error exchange(const std::vector<std::byte>& mine, std::vector<std::vector<std::byte>>& all);
  void report(std::string text, const std::vector<std::string>& lines);
  void forget_name(Request& request);
  void fail_unserved(std::vector<Agreement>& agreements, const Failure& failure);
  void fail_all(std::shared_ptr<const Failure> failure);
  std::shared_ptr<Timeline> timeline();

  const ConductorOptions options_;
  const Reporter report_;
  const ForkMark fork_mark_;
  std::unique_ptr<Lane> lane_;
  const std::shared_ptr<Waiters> waiters_;
  Ledger ledger_;
  Executor executor_;

  std::mutex mutex_;       // guards the nine below
  uint64_t activity_ = 0;  // see channel.h
  uint32_t num_quiet_times_ = 0;
  std::vector<std::unique_ptr<Request>> inbox_;
  std::vector<Cancellation> cancelled_;  // told to the others in the next cycle
  std::vector<Untold> untold_;           // likewise, of which they have not heard
  std::unordered_set<std::string> in_flight_;
  std::shared_ptr<const Failure> failure_;  // why the set has ended
  std::shared_ptr<Timeline> timeline_;
  bool marks_cycles_ = false;

  std::atomic<bool> has_mail_{false};
  std::atomic<bool> has_large_mail_{false};  // some of it is too large to be fused
  std::atomic<bool> is_closing_{false};
  std::atomic<bool> has_ended_{false};
  std::atomic<uint64_t> num_cycles_{0};
  std::atomic<uint64_t> num_deadlocks_{0};
  Eras eras_;
  double pause_ = 0;  // before the next cycle without news
  Clock::time_point waiting_since_;
  double next_warning_ = 0;
  bool has_warned_of_clashes_ = false;
  bool has_said_stuck_ = false;  // in its last message
  std::vector<std::vector<std::byte>> messages_;
  std::vector<std::byte> blocks_;
  std::thread thread_;
};

}  // namespace kadril
