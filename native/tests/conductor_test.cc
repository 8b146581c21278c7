// Conductors of several members, each with its thread, over one shared arena.
#include "engine/conductor.h"

#include <algorithm>
#include <random>

#include "engine/shm_lane.h"
#include "harness.h"

using namespace kadril;
using test::World;

namespace {

class Party {
 public:
  explicit Party(int size, double patience = 20) : world_(size, {patience, 10, 100, 10}) {
    for (int rank = 0; rank < size; ++rank) {
      ConductorOptions options;
      options.patience = patience;
      options.stall_warning = 0.05;
      options.cache_capacity = 64;
      options.submitters = std::make_shared<Submitters>();  // members are processes elsewhere
      for (int other = 0; other < size; ++other) options.world_ranks.push_back(other);
      conductors.push_back(
          std::make_unique<Conductor>(std::make_unique<ShmLane>(world_.channel(rank), rank),
                                      options, [this](const std::string& text) {
                                        const std::lock_guard lock(mutex_);
                                        reports_.push_back(text);
                                      }));
    }
  }

  void run(const std::function<void(Conductor&)>& body) {
    std::vector<std::thread> threads;
    for (auto& conductor : conductors) threads.emplace_back([&] { body(*conductor); });
    for (auto& thread : threads) thread.join();
  }

  bool has_report(const std::string& part) {
    const std::lock_guard lock(mutex_);
    return std::any_of(reports_.begin(), reports_.end(), [&](const std::string& text) {
      return text.find(part) != std::string::npos;
    });
  }

 private:
  World world_;
  std::mutex mutex_;
  std::vector<std::string> reports_;

 public:
  std::vector<std::unique_ptr<Conductor>> conductors;  // gone before the world
};

std::unique_ptr<Request> sum_of(const std::string& name, std::vector<float>& values) {
  auto request = std::make_unique<Request>();
  request->descriptor.verb = Verb::allreduce;
  request->descriptor.name = name;
  request->descriptor.pieces.push_back({DType::float32, {values.size()}});
  request->memory.push_back({values.data(), values.data()});
  request->completion = std::make_shared<Completion>();
  return request;
}

void await(Completion& completion) {
  while (!completion.wait(10)) {
  }
}

void test_any_order(int size) {
  Party party(size);
  party.run([&](Conductor& conductor) {
    std::mt19937 random(static_cast<unsigned>(conductor.me()));
    for (int round = 0; round < 20; ++round) {
      constexpr size_t num_tensors = 30;
      std::vector<std::vector<float>> tensors;
      std::vector<size_t> order;
      for (size_t i = 0; i < num_tensors; ++i) {
        tensors.emplace_back(i * i * 17, static_cast<float>(conductor.me() + 1));
        order.push_back(i);
      }
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::shared_ptr<Completion>> completions;
      for (const size_t i : order) {
        auto request = sum_of("tensor" + std::to_string(i), tensors[i]);
        completions.push_back(request->completion);
        CHECK_OK(conductor.submit(std::move(request)));
      }
      for (const auto& completion : completions) {
        await(*completion);
        CHECK(!completion->failure());
      }
      const auto sum = static_cast<float>(size * (size + 1) / 2);
      for (const auto& tensor : tensors) {
        for (const float value : tensor) CHECK(value == sum);
      }
    }
  });
}

void test_a_name_in_use_is_refused() {
  std::vector<float> values(4), again(4), theirs(4);  // outlive who may write to them
  Party party(2);
  auto request = sum_of("x", values);
  auto completion = request->completion;
  CHECK_OK(party.conductors[0]->submit(std::move(request)));
  const auto error = party.conductors[0]->submit(sum_of("x", again));
  CHECK(error && error->reason == Reason::invalid);
  CHECK_OK(party.conductors[1]->submit(sum_of("x", theirs)));
  await(*completion);
  auto next = sum_of("x", again);
  CHECK_OK(party.conductors[0]->submit(std::move(next)));
}

void test_closing_fails_what_is_under_way() {
  std::vector<float> values(4), others(4);
  Party party(2);
  auto request = sum_of("x", values);
  auto completion = request->completion;
  CHECK_OK(party.conductors[0]->submit(std::move(request)));
  party.conductors[0]->close();
  CHECK(completion->is_done() && completion->failure()->reason == Reason::closed);
  auto late = sum_of("x", others);
  auto late_completion = late->completion;
  if (auto error = party.conductors[1]->submit(std::move(late))) {
    CHECK(error->reason == Reason::peer_left);
  } else {
    await(*late_completion);
    CHECK(late_completion->failure()->reason == Reason::peer_left);
    CHECK(late_completion->failure()->member == 0);
  }
}

void test_who_waits_in_vain_is_told_and_gives_up() {
  std::vector<float> x(4), y(4);
  Party party(2, 0.5);
  auto first = sum_of("x", x);
  auto second = sum_of("y", y);
  auto first_completion = first->completion;
  auto second_completion = second->completion;
  CHECK_OK(party.conductors[0]->submit(std::move(first)));
  CHECK_OK(party.conductors[1]->submit(std::move(second)));
  await(*first_completion);
  await(*second_completion);
  CHECK(first_completion->failure()->reason == Reason::stalled);
  CHECK(second_completion->failure()->reason == Reason::stalled);
  CHECK(party.has_report("name='x'"));
  CHECK(party.has_report("not by rank(s) 1"));
}

// Sleep as a rank does that has nothing else to do.
void block(Completion& completion, int num_threads) {
  while (!completion.wait(0.05) && !completion.wait_blocked(10, num_threads)) {
  }
}

void test_a_deadlock_is_told_to_all(int size) {
  Party party(size);
  party.run([&](Conductor& conductor) {
    for (int round = 0; round < 2; ++round) {
      std::vector<float> values(4), async(4), common(4);
      auto request = sum_of("only " + std::to_string(conductor.me()), values);
      auto other = sum_of("async " + std::to_string(conductor.me()), async);
      auto completion = request->completion;
      auto other_completion = other->completion;
      CHECK_OK(conductor.submit(std::move(other)));
      CHECK_OK(conductor.submit(std::move(request)));
      block(*completion, 1);
      CHECK(completion->failure()->reason == Reason::mismatch);
      CHECK(other_completion->is_done() && other_completion->failure()->reason == Reason::mismatch);
      CHECK(static_cast<int>(completion->failure()->calls.size()) == size);
      CHECK(completion->failure()->calls[0].find("name='only 0'") != std::string::npos);
      CHECK(static_cast<int>(conductor.num_deadlocks()) == round + 1);
      auto next = sum_of("common", common);
      auto next_completion = next->completion;
      CHECK_OK(conductor.submit(std::move(next)));
      await(*next_completion);
      CHECK(!next_completion->failure());
    }
  });
}

// Each member sleeps on what only the second thread of the other asks for, and that one is slow. It
// has submitted before, or it is only known that there is such a thread.
void test_a_second_thread_is_waited_for(bool has_submitted) {
  Party party(2);
  party.run([&](Conductor& conductor) {
    const auto serve = [&](const std::string& name, auto wait) {
      std::vector<float> values(4, 1);
      auto request = sum_of(name, values);
      auto completion = request->completion;
      CHECK_OK(conductor.submit(std::move(request)));
      wait(*completion);
      CHECK(!completion->failure() && values[3] == 2);
    };
    std::atomic<bool> is_ready{!has_submitted};
    std::thread second([&] {
      if (has_submitted) serve("first", await);
      is_ready = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1200));
      serve(conductor.me() == 0 ? "y" : "x", await);
    });
    while (!is_ready) std::this_thread::yield();
    serve(conductor.me() == 0 ? "x" : "y",
          [&](Completion& completion) { block(completion, has_submitted ? 1 : 2); });
    second.join();
    CHECK(conductor.num_deadlocks() == 0);
  });
}

// One member asks, changes its mind, and asks again with other values: the other one meets those.
void test_cancelled() {
  std::vector<float> stale(4, 100), fresh(4, 1), theirs(4, 2), told(4), told_theirs(4);
  Party party(2);
  Conductor& mine = *party.conductors[0];
  Conductor& other = *party.conductors[1];
  auto request = sum_of("x", stale);
  auto completion = request->completion;
  CHECK_OK(mine.submit(std::move(request)));
  auto first = sum_of("told", told);
  auto told_completion = first->completion;
  CHECK_OK(mine.submit(std::move(first)));
  CHECK_OK(other.submit(sum_of("told", told_theirs)));
  await(*told_completion);  // so that the other one has heard of the first
  mine.cancel(completion);
  auto next = sum_of("x", fresh);
  auto next_completion = next->completion;
  CHECK_OK(mine.submit(std::move(next)));
  auto last = sum_of("x", theirs);
  auto last_completion = last->completion;
  CHECK_OK(other.submit(std::move(last)));
  await(*last_completion);
  CHECK(!last_completion->failure() && theirs[3] == 3);
  await(*next_completion);
  CHECK(!next_completion->failure() && fresh[3] == 3);
  await(*completion);
  CHECK(completion->failure() && completion->failure()->reason == Reason::cancelled);
  mine.cancel(completion);  // does nothing
  CHECK(mine.num_refusals() == 0);
}

void test_results_go_where_the_caller_wants_them() {
  Party party(2);
  party.run([](Conductor& conductor) {
    std::vector<float> rows(static_cast<size_t>(conductor.me()) + 1, 7), result;
    auto request = sum_of("rows", rows);
    request->descriptor.verb = Verb::allgather;
    auto completion = request->completion;
    completion->allocate = [&](size_t index, const Piece& piece) {
      CHECK(index == 0 && piece.count() == 3);
      result.resize(piece.count());
      return std::shared_ptr<std::byte>(reinterpret_cast<std::byte*>(result.data()),
                                        [](std::byte*) {});
    };
    CHECK_OK(conductor.submit(std::move(request)));
    await(*completion);
    CHECK(!completion->failure() && result == std::vector<float>(3, 7));
  });
}

// Threads of one process submit at once, and close in the middle of it.
void test_many_submitters() {
  Party party(2);
  party.run([&](Conductor& conductor) {
    std::vector<std::thread> threads;
    for (int part = 0; part < 3; ++part) {
      threads.emplace_back([&conductor, part] {
        for (int i = 0; i < 200; ++i) {
          std::vector<float> values(8, 1);
          auto request = sum_of(std::to_string(part) + "." + std::to_string(i), values);
          auto completion = request->completion;
          CHECK_OK(conductor.submit(std::move(request)));
          await(*completion);
          CHECK(!completion->failure() && values[7] == 2);
        }
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

}  // namespace

int main() {
  for (const int size : {1, 2, 4}) test_any_order(size);
  test_a_name_in_use_is_refused();
  test_closing_fails_what_is_under_way();
  test_who_waits_in_vain_is_told_and_gives_up();
  for (const int size : {2, 3}) test_a_deadlock_is_told_to_all(size);
  for (const bool has_submitted : {false, true}) test_a_second_thread_is_waited_for(has_submitted);
  test_cancelled();
  test_results_go_where_the_caller_wants_them();
  test_many_submitters();
}
