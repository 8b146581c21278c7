// Conductors of several members, each with its thread, over one shared arena.
#include "engine/conductor.h"

#include <algorithm>
#include <random>

#include "engine/blocked_wait.h"
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
  // It told of "call 57 of this group, allgatherv(name='engine')", also those who came later.
  std::vector<float> z(4);
  const auto late = party.conductors[0]->submit(sum_of("z", z));
  CHECK(late && late->reason == Reason::stalled);
  const Failure* const failures[] = {first_completion->failure(), late.get()};
  for (const Failure* failure : failures) {
    CHECK(failure->num_common == 0 && failure->last_common.empty());
    CHECK(failure->detail.starts_with("allreduce("));
  }
  CHECK(party.has_report("name='x'"));
  CHECK(party.has_report("not by rank(s) 1"));
}

// Sleep as a rank does that has nothing else to do.
void block(Completion& completion, int num_threads) {
  if (completion.wait(0.05)) return;
  // Its owner outlives this.
  BlockedWait blocked({&completion, [](Completion*) {}}, "", 0, 0.05);
  while (!blocked.wait(10, {num_threads, num_threads})) {
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
}

// Both members ask for one thing more: whatever one of them had to tell, the other has heard.
void meet(Party& party) {
  party.run([](Conductor& conductor) {
    std::vector<float> values(1);
    auto request = sum_of("meet", values);
    auto completion = request->completion;
    CHECK_OK(conductor.submit(std::move(request)));
    await(*completion);
    CHECK(!completion->failure());
  });
}

// A request of a step, which begins with it where it is the first.
std::unique_ptr<Request> of_step(Conductor& conductor, uint64_t step, const std::string& name,
                                 std::vector<float>& values) {
  auto request = sum_of(name, values);
  request->descriptor.stamp = conductor.stamp_of(step);
  return request;
}

std::shared_ptr<Completion> ask(Conductor& conductor, uint64_t step, const std::string& name,
                                std::vector<float>& values) {
  auto request = of_step(conductor, step, name, values);
  auto completion = request->completion;
  CHECK_OK(conductor.submit(std::move(request)));
  return completion;
}

// Two steps of two requests, "a" and "b". In the first of them member 0 fails by itself, and takes
// back "b"; member 1 comes to "b" late, when member 0 has asked for the "b" of its next step. Those
// two must not be served together.
void test_a_cancelled_step_is_not_served_with_the_next(bool has_been_told) {
  std::vector<float> a0(1, 1), a1(1, 2), b0(1, 10), b1(1, 20), next_b0(1, 30), next_b1(1, 40);
  Party party(2);
  Conductor& mine = *party.conductors[0];
  Conductor& other = *party.conductors[1];
  auto d_of_mine = ask(mine, 10, "d", next_b0);
  auto d_of_other = ask(other, 20, "d", next_b1);
  await(*d_of_mine);
  await(*d_of_other);
  next_b0[0] = 30;
  next_b1[0] = 40;
  std::shared_ptr<Completion> taken_back;
  if (has_been_told) taken_back = ask(mine, 11, "b", b0);
  auto a_of_mine = ask(mine, 11, "a", a0);
  auto a_of_other = ask(other, 21, "a", a1);
  await(*a_of_mine);
  await(*a_of_other);
  CHECK(a0[0] == 3 && a1[0] == 3);
  if (!has_been_told) taken_back = ask(mine, 11, "b", b0);
  mine.cancel(taken_back);
  auto next_of_mine = ask(mine, 12, "b", next_b0);
  meet(party);
  await(*taken_back);
  CHECK(taken_back->failure()->reason == Reason::cancelled);
  auto late = ask(other, 21, "b", b1);
  await(*late);
  CHECK(late->failure() && late->failure()->reason == Reason::mismatch);
  CHECK(late->failure()->detail.find("rank 0 has withdrawn") != std::string::npos);
  CHECK(!next_of_mine->is_done());
  auto next_of_other = ask(other, 22, "b", next_b1);
  await(*next_of_mine);
  await(*next_of_other);
  CHECK(!next_of_mine->failure() && !next_of_other->failure());
  CHECK(next_b0[0] == 70 && next_b1[0] == 70 && b1[0] == 20);
  // A step of before the failure that goes on elsewhere under names of its own.
  auto c_of_mine = ask(mine, 10, "c", a0);
  auto c_of_other = ask(other, 20, "c", a1);
  await(*c_of_mine);
  await(*c_of_other);
  CHECK(!c_of_mine->failure() && !c_of_other->failure());
}

// The first step of member 0 ends after "a", before it has asked for "b" and "c", and says nothing.
// The others come to "b" when it asks for that of its next step, or before: they are refused, also
// if one of them has withdrawn "c" meanwhile, and the next step is served with their next.
void test_a_step_that_ended_in_silence_is_not_served_with_the_next(int size, bool is_late,
                                                                   bool asks_a_first) {
  Party party(size);
  const auto count = static_cast<size_t>(size);
  std::vector<std::vector<float>> a(count, {1}), b(count, {1}), c(count, {1}), next(count, {2});
  std::vector<std::shared_ptr<Completion>> asked(count), third(count);
  const auto ask_all = [&](uint64_t step, const char* name, auto& values, size_t from, auto& done) {
    for (size_t i = from; i < count; ++i) {
      done[i] = ask(*party.conductors[i], 10 * (i + 1) + step, name, values[i]);
    }
  };
  ask_all(1, "a", a, 0, asked);
  for (auto& each : asked) await(*each);
  CHECK(a[0][0] == static_cast<float>(size));
  ask_all(1, "c", c, 1, third);
  if (!is_late) ask_all(1, "b", b, 1, asked);
  // Most often a step comes to "b" after its "a", which the others do not ask for yet.
  auto next_a = asks_a_first ? ask(*party.conductors[0], 12, "a", a[0]) : nullptr;
  if (!asks_a_first) asked[0] = ask(*party.conductors[0], 12, "b", next[0]);
  auto next_c = ask(*party.conductors[0], 12, "c", c[0]);
  if (is_late) {
    meet(party);
    ask_all(1, "b", b, 1, asked);
  }
  for (size_t i = 1; i < count; ++i) {
    await(*asked[i]);
    CHECK(asked[i]->failure() && asked[i]->failure()->reason == Reason::mismatch);
    CHECK(asked[i]->failure()->detail.find("rank 0") != std::string::npos && b[i][0] == 1);
    party.conductors[i]->cancel(third[i]);  // as TensorFlow does with what else a step waits for
  }
  for (size_t i = 1; i < count; ++i) await(*third[i]);
  if (asks_a_first) asked[0] = ask(*party.conductors[0], 12, "b", next[0]);
  CHECK(!asked[0]->is_done() && !next_c->is_done());
  for (size_t i = 1; i < count; ++i) {
    if (asks_a_first) ask(*party.conductors[i], 10 * (i + 1) + 2, "a", a[i]);
    asked[i] = ask(*party.conductors[i], 10 * (i + 1) + 2, "b", next[i]);
    third[i] = ask(*party.conductors[i], 10 * (i + 1) + 2, "c", c[i]);
  }
  third[0] = next_c;
  if (next_a) await(*next_a);
  for (size_t i = 0; i < count; ++i) {
    await(*asked[i]);
    await(*third[i]);
    CHECK(!asked[i]->failure() && next[i][0] == static_cast<float>(2 * size));
    CHECK(!third[i]->failure() && c[i][0] == static_cast<float>(size));
  }
}

// A step of member 0 takes back "b" while it is being served, and goes on to its next step: the
// one of member 1 has not failed. Member 0 alone counted a failed step, and the next one of
// member 1 was refused.
void test_a_request_that_is_cancelled_while_it_is_served() {
  std::vector<float> rows(1, 7), a0(1, 1), a1(1, 2), gathered[2];
  Party party(2);
  std::shared_ptr<Completion> done[2];
  for (uint64_t me : {0, 1}) {
    Conductor& conductor = *party.conductors[me];
    auto request = of_step(conductor, 10 * me + 1, "b", rows);
    request->descriptor.verb = Verb::allgather;
    done[me] = request->completion;
    done[me]->allocate = [&, me](size_t, const Piece& piece) {
      if (me == 0) conductor.cancel(done[0]);  // the members have met by now
      gathered[me].resize(piece.count());
      return std::shared_ptr<std::byte>(reinterpret_cast<std::byte*>(gathered[me].data()),
                                        [](std::byte*) {});
    };
    CHECK_OK(conductor.submit(std::move(request)));
  }
  for (const auto& each : done) {
    await(*each);
    CHECK(!each->failure());
  }
  CHECK(gathered[1] == std::vector<float>(2, 7));
  for (const uint64_t step : {2, 3}) {
    a0[0] = 1, a1[0] = 2;
    auto mine = ask(*party.conductors[0], step, "a", a0);
    auto other = ask(*party.conductors[1], 10 + step, "a", a1);
    await(*mine);
    await(*other);
    CHECK(!mine->failure() && !other->failure() && a0[0] == 3 && a1[0] == 3);
  }
}

// Members whose steps fail by themselves, at nearly the same time, take back "b" and begin their next
// steps at once. The last one comes late and is refused, and all next steps are served together.
void test_steps_that_fail_on_several_members() {
  constexpr size_t count = 3;
  Party party(count);
  for (uint64_t round = 0; round < 300; ++round) {
    std::vector<std::vector<float>> a(count, {1}), b(count, {1}), next(count, {2});
    std::vector<std::shared_ptr<Completion>> first(count), second(count), after(count);
    const auto step_of = [&](size_t i, uint64_t step) { return 1000 * (i + 1) + 2 * round + step; };
    const auto fail_and_go_on = [&](size_t i) {
      for (uint64_t spin = 0; spin < (round * (i + 1)) % 40; ++spin) std::this_thread::yield();
      Conductor& conductor = *party.conductors[i];
      if (i < 2) conductor.cancel(second[i]);
      if (i < 2) after[i] = ask(conductor, step_of(i, 1), "b", next[i]);
      std::vector<float> value(1);
      await(*ask(conductor, 0, "meet", value));  // so that the last one hears of it
      if (i == 2) {
        second[i] = ask(conductor, step_of(i, 0), "b", b[i]);
        await(*second[i]);
        CHECK(second[i]->failure() && second[i]->failure()->reason == Reason::mismatch);
        after[i] = ask(conductor, step_of(i, 1), "b", next[i]);
      }
      await(*after[i]);
      CHECK(!after[i]->failure() && next[i][0] == 2 * count);
    };
    for (size_t i = 0; i < count; ++i) {
      if (i < 2) second[i] = ask(*party.conductors[i], step_of(i, 0), "b", b[i]);
      first[i] = ask(*party.conductors[i], step_of(i, 0), "a", a[i]);
    }
    for (const auto& each : first) await(*each);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < count; ++i) threads.emplace_back(fail_and_go_on, i);
    for (auto& thread : threads) thread.join();
    for (size_t i = 0; i < 2; ++i) await(*second[i]);  // it uses memory until then
  }
}

// Steps of two threads, which the members begin in opposite order, have nothing
// to do with each other.
void test_steps_side_by_side() {
  std::vector<float> x0(1, 1), y0(1, 1), x1(1, 1), y1(1, 1);
  Party party(2);
  Conductor& mine = *party.conductors[0];
  Conductor& other = *party.conductors[1];
  for (const char* round : {"1", "2", "3"}) {
    const std::string x = std::string("x") + round, y = std::string("y") + round;
    const auto done = {ask(mine, 1, x, x0), ask(mine, 2, y, y0), ask(other, 2, y, y1),
                       ask(other, 1, x, x1)};
    for (const auto& each : done) {
      await(*each);
      CHECK(!each->failure());
    }
  }
  CHECK(x0[0] == 8 && y1[0] == 8);
}

// A join that is taken back covers nothing any more, and does not end with those of the others.
void test_a_cancelled_join() {
  Party party(2);
  Conductor& mine = *party.conductors[0];
  Conductor& other = *party.conductors[1];
  const auto join = [](Conductor& conductor) {
    auto request = std::make_unique<Request>();
    request->descriptor.verb = Verb::join;
    request->descriptor.name = "join";
    request->completion = std::make_shared<Completion>();
    auto completion = request->completion;
    CHECK_OK(conductor.submit(std::move(request)));
    return completion;
  };
  std::vector<float> covered(1, 5), summed(1, 5), own(1, 6);
  auto taken_back = join(mine);
  await(*ask(other, 0, "covered", covered));
  CHECK(covered[0] == 5);
  mine.cancel(taken_back);
  auto theirs = join(other);
  await(*taken_back);
  CHECK(taken_back->failure() && taken_back->failure()->reason == Reason::cancelled);
  CHECK(!theirs->is_done());
  auto again = join(mine);
  await(*theirs);
  await(*again);
  CHECK(!theirs->failure() && !again->failure() && theirs->last_joined == again->last_joined);
  auto sum = ask(other, 0, "summed", summed);
  await(*ask(mine, 0, "summed", own));
  await(*sum);
  CHECK(summed[0] == 11 && own[0] == 11);
}

// Cancelled at any moment, before, while or after the others hear of it: it ends, and what comes
// under its name later is served with what the others ask for later.
void test_cancelling_at_any_moment() {
  Party party(2);
  for (int round = 0; round < 500; ++round) {
    std::vector<float> stale(1, 100), fresh(1, 1), theirs(1, 2);
    auto request = sum_of("x", stale);
    auto completion = request->completion;
    CHECK_OK(party.conductors[0]->submit(std::move(request)));
    for (int i = 0; i < round % 50; ++i) std::this_thread::yield();
    party.conductors[0]->cancel(completion);
    auto again = sum_of("x", fresh), other = sum_of("x", theirs);
    auto again_done = again->completion, other_done = other->completion;
    CHECK_OK(party.conductors[0]->submit(std::move(again)));
    meet(party);
    await(*completion);
    CHECK(completion->failure() && completion->failure()->reason == Reason::cancelled);
    CHECK_OK(party.conductors[1]->submit(std::move(other)));
    await(*again_done);
    await(*other_done);
    CHECK(fresh[0] == 3 && theirs[0] == 3);
  }
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
  for (const bool has_been_told : {false, true}) {
    test_a_cancelled_step_is_not_served_with_the_next(has_been_told);
  }
  for (const int size : {2, 4}) {
    for (const bool is_late : {false, true}) {
      for (const bool asks_a_first : {false, true}) {
        test_a_step_that_ended_in_silence_is_not_served_with_the_next(size, is_late, asks_a_first);
      }
    }
  }
  test_a_request_that_is_cancelled_while_it_is_served();
  test_steps_that_fail_on_several_members();
  test_steps_side_by_side();
  test_a_cancelled_join();
  test_cancelling_at_any_moment();
  test_results_go_where_the_caller_wants_them();
  test_many_submitters();
}
