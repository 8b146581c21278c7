// All interleavings of the search for deadlocks across process sets (waits.cc) with the engines that
// serve their requests: one is found only where there is one, and where there is one it is found.
//
// Each rank has one thread with a program of requests, for which it waits or not, and an engine for
// each set: asleep -> in a cycle -> serving -> asleep. All engines keep the same ledger. A wait is
// published in one step here: how that is read while it changes is the matter of waits_model_test.cc.
// Programs come to one end, however steps are interleaved; a rank that does not get through its own
// is stuck. Rank 0 looks whenever it likes; all threads publish and withdraw waits at any moment.
//
// A check that cannot fail shows nothing, so the protocol is also explored with one line of it broken:
// each of these must be found to call ranks deadlocked that are not.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <unordered_set>
#include <vector>

#include "harness.h"

namespace {

constexpr int num_ranks = 2;
constexpr int num_sets = 2;
constexpr uint8_t everyone = (1 << num_ranks) - 1;

enum Broken : uint8_t {
  nothing,
  submitting_leaves_quiet,  // a request in the inbox does not stir the engine
  any_cycle_will_do,        // sleepers of an earlier cycle are taken for late
  awake_will_do,            // an engine that is awake is taken for one that has nothing to tell
  num_broken,
};

struct Request {
  uint8_t set, name;
  bool waits;
};
using Program = std::vector<Request>;

enum Phase : uint8_t { settling, asleep, exchanging, serving };

struct Engine {
  uint8_t phase = settling;
  uint8_t inbox = 0, done = 0;             // names, as bits
  std::array<uint8_t, num_ranks> asked{};  // its ledger: names that each member waits for
  std::array<uint8_t, 2> message{};        // by the parity of the cycle
  uint8_t num_posts = 0, num_cycles = 0;
  uint8_t exchange = 0;  // the cycle that is under way, or 0
  uint8_t is_quiet = 0, is_pending = 0, quiet_cycles = 0, num_quiet = 0;  // its activity
};

enum Step : uint8_t { calling, sleeping, looking, publishing, published, finished };
enum Kind : uint8_t { no_wait, cycle, request };

struct Target {
  uint8_t kind = no_wait, set = 0, count = 0, missing = 0;
  bool operator==(const Target&) const = default;
};

struct Rank {
  uint8_t step = calling, call = 0, exchange = 0;
  Target wanted;        // what it is about to publish
  uint8_t version = 0;  // what others see
  Target target;
  std::array<Engine, num_sets> engines;
};

struct View {
  uint8_t version = 0, late = 0, is_blocked = 0;
  Target target;
  std::array<uint8_t, num_ranks> num_quiet{};  // of engines that were found quiet; 0: not looked at
};

struct State {
  std::array<Rank, num_ranks> ranks;
  std::array<View, num_ranks> views;
  uint8_t look = 0;
};
static_assert(alignof(State) == 1);

std::string key(const State& state) {
  return {reinterpret_cast<const char*>(&state), sizeof state};
}

class Model {
 public:
  Model(const std::array<Program, num_ranks>& programs, Broken broken)
      : programs_(programs), broken_(broken) {
    const State end = run_to_the_end();
    expects_ = finds_at_the_end(end);
    explore();
  }
  size_t num_states() const { return seen_.size(); }
  bool is_wrong() const { return is_wrong_; }
  bool has_found() const { return has_found_; }
  bool expects() const { return expects_; }

 private:
  const Request& call_of(const State& state, int me) const {
    return programs_[me][state.ranks[me].call];
  }
  Engine& engine_of(State& state, int me) const {
    return state.ranks[me].engines[call_of(state, me).set];
  }

  void go_on(Rank& rank, int me) const {
    ++rank.call;
    rank.step = rank.call == programs_[me].size() ? finished : calling;
  }

  bool is_done(const State& state, int me) const {
    const Request& call = call_of(state, me);
    return state.ranks[me].engines[call.set].done >> call.name & 1;
  }

  // As Waiters::find_target does, from what was seen of the cycle before.
  Target find_target(const State& state, int me, uint8_t exchange) const {
    const Request& call = call_of(state, me);
    const Engine& engine = state.ranks[me].engines[call.set];
    Target target;
    if (exchange > 0) return {cycle, call.set, static_cast<uint8_t>(exchange - 1), 0};
    if (!engine.is_quiet || !(engine.asked[me] >> call.name & 1)) return target;
    target = {request, call.set, engine.quiet_cycles, 0};
    for (int other = 0; other < num_ranks; ++other) {
      if (!(engine.asked[other] >> call.name & 1)) target.missing |= 1 << other;
    }
    return target;
  }

  bool move_thread(State& state, int me, bool choice) const {
    Rank& rank = state.ranks[me];
    if (choice && rank.step != sleeping && rank.step != published) return false;
    switch (rank.step) {
      case calling: {
        const Request& call = call_of(state, me);
        Engine& engine = engine_of(state, me);
        engine.inbox |= 1 << call.name;
        if (broken_ != submitting_leaves_quiet) engine.is_quiet = 0;
        if (call.waits) {
          rank.step = sleeping;
        } else {
          go_on(rank, me);
        }
        return true;
      }
      case sleeping:
        if (choice) {
          rank.exchange = engine_of(state, me).exchange;
          rank.step = looking;
          return true;
        }
        if (!is_done(state, me)) return false;
        go_on(rank, me);
        return true;
      case looking:
        rank.step = sleeping;
        if (is_done(state, me)) return true;
        rank.wanted = find_target(state, me, rank.exchange);
        if (rank.wanted.kind != no_wait) rank.step = publishing;
        rank.exchange = 0;
        return true;
      case publishing:
        rank.target = rank.wanted;
        rank.wanted = {};
        ++rank.version;
        rank.step = published;
        return true;
      case published: {
        // It also withdraws where there is something else to be said.
        const uint8_t exchange = engine_of(state, me).exchange;
        if (choice ? find_target(state, me, exchange) == rank.target : !is_done(state, me)) {
          return false;
        }
        rank.target = {};
        ++rank.version;
        rank.step = sleeping;
        return true;
      }
      default:
        return false;
    }
  }

  bool move_engine(State& state, int me, int set) const {
    Engine& engine = state.ranks[me].engines[set];
    const auto parity = static_cast<size_t>(engine.num_cycles % 2);
    switch (engine.phase) {
      case asleep: {
        bool is_asked = false;
        for (const Rank& other : state.ranks) {
          is_asked |= other.engines[set].num_posts > engine.num_cycles;
        }
        if (engine.inbox == 0 && !(engine.asked[me] && is_asked)) return false;
        engine.is_quiet = 0;
        engine.message[parity] = engine.inbox;
        engine.inbox = 0;
        engine.exchange = engine.num_cycles + 1;
        ++engine.num_posts;
        engine.phase = exchanging;
        return true;
      }
      case exchanging:
        for (const Rank& other : state.ranks) {
          if (other.engines[set].num_posts <= engine.num_cycles) return false;
        }
        for (int other = 0; other < num_ranks; ++other) {
          engine.asked[other] |= state.ranks[other].engines[set].message[parity];
        }
        engine.exchange = 0;
        ++engine.num_cycles;
        engine.phase = serving;
        return true;
      case serving: {
        uint8_t served = 0xff;
        for (const uint8_t asked : engine.asked) served &= asked;
        for (uint8_t& asked : engine.asked) asked &= ~served;
        engine.done |= served;
        engine.phase = settling;
        return true;
      }
      case settling:
        engine.phase = asleep;  // with something in the inbox it wakes at once
        if (engine.inbox != 0) return true;
        engine.is_quiet = 1;
        engine.is_pending = engine.asked[me] != 0;
        engine.quiet_cycles = engine.num_cycles;
        ++engine.num_quiet;
        return true;
      default:
        return false;
    }
  }

  // As Channel::late_ranks does.
  void find_late(const State& state, int me, View& view) const {
    for (int other = 0; other < num_ranks; ++other) {
      const Engine& engine = state.ranks[other].engines[view.target.set];
      if (other == me) continue;
      if (!engine.is_quiet && broken_ != awake_will_do) continue;
      if (engine.quiet_cycles != view.target.count && broken_ != any_cycle_will_do) continue;
      if (view.target.kind == cycle ? engine.is_pending : !(view.target.missing >> other & 1)) {
        continue;
      }
      view.late |= 1 << other;
      view.num_quiet[other] = engine.num_quiet;
    }
  }

  bool are_still_quiet(const State& state) const {
    if (broken_ == awake_will_do) return true;
    for (const View& view : state.views) {
      for (int other = 0; other < num_ranks; ++other) {
        const Engine& engine = state.ranks[other].engines[view.target.set];
        if (view.num_quiet[other] == 0) continue;
        if (!engine.is_quiet || engine.num_quiet != view.num_quiet[other]) return false;
      }
    }
    return true;
  }

  static bool is_within_a_set(const State& state) {
    for (const View& view : state.views) {
      if (view.target.set != state.views[0].target.set) return false;
    }
    return true;
  }

  // One step of rank 0's search; `found` is set where it ends with a deadlock of rank 0.
  bool search(State& state, uint8_t& found) const {
    if (state.ranks[0].step != published) return false;
    const int phase = state.look / num_ranks, rank = state.look % num_ranks;
    const Rank& shared = state.ranks[rank];
    View& view = state.views[rank];
    ++state.look;
    if (phase == 0) {
      view = {};
      view.version = shared.version;
      view.target = shared.target;
      view.is_blocked = view.target.kind != no_wait;
      if (!view.is_blocked) give_up(state);
    } else if (phase == 1) {
      find_late(state, rank, view);
      if (view.late == 0) give_up(state);
    } else if (phase == 2) {
      // One by one in the code, which makes it no easier to pass.
      if (rank == 0 && (is_within_a_set(state) || !are_still_quiet(state))) {
        give_up(state);
      }
    } else if (shared.version != view.version) {
      give_up(state);
    } else if (rank == num_ranks - 1) {
      found = everyone;
      give_up(state);
    }
    return true;
  }

  // Of two ranks, neither is deadlocked without the other.
  static void give_up(State& state) {
    state.look = 0;
    state.views = {};
  }

  void explore() {
    std::vector<State> todo{State{}};
    seen_.insert(key(todo.back()));
    const auto go_to = [&](const State& next) {
      if (seen_.insert(key(next)).second) todo.push_back(next);
    };
    while (!todo.empty() && !is_wrong_) {
      const State state = todo.back();
      todo.pop_back();
      for (int rank = 0; rank < num_ranks; ++rank) {
        for (const bool choice : {false, true}) {
          State next = state;
          if (move_thread(next, rank, choice)) go_to(next);
        }
        for (int set = 0; set < num_sets; ++set) {
          State next = state;
          if (move_engine(next, rank, set)) go_to(next);
        }
      }
      State next = state;
      uint8_t found = 0;
      if (!search(next, found)) continue;
      has_found_ |= found != 0;
      is_wrong_ |= (found & ~stuck_) != 0;  // somebody in it would have gone on
      go_to(next);
    }
  }

  State run_to_the_end() {
    State state;
    bool moves = true;
    while (moves) {
      moves = false;
      for (int rank = 0; rank < num_ranks; ++rank) {
        moves |= move_thread(state, rank, false);
        for (int set = 0; set < num_sets; ++set) moves |= move_engine(state, rank, set);
      }
    }
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (state.ranks[rank].step != finished) stuck_ |= 1 << rank;
    }
    return state;
  }

  // Whether all ranks are stuck, in different sets, since none has asked for what another waits for.
  bool finds_at_the_end(const State& end) const {
    if (stuck_ != everyone) return false;
    return call_of(end, 0).set != call_of(end, 1).set;
  }

  const std::array<Program, num_ranks> programs_;
  const Broken broken_;
  uint8_t stuck_ = 0;
  bool expects_ = false, has_found_ = false, is_wrong_ = false;
  std::unordered_set<std::string> seen_;
};

// Asks for something in a set, and waits for it or not.
constexpr Request waits(uint8_t set, uint8_t name = 0) { return {set, name, true}; }
constexpr Request asks(uint8_t set, uint8_t name = 0) { return {set, name, false}; }

const std::vector<std::array<Program, num_ranks>> all_programs{
    {{{waits(0), waits(1)}, {waits(1), waits(0)}}},  // a deadlock
    {{{waits(0), waits(1)}, {asks(0), waits(1)}}},
    {{{asks(0), waits(1)}, {asks(1), waits(0)}}},
    {{{waits(0), waits(1)}, {waits(0)}}},                // late, and no deadlock
    {{{asks(1, 1), waits(0)}, {asks(0, 1), waits(1)}}},  // engines have something pending
    {{{asks(0, 1), waits(0)}, {asks(0), waits(1)}}},     // late
};

}  // namespace

int main() {
  std::array<int, num_broken> num_wrong{};
  size_t num_states = 0;
  int num_deadlocks = 0, num_models = 0;
  for (const auto& programs : all_programs) {
    for (int broken = 0; broken < num_broken; ++broken) {
      if (broken != nothing && num_wrong[broken] > 0) continue;  // found out already
      const Model model(programs, static_cast<Broken>(broken));
      num_wrong[broken] += model.is_wrong();
      if (broken != nothing) continue;
      CHECK(!model.is_wrong());
      CHECK(model.has_found() == model.expects());
      num_states += model.num_states();
      num_deadlocks += model.has_found();
      ++num_models;
    }
  }
  for (int broken = nothing + 1; broken < num_broken; ++broken) CHECK(num_wrong[broken] > 0);
  std::printf("%zu states of %d programs, %d of which deadlock\n", num_states, num_models,
              num_deadlocks);
  CHECK(num_deadlocks > 0 && num_deadlocks < num_models);
}
