// Ranks that wait for each other in several process sets: found where they do, and nowhere else.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>

#include "engine/blocked_wait.h"
#include "engine/conductor.h"
#include "engine/shm_lane.h"
#include "harness.h"

using namespace kadril;
using test::World;

namespace {

constexpr std::chrono::milliseconds several_proofs{1500};

enum Set { all, pair, num_sets };

// Conductors of three ranks in the set of all, and of ranks 0 and 1 in another one.
class Stage {
 public:
  Stage() {
    uint64_t board;
    CHECK_OK(world_.arena()->allocate_board(0, Channel::board_bytes(2), board));
    Channel::format(*world_.arena(), board, 2);
    for (int rank = 0; rank < 3; ++rank) {
      submitters_.push_back(std::make_shared<Submitters>());
      add(world_.channel(rank), rank, all, {0, 1, 2});
      if (rank == 2) continue;
      channels_.push_back(std::make_unique<Channel>(world_.arena(), world_.liveness(), board,
                                                    std::vector<int>{0, 1}, rank, rank == 0,
                                                    Waiting{20, 10, 0, 0}, nullptr));
      add(*channels_.back(), rank, pair, {0, 1});
    }
  }

  std::shared_ptr<Completion> ask(int rank, Set set, const std::string& name) {
    auto request = std::make_unique<Request>();
    request->descriptor.verb = Verb::barrier;
    request->descriptor.name = name;
    request->completion = std::make_shared<Completion>();
    auto completion = request->completion;
    auto& conductor = *conductors_[static_cast<size_t>(rank)][set];
    if (auto error = conductor.submit(std::move(request))) completion->finish(std::move(error));
    return completion;
  }

  // As a thread does that has nothing else to do, of a rank with that many threads.
  static const Failure* await(const std::shared_ptr<Completion>& completion, int rank,
                              int num_threads = 1) {
    if (!completion->wait(0.05)) {
      BlockedWait blocked(completion, "here", 10 + rank, 0.05);
      while (!blocked.wait(10, {num_threads, num_threads})) {
      }
    }
    return completion->failure();
  }
  const Failure* call(int rank, Set set, const std::string& name, int num_threads = 1) {
    kept_[static_cast<size_t>(rank)] = ask(rank, set, name);
    return await(kept_[static_cast<size_t>(rank)], rank, num_threads);
  }

  template <typename Body>
  void run(Body body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) threads.emplace_back([&, rank] { body(rank); });
    for (auto& thread : threads) thread.join();
  }

 private:
  void add(Channel& channel, int rank, Set set, std::vector<int> ranks) {
    ConductorOptions options;
    options.patience = 20;
    options.world_ranks = std::move(ranks);
    options.submitters = submitters_[static_cast<size_t>(rank)];
    conductors_[static_cast<size_t>(rank)][set] = std::make_unique<Conductor>(
        std::make_unique<ShmLane>(channel, rank), options, [](const std::string&) {});
  }

  World world_{3, {20, 10, 0, 0}};
  std::vector<std::shared_ptr<Submitters>> submitters_;  // ranks are processes elsewhere
  std::vector<std::unique_ptr<Channel>> channels_;
  std::array<std::shared_ptr<Completion>, 3> kept_;
  std::array<std::array<std::unique_ptr<Conductor>, num_sets>, 3> conductors_;
};

// Ranks 0 and 1 wait for each other under these names. Rank 2 waits for them; where it comes to that
// later than they are found it is told that its set has ended.
void check_deadlock(const Failure* failure, const std::string& first, const std::string& second) {
  CHECK(failure && failure->reason == Reason::deadlock);
  const auto& lines = failure->calls;
  CHECK(lines.size() == 2 || lines.size() == 3);
  CHECK(lines[0] == "rank 10 waits for rank 11 in barrier(name='" + first + "') here");
  CHECK(lines[1].starts_with("rank 11 waits for rank"));
  CHECK(lines[1].find("10") != std::string::npos);
  CHECK(lines[1].ends_with(" in barrier(name='" + second + "') here"));
  CHECK(lines.size() == 2 || lines[2].starts_with("rank 12 waits for rank"));
}

// Rank 0 has asked for nothing among all: the engines of the others are in a cycle, and wait for it.
void members_that_have_not_come() {
  Stage stage;
  const auto start = Clock::now();
  stage.run([&](int rank) {
    const Failure* failure = rank == 0 ? stage.call(0, pair, "x") : stage.call(rank, all, "y");
    check_deadlock(failure, "x", "y");
  });
  CHECK(Clock::now() - start < std::chrono::seconds(8));
}

// All have asked for something in each set, and all engines are asleep.
void members_that_have_asked_for_something_else() {
  Stage stage;
  stage.run([&](int rank) {
    const auto early = stage.ask(rank, all, "early" + std::to_string(rank));
    if (rank < 2) static_cast<void>(stage.ask(rank, pair, "early" + std::to_string(rank)));
    const Failure* failure = rank == 0 ? stage.call(0, pair, "x") : stage.call(rank, all, "y");
    check_deadlock(failure, "x", "y");
    while (!early->wait(10)) {
    }
    CHECK(early->failure());
  });
}

// Rank 1 waits among all, and has asked, or its other thread will, for what rank 0 waits for.
void what_was_asked_for_or_will_be_is_none(bool has_asked, bool is_known_to_submit) {
  Stage stage;
  const auto sleep = [] { std::this_thread::sleep_for(several_proofs); };
  std::atomic<bool> is_ready{has_asked || !is_known_to_submit};
  std::thread other([&] {
    if (has_asked) return;
    if (is_known_to_submit) CHECK(!stage.await(stage.ask(1, pair, "first"), 1, 2));
    is_ready = true;
    sleep();
    CHECK(!stage.await(stage.ask(1, pair, "x"), 1, 2));
  });
  stage.run([&](int rank) {
    if (rank == 0) {
      if (!has_asked && is_known_to_submit) CHECK(!stage.call(0, pair, "first"));
      CHECK(!stage.call(0, pair, "x"));
      if (has_asked) sleep();
      CHECK(!stage.call(0, all, "y"));
      return;
    }
    std::shared_ptr<Completion> early;
    if (rank == 1 && has_asked) early = stage.ask(1, pair, "x");
    while (rank == 1 && !is_ready) std::this_thread::yield();
    CHECK(!stage.call(rank, all, "y", rank == 1 && !has_asked && !is_known_to_submit ? 2 : 1));
    if (early) CHECK(!stage.await(early, rank));
  });
  other.join();
}

// Rank 0 has what it asked for and goes on to wait in the other set, again and again, while the
// others may be asleep still, or at work on what it has already: no sleeper is deadlocked then.
void ranks_that_are_served_one_after_the_other_are_none() {
  Stage stage;
  stage.run([&](int rank) {
    for (int turn = 0; turn < 6; ++turn) {
      const std::string name = std::to_string(turn);
      if (turn % 3 == rank) std::this_thread::sleep_for(std::chrono::milliseconds(400));
      if (rank < 2) CHECK(!stage.call(rank, pair, name));
      CHECK(!stage.call(rank, all, name));
    }
  });
}

// A set whose members all wait within it tells so by itself, and goes on; whoever waits for them in
// another set is served then.
void a_mismatch_within_a_set_is_left_to_it() {
  Stage stage;
  stage.run([&](int rank) {
    if (rank < 2) {
      const Failure* failure = stage.call(rank, pair, "only " + std::to_string(rank));
      CHECK(failure && failure->reason == Reason::mismatch);
      CHECK(!stage.call(rank, pair, "both"));
    }
    CHECK(!stage.call(rank, all, "y"));
  });
}

// Two members wait for each other, and the third one, which has asked for something too, comes late
// to do the same: the set tells all three, and goes on.
void a_member_that_may_get_stuck_is_waited_for() {
  Stage stage;
  stage.run([&](int rank) {
    const auto early = stage.ask(rank, all, "early " + std::to_string(rank));
    if (rank == 2) std::this_thread::sleep_for(several_proofs);
    const Failure* failure = stage.call(rank, all, "only " + std::to_string(rank));
    CHECK(failure && failure->reason == Reason::mismatch);
    CHECK(!stage.call(rank, all, "all"));
    CHECK(early->failure()->reason == Reason::mismatch);
  });
}

// Ranks 1 and 2 wait for each other among all; rank 0 waits for one of them elsewhere, so that no
// engine ever finds all members stuck.
void a_mismatch_that_no_set_can_tell_is_a_deadlock() {
  Stage stage;
  stage.run([&](int rank) {
    const auto early = stage.ask(rank, all, "early " + std::to_string(rank));
    if (rank < 2) static_cast<void>(stage.ask(rank, pair, "early " + std::to_string(rank)));
    const Failure* failure = rank == 0 ? stage.call(0, pair, "only 0")
                                       : stage.call(rank, all, "only " + std::to_string(rank));
    check_deadlock(failure, "only 0", "only 1");
  });
}

}  // namespace

int main() {
  members_that_have_not_come();
  members_that_have_asked_for_something_else();
  what_was_asked_for_or_will_be_is_none(true, false);
  what_was_asked_for_or_will_be_is_none(false, true);
  what_was_asked_for_or_will_be_is_none(false, false);
  ranks_that_are_served_one_after_the_other_are_none();
  a_mismatch_within_a_set_is_left_to_it();
  a_member_that_may_get_stuck_is_waited_for();
  a_mismatch_that_no_set_can_tell_is_a_deadlock();
}
