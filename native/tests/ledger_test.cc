// The ledger: members that read the same messages come to the same conclusions.
#include "engine/ledger.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "harness.h"

using namespace kadril;

namespace {

std::unique_ptr<Request> request(Verb verb, const std::string& name,
                                 std::vector<uint64_t> dims = {2}) {
  auto made = std::make_unique<Request>();
  made->descriptor.verb = verb;
  made->descriptor.name = name;
  if (verb != Verb::join && verb != Verb::barrier) {
    made->descriptor.pieces.push_back({DType::float32, std::move(dims)});
  }
  made->completion = std::make_shared<Completion>();
  return made;
}

// All members of a set, with messages carried by hand.
class Members {
 public:
  explicit Members(int size, size_t capacity = 100) {
    for (int me = 0; me < size; ++me) {
      ledgers_.push_back(std::make_unique<Ledger>(size, me, capacity));
    }
    outbox_.resize(static_cast<size_t>(size));
    withdrawn_.resize(static_cast<size_t>(size));
  }

  // Gives the completion.
  const Completion* ask(int member, std::unique_ptr<Request> made) {
    const Completion* completion = made->completion.get();
    outbox_[static_cast<size_t>(member)].push_back(std::move(made));
    return completion;
  }

  // In the next cycle the member withdraws what it asked for.
  void withdraw(int member, std::shared_ptr<Completion> completion) {
    withdrawn_[static_cast<size_t>(member)].push_back(std::move(completion));
  }

  // In the next cycle the member says that it is stuck on this.
  void get_stuck(int member, const Completion* completion) { stuck_[member] = completion; }

  // One cycle; gives what each member finds ready, as text, and checks that all find the same.
  std::vector<std::string> cycle() {
    std::vector<std::vector<std::byte>> messages(ledgers_.size());
    for (size_t me = 0; me < ledgers_.size(); ++me) {
      if (!outbox_[me].empty() || !withdrawn_[me].empty()) {
        ledgers_[me]->write(std::exchange(outbox_[me], {}), std::exchange(withdrawn_[me], {}), {},
                            messages[me]);
      } else if (const auto stuck = stuck_.find(static_cast<int>(me)); stuck != stuck_.end()) {
        ledgers_[me]->write_stuck(stuck->second, messages[me]);
      }
    }
    stuck_.clear();
    num_message_bytes = 0;
    for (const auto& message : messages) num_message_bytes += message.size();
    std::vector<std::string> first;
    for (size_t me = 0; me < ledgers_.size(); ++me) {
      std::vector<Agreement> ready;
      CHECK(ledgers_[me]->read(messages, ready));
      std::vector<std::string> found;
      for (const Agreement& agreement : ready) {
        found.push_back((agreement.entry ? agreement.entry->key : "join") + agreement.problem);
      }
      if (me == 0) first = found;
      CHECK(found == first);
      CHECK(ledgers_[me]->is_deadlocked() == ledgers_[0]->is_deadlocked());
      ledgers_[me]->forget_old();
    }
    return first;
  }

  Ledger& ledger(int member) { return *ledgers_[static_cast<size_t>(member)]; }
  size_t num_message_bytes = 0;

 private:
  std::vector<std::unique_ptr<Ledger>> ledgers_;
  std::vector<std::vector<std::unique_ptr<Request>>> outbox_;
  std::vector<std::vector<std::shared_ptr<Completion>>> withdrawn_;
  std::map<int, const Completion*> stuck_;
};

std::string key(const std::string& name) {
  return Descriptor::make_key(Verb::allreduce, false, name);
}

void test_ready_when_all_have_asked() {
  Members members(3);
  members.ask(0, request(Verb::allreduce, "x"));
  members.ask(1, request(Verb::allreduce, "y"));
  CHECK(members.cycle().empty());
  CHECK(members.ledger(0).has_pending() && !members.ledger(2).has_pending());
  members.ask(1, request(Verb::allreduce, "x"));
  members.ask(2, request(Verb::allreduce, "x"));
  CHECK(members.cycle() == std::vector<std::string>{key("x")});
  CHECK(!members.ledger(0).has_pending() && members.ledger(1).has_pending());
  members.ask(0, request(Verb::allreduce, "y"));
  members.ask(2, request(Verb::allreduce, "y"));
  CHECK(members.cycle() == std::vector<std::string>{key("y")});
}

void test_a_name_is_told_once() {
  Members members(2);
  const auto ask_both = [&](std::vector<uint64_t> dims) {
    for (int me = 0; me < 2; ++me) {
      members.ask(me, request(Verb::allreduce, std::string(200, 'n'), dims));
    }
    CHECK(members.cycle().size() == 1);
    return members.num_message_bytes;
  };
  CHECK(ask_both({2}) > 400);
  CHECK(ask_both({2}) < 60);   // by number
  CHECK(ask_both({3}) > 400);  // another shape has to be told
  CHECK(ask_both({3}) < 60);
}

void test_disagreement_is_found_by_all() {
  Members members(2);
  members.ask(0, request(Verb::allreduce, "x", {2}));
  members.ask(1, request(Verb::allreduce, "x", {3}));
  CHECK(members.cycle() == std::vector<std::string>{key("x") + "the shape differs"});
  for (int me = 0; me < 2; ++me) members.ask(me, request(Verb::allreduce, "x", {3}));
  CHECK(members.cycle() == std::vector<std::string>{key("x")});
  // Rows of an all-gather are each member's own.
  members.ask(0, request(Verb::allgather, "g", {2, 5}));
  members.ask(1, request(Verb::allgather, "g", {7, 5}));
  CHECK(members.cycle().size() == 1);
}

void test_join() {
  Members members(3);
  members.ask(2, request(Verb::join, "join"));
  members.ask(0, request(Verb::allreduce, "x"));
  CHECK(members.cycle().empty());
  members.ask(1, request(Verb::allreduce, "x"));
  CHECK(members.cycle() == std::vector<std::string>{key("x")});
  members.ask(0, request(Verb::allgather, "g"));
  members.ask(1, request(Verb::allgather, "g"));
  const auto found = members.cycle();
  CHECK(found.size() == 1 && found[0].find("join") != std::string::npos);
  // What waited for the joining member is ready as soon as it has joined.
  members.ask(0, request(Verb::allreduce, "y"));
  members.ask(1, request(Verb::join, "join"));
  CHECK(members.cycle() == std::vector<std::string>{key("y")});
  members.ask(0, request(Verb::join, "join"));
  CHECK(members.cycle() == std::vector<std::string>{"join"});
  CHECK(!members.ledger(1).has_pending());
}

// Also an un-named request and a join, whose names have no number of their own.
void test_a_deadlock_is_found_by_all() {
  Members members(3);
  auto unnamed = request(Verb::allgather, "noname.0");
  unnamed->descriptor.is_named = false;
  const Completion* reduce = members.ask(0, request(Verb::allreduce, "x"));
  const Completion* gather = members.ask(1, std::move(unnamed));
  const Completion* join = members.ask(2, request(Verb::join, "join"));
  CHECK(members.cycle().empty());
  members.get_stuck(0, reduce);
  members.get_stuck(1, gather);
  CHECK(members.cycle().empty());
  CHECK(!members.ledger(0).is_deadlocked());  // not all
  members.get_stuck(0, reduce);
  members.get_stuck(1, gather);
  const Completion* late = members.ask(2, request(Verb::allreduce, "late"));
  CHECK(members.cycle().empty());
  CHECK(!members.ledger(0).is_deadlocked());  // something new
  members.get_stuck(0, reduce);
  members.get_stuck(1, gather);
  members.get_stuck(2, join);
  CHECK(members.cycle().empty());
  CHECK(members.ledger(0).is_deadlocked());
  const Error error = members.ledger(1).describe_deadlock();
  CHECK(error->reason == Reason::mismatch && error->calls.size() == 3);
  CHECK(error->calls[0].starts_with("allreduce(") && error->calls[2] == "join()");
  const size_t num_requests[] = {1, 1, 2};
  for (int me = 0; me < 3; ++me) {
    const auto requests = members.ledger(me).dissolve();
    CHECK(requests.size() == num_requests[me] && !members.ledger(me).has_pending());
    if (me == 2)
      CHECK(requests[0]->completion.get() == late || requests[1]->completion.get() == late);
  }
  // What one is stuck on comes in the message of another, which is read before.
  const Completion* again = members.ask(2, request(Verb::allreduce, "again"));
  members.ask(1, request(Verb::allreduce, "again"));
  CHECK(members.cycle().empty());
  members.get_stuck(2, again);
  members.ask(0, request(Verb::allreduce, "again"));
  CHECK(members.cycle().size() == 1 && !members.ledger(0).is_deadlocked());
  // All is forgotten but the numbers of names, and nobody has joined.
  for (int me = 0; me < 3; ++me) {
    CHECK(members.cycle().empty());
    members.ask(me, request(Verb::allreduce, "x"));
  }
  CHECK(members.cycle() == std::vector<std::string>{key("x")});
}

void test_old_names_are_forgotten_alike() {
  Members members(2, 8);
  for (int round = 0; round < 50; ++round) {
    const std::string name = "name" + std::to_string(round);
    for (int me = 0; me < 2; ++me) members.ask(me, request(Verb::allreduce, name));
    CHECK(members.cycle().size() == 1);
  }
  for (int me = 0; me < 2; ++me) members.ask(me, request(Verb::allreduce, "name0"));
  CHECK(members.cycle().size() == 1);  // told anew, since nobody knows its number any more
  CHECK(members.num_message_bytes > 40);
}

// A request that is withdrawn, and made again in the same message, meets only the new ones.
void test_withdrawn() {
  Members members(2);
  for (const int me : {0, 1}) {  // whoever's message is read first
    auto made = request(Verb::allreduce, "x");
    auto completion = made->completion;
    members.ask(me, std::move(made));
    CHECK(members.cycle().empty());
    members.withdraw(me, completion);
    members.ask(1 - me, request(Verb::allreduce, "x"));
    CHECK(members.cycle().empty());
    CHECK(members.ledger(me).take_withdrawn().size() == 1);
    CHECK(!members.ledger(me).has_pending() && members.ledger(1 - me).has_pending());
    made = request(Verb::allreduce, "x");
    members.ask(me, std::move(made));
    CHECK(members.cycle() == std::vector<std::string>{key("x")});
    // Too late: it was served.
    members.withdraw(me, completion);
    members.ask(me, request(Verb::allreduce, "y"));
    CHECK(members.cycle().empty());
    CHECK(members.ledger(me).take_withdrawn().empty());
    members.ask(1 - me, request(Verb::allreduce, "y"));
    CHECK(members.cycle() == std::vector<std::string>{key("y")});
  }
}

// Members whose steps fail at the same time withdraw in the same cycle what a third one has not asked
// for. The first withdrawal takes out the request of the second member, whose own withdrawal was taken
// for a message that makes no sense, and ended the set.
void test_withdrawn_by_two_at_once() {
  Members members(3);
  std::shared_ptr<Completion> asked[2];
  for (const int me : {0, 1}) {
    auto made = request(Verb::allreduce, "x");
    made->descriptor.stamp = {1, 1};
    asked[me] = made->completion;
    members.ask(me, std::move(made));
  }
  CHECK(members.cycle().empty());
  for (const int me : {0, 1}) members.withdraw(me, asked[me]);
  CHECK(members.cycle().empty());
  for (const int me : {0, 1}) CHECK(members.ledger(me).take_withdrawn().size() == 1);
  auto late = request(Verb::allreduce, "x");
  late->descriptor.stamp = {1, 1};
  members.ask(2, std::move(late));
  CHECK(members.cycle().empty());
  CHECK(members.ledger(2).take_stale().size() == 1);
  for (const int me : {0, 1, 2}) {
    CHECK(members.ledger(me).era() == 2);
    auto next = request(Verb::allreduce, "x");
    next->descriptor.stamp = {2, 2};
    members.ask(me, std::move(next));
  }
  CHECK(members.cycle() == std::vector<std::string>{key("x")});
}

// The steps of three members end in silence after "a", and the next ones ask for it again, before or
// after the last member comes with the "b" of its first step. One of the three was found to be in a
// later era, and what the other two had asked for was refused.
void test_steps_that_ended_in_silence(int num_before) {
  Members members(4);
  const auto ask = [&](int member, const char* name, Stamp stamp) {
    auto made = request(Verb::allreduce, name);
    made->descriptor.stamp = stamp;
    members.ask(member, std::move(made));
  };
  for (int me = 0; me < 4; ++me) ask(me, "a", {1, 1});
  CHECK(members.cycle().size() == 1);
  for (int me = 0; me < num_before; ++me) ask(me, "a", {2, 1});
  if (num_before > 0) CHECK(members.cycle().empty());
  ask(3, "b", {1, 1});
  CHECK(members.cycle().empty());
  for (int me = num_before; me < 3; ++me) ask(me, "a", {2, 1});
  if (num_before < 3) CHECK(members.cycle().empty());
  CHECK(members.ledger(3).take_stale().size() == 1);
  for (int me = 0; me < 3; ++me) CHECK(members.ledger(me).take_stale().empty());
  CHECK(members.ledger(3).era() == 2);
  ask(3, "a", {2, 2});
  CHECK(members.cycle() == std::vector<std::string>{key("a")});
  for (int me = 0; me < 4; ++me) ask(me, "b", {2, 2});
  CHECK(members.cycle() == std::vector<std::string>{key("b")});
}

void test_any_order() {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const int size = 1 + round % 4;
    Members members(size, 5);
    std::vector<std::vector<int>> orders(static_cast<size_t>(size));
    for (auto& order : orders) {
      for (int i = 0; i < 20; ++i) order.push_back(i);
      std::shuffle(order.begin(), order.end(), random);
    }
    std::multiset<std::string> found;
    while (found.size() < 20) {
      for (int me = 0; me < size; ++me) {
        auto& order = orders[static_cast<size_t>(me)];
        for (auto n = random() % 4; n > 0 && !order.empty(); --n) {
          members.ask(me, request(Verb::allreduce, std::to_string(order.back())));
          order.pop_back();
        }
      }
      for (const auto& each : members.cycle()) found.insert(each);
    }
    for (int i = 0; i < 20; ++i) CHECK(found.count(key(std::to_string(i))) == 1);
  }
}

void test_a_message_without_sense_is_refused() {
  Members good(2);
  for (int me = 0; me < 2; ++me) good.ask(me, request(Verb::allreduce, "x"));
  std::vector<std::vector<std::byte>> messages(2);
  Ledger writer(2, 0, 10);
  std::vector<std::unique_ptr<Request>> requests;
  requests.push_back(request(Verb::allreduce, "x"));
  writer.write(std::move(requests), {}, {}, messages[0]);
  for (const uint32_t id : {0u, 7u, ~0u}) {  // stuck on what nobody has asked for
    std::vector<std::vector<std::byte>> stuck(2);
    for (auto& message : stuck) {
      Writer words(message);
      for (const uint32_t number : {0u, 0u, 0u, 0u, id}) words.number(number);
    }
    Ledger reader(2, 1, 10);
    std::vector<Agreement> ready;
    CHECK(!reader.read(stuck, ready));
  }
  const auto whole = messages[0];
  for (size_t length = 1; length < whole.size(); ++length) {
    messages[0].assign(whole.begin(), whole.begin() + static_cast<long>(length));
    Ledger reader(2, 1, 10);
    std::vector<Agreement> ready;
    CHECK(!reader.read(messages, ready));
  }
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    messages[0] = whole;
    messages[0][random() % whole.size()] = static_cast<std::byte>(random());
    Ledger reader(2, 1, 10);
    std::vector<Agreement> ready;
    reader.read(messages, ready);  // may be refused or not; must not go astray
  }
}

}  // namespace

int main() {
  test_ready_when_all_have_asked();
  test_a_name_is_told_once();
  test_disagreement_is_found_by_all();
  test_join();
  test_a_deadlock_is_found_by_all();
  test_old_names_are_forgotten_alike();
  test_withdrawn();
  test_withdrawn_by_two_at_once();
  for (const int num_before : {0, 1, 2, 3}) test_steps_that_ended_in_silence(num_before);
  test_any_order();
  test_a_message_without_sense_is_refused();
}
