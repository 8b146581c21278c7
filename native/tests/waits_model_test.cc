// All interleavings of the search for deadlocks of waits.cc: one is found only where there is one,
// whatever the ranks do while they are looked at; and where there is one it is found.
//
// Each rank is one thread that meets the others in two channels, in the order of its own program.
// Programs of all ranks have one end together, however their steps are interleaved; a rank that does
// not get through its program is deadlocked. The model has one step for each access to shared memory.
// Rank 0 looks whenever it likes; all of them publish and withdraw their waits at any moment.
#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "harness.h"

namespace {

constexpr int num_ranks = 3;
constexpr int num_calls = 2;
constexpr uint8_t none = 2;
// Of each channel, as bits: one of all ranks, and one of ranks 0 and 1.
constexpr std::array<uint8_t, 2> members{0b111, 0b011};

using Programs = std::array<std::array<uint8_t, num_calls>, num_ranks>;  // channel of each call

enum Step : uint8_t { calling, waiting, opening, filling, published, closing, clearing, finished };

struct Rank {
  Step step = calling;
  uint8_t call = 0;
  std::array<uint8_t, 2> words{};  // posts in each channel
  // What others see of its wait:
  uint8_t version = 0, channel = none, target = 0;
  auto operator<=>(const Rank&) const = default;
};

struct View {
  uint8_t version = 0, channel = none, target = 0, late = 0;
  bool is_blocked = false;
  auto operator<=>(const View&) const = default;
};

struct State {
  std::array<Rank, num_ranks> ranks;
  std::array<View, num_ranks> views;
  uint8_t look = 0;  // position of the search
  auto operator<=>(const State&) const = default;
};

class Model {
 public:
  explicit Model(const Programs& programs) : programs_(programs) {
    stuck_ = run_to_the_end();
    State start;
    for (int rank = 0; rank < num_ranks; ++rank) skip_calls(start.ranks[rank], rank);
    explore(start);
    CHECK(num_found_ == 0 || (stuck_ & 1));
    CHECK(num_found_ > 0 || !(stuck_ & 1) || !has_deadlock_of_all());
  }
  size_t num_states() const { return seen_.size(); }
  bool has_found() const { return num_found_ > 0; }

 private:
  uint8_t channel_of(const Rank& rank, int me) const { return programs_[me][rank.call]; }

  // Go to the next call of the program, over those that are none.
  void skip_calls(Rank& rank, int me) const {
    while (rank.call < num_calls && channel_of(rank, me) == none) ++rank.call;
    rank.step = rank.call == num_calls ? finished : calling;
  }

  static uint8_t late_at(const State& state, int me, int channel, int target) {
    uint8_t late = 0;
    for (int other = 0; other < num_ranks; ++other) {
      if (other == me || !(members[channel] >> other & 1)) continue;
      if (state.ranks[other].words[channel] < target) late |= 1 << other;
    }
    return late;
  }

  bool has_met(const State& state, int me) const {
    const Rank& rank = state.ranks[me];
    const int channel = channel_of(rank, me);
    return late_at(state, me, channel, rank.words[channel]) == 0;
  }

  // One step of a rank; `choice` 1 publishes its wait, where it may also just go on waiting.
  bool move(State& state, int me, int choice) const {
    Rank& rank = state.ranks[me];
    if (choice == 1 && rank.step != waiting) return false;
    switch (rank.step) {
      case calling:
        ++rank.words[channel_of(rank, me)];
        rank.step = waiting;
        return true;
      case waiting:
        if (choice == 1) {
          rank.step = opening;
          return true;
        }
        if (!has_met(state, me)) return false;
        ++rank.call;
        skip_calls(rank, me);
        return true;
      case opening:
        ++rank.version;
        rank.step = filling;
        return true;
      case filling:
        rank.channel = channel_of(rank, me);
        rank.target = rank.words[rank.channel];
        ++rank.version;
        rank.step = published;
        return true;
      case published:
        if (!has_met(state, me)) return false;
        rank.step = closing;
        return true;
      case closing:
        ++rank.version;
        rank.step = clearing;
        return true;
      case clearing:
        rank.channel = none;
        ++rank.version;
        ++rank.call;
        skip_calls(rank, me);
        return true;
      case finished:
        return false;
    }
    return false;
  }

  // One step of rank 0's search: for each rank its version, its wait, its version again; the words
  // of each wait; all versions again. `found` is set where that ends with a deadlock of rank 0.
  bool search(State& state, uint8_t& found) const {
    if (state.ranks[0].step != published) return false;
    const int phase = state.look / num_ranks, rank = state.look % num_ranks;
    const Rank& shared = state.ranks[rank];
    View& view = state.views[rank];
    ++state.look;
    if (phase == 0) {
      view = {};
      view.version = shared.version;
    } else if (phase == 1) {
      view.channel = shared.channel;
      view.target = shared.target;
    } else if (phase == 2) {
      view.is_blocked =
          view.version % 2 == 0 && view.channel != none && shared.version == view.version;
    } else if (phase == 3) {
      if (view.is_blocked) view.late = late_at(state, rank, view.channel, view.target);
      if (rank == num_ranks - 1) strike_out(state);
    } else {
      if (view.is_blocked && shared.version != view.version) state.views[0].is_blocked = false;
      if (rank == num_ranks - 1) {
        if (state.views[0].is_blocked) found = blocked(state);
        state.look = 0;
        state.views = {};
      }
    }
    return true;
  }

  static uint8_t blocked(const State& state) {
    uint8_t bits = 0;
    for (int rank = 0; rank < num_ranks; ++rank) bits |= state.views[rank].is_blocked << rank;
    return bits;
  }

  static void strike_out(State& state) {
    for (int round = 0; round < num_ranks; ++round) {
      for (View& view : state.views) view.is_blocked &= (view.late & blocked(state)) != 0;
    }
  }

  void explore(const State& start) {
    std::vector<State> todo{start};
    seen_.insert(start);
    const auto go_to = [&](const State& next) {
      if (seen_.insert(next).second) todo.push_back(next);
    };
    while (!todo.empty()) {
      const State state = todo.back();
      todo.pop_back();
      for (int rank = 0; rank < num_ranks; ++rank) {
        for (int choice = 0; choice < 2; ++choice) {
          State next = state;
          if (move(next, rank, choice)) go_to(next);
        }
      }
      State next = state;
      uint8_t found = 0;
      if (!search(next, found)) continue;
      if (found) {
        ++num_found_;
        CHECK((found & ~stuck_) == 0);  // nobody in it could ever have gone on
      }
      go_to(next);
    }
  }

  // The ranks that do not get through, as bits: any order of steps comes to the same end.
  uint8_t run_to_the_end() {
    State state;
    for (int rank = 0; rank < num_ranks; ++rank) skip_calls(state.ranks[rank], rank);
    bool moves = true;
    while (moves) {
      moves = false;
      for (int rank = 0; rank < num_ranks; ++rank) moves |= move(state, rank, 0);
    }
    uint8_t stuck = 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (state.ranks[rank].step != finished) stuck |= 1 << rank;
    }
    end_ = state;
    return stuck;
  }

  // Whether rank 0 waits in the end for a rank that waits too, and so on: not for one that has
  // finished its program, which is late and not deadlocked.
  bool has_deadlock_of_all() const {
    uint8_t dead = stuck_;
    for (int round = 0; round < num_ranks; ++round) {
      for (int rank = 0; rank < num_ranks; ++rank) {
        if (!(dead >> rank & 1)) continue;
        const int channel = channel_of(end_.ranks[rank], rank);
        const int target = end_.ranks[rank].words[channel];
        if (!(late_at(end_, rank, channel, target) & dead)) dead &= ~(1 << rank);
      }
    }
    return dead & 1;
  }

  const Programs programs_;
  uint8_t stuck_ = 0;
  State end_;
  size_t num_found_ = 0;
  std::set<State> seen_;
};

}  // namespace

int main() {
  size_t num_states = 0, num_programs = 0, num_deadlocks = 0;
  // Programs of one or two calls for ranks 0 and 1, unlike each other; rank 2 has one or none.
  const std::vector<std::array<uint8_t, num_calls>> orders{{0, 1}, {1, 0}, {0, 0}, {1, none}};
  for (const auto& first : orders) {
    for (const auto& second : orders) {
      if (first == second) continue;
      for (const uint8_t third : {uint8_t{0}, none}) {
        const Model model(Programs{{first, second, {third, none}}});
        num_states += model.num_states();
        num_deadlocks += model.has_found();
        ++num_programs;
      }
    }
  }
  CHECK(num_deadlocks > 0 && num_deadlocks < num_programs);
  std::printf("%zu states of %zu programs, %zu of which deadlock\n", num_states, num_programs,
              num_deadlocks);
}
