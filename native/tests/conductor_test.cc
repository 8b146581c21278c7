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
  request->ticket = std::make_shared<Ticket>();
  return request;
}

void await(Ticket& ticket) {
  while (!ticket.wait(10)) {
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
      std::vector<std::shared_ptr<Ticket>> tickets;
      for (const size_t i : order) {
        auto request = sum_of("tensor" + std::to_string(i), tensors[i]);
        tickets.push_back(request->ticket);
        CHECK_OK(conductor.submit(std::move(request)));
      }
      for (const auto& ticket : tickets) {
        await(*ticket);
        CHECK(!ticket->failure());
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
  auto ticket = request->ticket;
  CHECK_OK(party.conductors[0]->submit(std::move(request)));
  const auto error = party.conductors[0]->submit(sum_of("x", again));
  CHECK(error && error->reason == Reason::invalid);
  CHECK_OK(party.conductors[1]->submit(sum_of("x", theirs)));
  await(*ticket);
  auto next = sum_of("x", again);
  CHECK_OK(party.conductors[0]->submit(std::move(next)));
}

void test_closing_fails_what_is_under_way() {
  std::vector<float> values(4), others(4);
  Party party(2);
  auto request = sum_of("x", values);
  auto ticket = request->ticket;
  CHECK_OK(party.conductors[0]->submit(std::move(request)));
  party.conductors[0]->close();
  CHECK(ticket->is_done() && ticket->failure()->reason == Reason::closed);
  auto late = sum_of("x", others);
  auto late_ticket = late->ticket;
  if (auto error = party.conductors[1]->submit(std::move(late))) {
    CHECK(error->reason == Reason::peer_left);
  } else {
    await(*late_ticket);
    CHECK(late_ticket->failure()->reason == Reason::peer_left);
    CHECK(late_ticket->failure()->member == 0);
  }
}

void test_who_waits_in_vain_is_told_and_gives_up() {
  std::vector<float> x(4), y(4);
  Party party(2, 0.5);
  auto first = sum_of("x", x);
  auto second = sum_of("y", y);
  auto first_ticket = first->ticket;
  auto second_ticket = second->ticket;
  CHECK_OK(party.conductors[0]->submit(std::move(first)));
  CHECK_OK(party.conductors[1]->submit(std::move(second)));
  await(*first_ticket);
  await(*second_ticket);
  CHECK(first_ticket->failure()->reason == Reason::stalled);
  CHECK(second_ticket->failure()->reason == Reason::stalled);
  CHECK(party.has_report("name='x'"));
  CHECK(party.has_report("not by rank(s) 1"));
}

// Sleep as a rank does that has nothing else to do.
void block(Ticket& ticket, int num_threads) {
  while (!ticket.wait(0.05) && !ticket.wait_blocked(10, num_threads)) {
  }
}

void test_a_deadlock_is_told_to_all(int size) {
  Party party(size);
  party.run([&](Conductor& conductor) {
    for (int round = 0; round < 2; ++round) {
      std::vector<float> values(4), async(4), common(4);
      auto request = sum_of("only " + std::to_string(conductor.me()), values);
      auto other = sum_of("async " + std::to_string(conductor.me()), async);
      auto ticket = request->ticket;
      auto other_ticket = other->ticket;
      CHECK_OK(conductor.submit(std::move(other)));
      CHECK_OK(conductor.submit(std::move(request)));
      block(*ticket, 1);
      CHECK(ticket->failure()->reason == Reason::mismatch);
      CHECK(other_ticket->is_done() && other_ticket->failure()->reason == Reason::mismatch);
      CHECK(static_cast<int>(ticket->failure()->calls.size()) == size);
      CHECK(ticket->failure()->calls[0].find("name='only 0'") != std::string::npos);
      CHECK(static_cast<int>(conductor.num_deadlocks()) == round + 1);
      auto next = sum_of("common", common);
      auto next_ticket = next->ticket;
      CHECK_OK(conductor.submit(std::move(next)));
      await(*next_ticket);
      CHECK(!next_ticket->failure());
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
      auto ticket = request->ticket;
      CHECK_OK(conductor.submit(std::move(request)));
      wait(*ticket);
      CHECK(!ticket->failure() && values[3] == 2);
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
          [&](Ticket& ticket) { block(ticket, has_submitted ? 1 : 2); });
    second.join();
    CHECK(conductor.num_deadlocks() == 0);
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
          auto ticket = request->ticket;
          CHECK_OK(conductor.submit(std::move(request)));
          await(*ticket);
          CHECK(!ticket->failure() && values[7] == 2);
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
  test_many_submitters();
}
