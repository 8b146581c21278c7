// Deadlocks across channels: found where they are, and nowhere else.
#include "waits.h"

#include <atomic>
#include <chrono>
#include <string>

#include "harness.h"

using namespace kadril;
using test::World;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Describes each rank, which is one thread here, as one with some number of threads.
class Described final : public Hooks {
 public:
  Described(int name, int num_threads, std::string group)
      : name_(name), num_threads_(num_threads), group_(std::move(group)) {}
  bool describe(const Call& call, Standpoint& standpoint) noexcept override {
    standpoint = {num_threads_.load(), name_, call.text() + " of " + group_};
    return true;
  }
  void set_num_threads(int count) { num_threads_ = count; }

 private:
  const int name_;
  std::atomic<int> num_threads_;
  const std::string group_;
};

// The world's channel of three ranks, and one of ranks 0 and 1.
struct Stage {
  World world{3, {20, 10, 0, 0}};
  std::vector<std::unique_ptr<Described>> hooks;
  std::vector<std::unique_ptr<Channel>> pair;

  Stage() {
    uint64_t board;
    CHECK_OK(world.arena()->allocate_board(0, Channel::board_bytes(2), board));
    Channel::format(*world.arena(), board, 2);
    for (int rank = 0; rank < 3; ++rank) {
      hooks.push_back(std::make_unique<Described>(10 + rank, 1, "all"));
      world.channel(rank).set_hooks(hooks.back().get());
    }
    for (int rank = 0; rank < 2; ++rank) {
      hooks.push_back(std::make_unique<Described>(10 + rank, 1, "pair"));
      pair.push_back(std::make_unique<Channel>(world.arena(), world.liveness(), board,
                                               std::vector<int>{0, 1}, rank, rank == 0,
                                               Waiting{20, 10, 0, 0}, hooks.back().get()));
    }
  }
  void set_num_threads(int rank, int count) {
    hooks[static_cast<size_t>(rank)]->set_num_threads(count);
    if (rank < 2) hooks[static_cast<size_t>(3 + rank)]->set_num_threads(count);
  }
};

bool has(const Failure& failure, const std::string& line) {
  for (const std::string& each : failure.calls) {
    if (each == line) return true;
  }
  return false;
}

void a_cycle_across_two_channels_is_told_to_all() {
  Stage stage;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto start = Clock::now();
      auto error = rank == 0 ? barrier(*stage.pair[0], {}) : barrier(stage.world.channel(rank), {});
      CHECK(error && error->reason == Reason::deadlock);
      CHECK(seconds_since(start) < 1);
      CHECK(error->calls.size() == 3);
      CHECK(has(*error, "rank 10 waits for rank 11 in barrier() of pair"));
      CHECK(has(*error, "rank 11 waits for rank 10 in barrier() of all"));
      CHECK(has(*error, "rank 12 waits for rank 10 in barrier() of all"));
    });
  }
  for (auto& thread : threads) thread.join();
}

// Both late for longer than any look takes.
void a_rank_that_computes_or_has_another_thread_is_none(bool has_thread) {
  Stage stage;
  if (has_thread) stage.set_num_threads(1, 2);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    CHECK_OK(barrier(*stage.pair[1], {}));
    if (!has_thread) CHECK_OK(barrier(stage.world.channel(1), {}));
  });
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    CHECK_OK(barrier(*stage.pair[0], {}));
    CHECK_OK(barrier(stage.world.channel(0), {}));
  });
  threads.emplace_back([&] { CHECK_OK(barrier(stage.world.channel(2), {})); });
  if (has_thread) threads.emplace_back([&] { CHECK_OK(barrier(stage.world.channel(1), {})); });
  for (auto& thread : threads) thread.join();
  other.join();
}

// The second thread of rank 1 ends while the first one waits: then it is one.
void a_thread_that_ends_makes_it_one() {
  Stage stage;
  stage.set_num_threads(1, 2);
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    stage.set_num_threads(1, 1);
  });
  std::vector<std::thread> threads;
  const auto start = Clock::now();
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto error = rank == 0 ? barrier(*stage.pair[0], {}) : barrier(stage.world.channel(rank), {});
      CHECK(error && error->reason == Reason::deadlock);
      CHECK(seconds_since(start) > 0.6 && seconds_since(start) < 8);
    });
  }
  for (auto& thread : threads) thread.join();
  ends.join();
}

}  // namespace

int main() {
  a_cycle_across_two_channels_is_told_to_all();
  a_rank_that_computes_or_has_another_thread_is_none(false);
  a_rank_that_computes_or_has_another_thread_is_none(true);
  a_thread_that_ends_makes_it_one();
}
