#include "channel.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "harness.h"

using namespace kadril;
using test::World;

namespace {

double seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void a_barrier_holds_everybody() {
  for (const Waiting waiting :
       {Waiting{20, 10, 1000, 0}, Waiting{20, 10, 0, 20}, Waiting{20, 10, 0, 0}}) {
    World world(4, waiting);
    std::atomic<int> num_arrived{0};
    world.run([&](Channel& channel) {
      for (int round = 1; round <= 200; ++round) {
        num_arrived.fetch_add(1);
        CHECK_OK(barrier(channel, {}));
        CHECK(num_arrived.load() >= 4 * round);
        CHECK_OK(barrier(channel, {}));
      }
    });
  }
}

void a_mismatch_is_seen_by_all_and_heals() {
  World world(3);
  world.run([&](Channel& channel) {
    float x[4] = {1, 1, 1, 1};
    for (int round = 0; round < 20; ++round) {
      Call call = test::call_of(DType::float32, channel.me() == 2 ? 3 : 4);
      call.set_name("grad");
      auto error = allreduce(channel, call, x, x);
      CHECK(error && error->reason == Reason::mismatch && error->calls.size() == 3);
      CHECK(error->calls[0] == "allreduce(float32[4], sum, name='grad')");
      CHECK(error->calls[2] == "allreduce(float32[3], sum, name='grad')");
      auto other = channel.me() == 0
                       ? barrier(channel, {})
                       : broadcast(channel, test::call_of(DType::float32, 4, Op::sum, 1), x);
      CHECK(other && other->reason == Reason::mismatch);
      float y = 2;
      CHECK_OK(allreduce(channel, test::call_of(DType::float32, 1), &y, &y));
      CHECK(y == 6 && x[0] == 1);
    }
  });
}

void patience_ends_and_names_the_late() {
  World world(3, {0.3, 10, 10, 0});
  std::atomic<int> num_stalled{0};
  const double elapsed = seconds([&] {
    world.run([&](Channel& channel) {
      if (channel.me() == 1) return;
      auto error = barrier(channel, {});
      CHECK(error && error->reason == Reason::stalled && error->member == 1 && !error->stopped);
      ++num_stalled;
      auto again = barrier(channel, {});
      CHECK(again && again->reason == Reason::stalled && again->member == 1);
    });
  });
  CHECK(num_stalled == 2 && elapsed < 5);
}

void a_member_that_leaves_is_named() {
  World world(3);
  world.run([&](Channel& channel) {
    CHECK_OK(barrier(channel, {}));
    if (channel.me() == 2) {
      channel.close();
      auto error = barrier(channel, {});
      CHECK(error && error->reason == Reason::closed);
      return;
    }
    auto error = barrier(channel, {});
    CHECK(error && error->reason == Reason::peer_left && error->member == 2);
  });
}

void a_revoked_channel_wakes_everybody() {
  World world(4, {20, 10, 0, 0});
  const double elapsed = seconds([&] {
    world.run([&](Channel& channel) {
      if (channel.me() == 3) {
        channel.revoke();
        return;
      }
      auto error = barrier(channel, {});
      CHECK(error && error->reason == Reason::revoked && error->member == 3);
    });
  });
  CHECK(elapsed < 5);
}

void closing_ends_a_call_of_another_thread() {
  World world(2, {20, 10, 0, 0});
  std::atomic<bool> waits{false};
  std::thread waiter([&] {
    waits = true;
    auto error = barrier(world.channel(0), {});
    CHECK(error && (error->reason == Reason::revoked || error->reason == Reason::closed));
  });
  while (!waits) std::this_thread::yield();
  world.channel(0).close();
  waiter.join();
}

// Two threads of one member take turns: a call is never mixed with another one's.
void threads_on_one_channel_take_turns() {
  World world(2);
  world.run([&](Channel& channel) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        std::vector<int32_t> data(3000);
        for (int round = 0; round < 50; ++round) {
          for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<int32_t>(i) + channel.me();
          CHECK_OK(allreduce(channel, test::call_of(DType::int32, data.size()), data.data(),
                             data.data()));
          for (size_t i = 0; i < data.size(); ++i)
            CHECK(data[i] == 2 * static_cast<int32_t>(i) + 1);
        }
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

void a_death_is_told_at_once() {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  CHECK(pidfd >= 0);
  ArenaOptions options;
  options.num_ranks = 2;
  options.capacity = 2 << 20;
  options.control_bytes = Channel::board_bytes(2);
  std::shared_ptr<Arena> arena;
  CHECK_OK(Arena::create(options, arena));
  Channel::format(*arena, arena->control_offset(), 2);
  auto liveness = std::make_shared<Liveness>(std::vector<int>{-1, pidfd});
  CHECK_OK(liveness->start());
  {
    Channel channel(arena, liveness, arena->control_offset(), {0, 1}, 0, false, {20, 10, 0, 0},
                    nullptr);
    kill(child, SIGSTOP);
    int status;
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    CHECK(liveness->is_stopped(1) && !liveness->is_dead(1));
    std::thread killer([&] { kill(child, SIGKILL); });
    const double elapsed = seconds([&] {
      auto error = barrier(channel, {});
      CHECK(error && error->reason == Reason::peer_lost && error->member == 1);
    });
    killer.join();
    CHECK(elapsed < 1);
  }
  // A channel made after the death is as dead.
  Channel::format(*arena, arena->control_offset(), 2);
  Channel late(arena, liveness, arena->control_offset(), {0, 1}, 0, false, {20, 10, 0, 0}, nullptr);
  auto error = barrier(late, {});
  CHECK(error && error->reason == Reason::peer_lost);
  waitpid(child, nullptr, 0);
}

void a_forked_child_is_refused() {
  World world(1);
  const pid_t child = fork();
  if (child == 0) {
    auto error = barrier(world.channel(0), {});
    World own(1);  // what the child makes itself is its own
    CHECK_OK(barrier(own.channel(0), {}));
    _exit(error && error->reason == Reason::forked ? 0 : 1);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK_OK(barrier(world.channel(0), {}));
}

// Boards are used again only as boards, and staging goes back when the last member has left.
void closed_channels_give_their_memory_back() {
  World world(2);
  auto arena = world.arena();
  std::vector<float> data(100'000, 1);
  uint64_t after_first = 0;
  for (int round = 0; round < 50; ++round) {
    uint64_t board;
    CHECK_OK(arena->allocate_board(0, Channel::board_bytes(2), board));
    Channel::format(*arena, board, 2);
    std::vector<std::thread> threads;
    for (int me = 0; me < 2; ++me) {
      threads.emplace_back([&, me] {
        Channel channel(arena, world.liveness(), board, {0, 1}, me, me == 0, {20, 10, 10, 10},
                        nullptr);
        std::vector<float> mine = data;
        CHECK_OK(allreduce(channel, test::call_of(DType::float32, mine.size()), mine.data(),
                           mine.data()));
        for (const float value : mine) CHECK(value == 2);
      });
    }
    for (auto& thread : threads) thread.join();
    // The last close happens after the other's reaping, so memory may be one round behind.
    if (round == 5) after_first = arena->num_allocated_bytes();
  }
  CHECK(arena->num_allocated_bytes() <= after_first + 8 * (1 << 20));
}

}  // namespace

int main() {
  a_death_is_told_at_once();
  a_forked_child_is_refused();
  a_barrier_holds_everybody();
  a_mismatch_is_seen_by_all_and_heals();
  patience_ends_and_names_the_late();
  a_member_that_leaves_is_named();
  a_revoked_channel_wakes_everybody();
  closing_ends_a_call_of_another_thread();
  threads_on_one_channel_take_turns();
  closed_channels_give_their_memory_back();
}
