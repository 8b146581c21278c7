// All interleavings of the meeting protocol of channel.cc, for two and three ranks and a few
// meetings, with an end of the channel at any moment: no wake-up is lost, no posting is read while
// it is overwritten.
//
// The model has one step for each access to shared memory, so sequential consistency is assumed;
// the code asks for it at the two places where it matters (Channel::post and Channel::sleep_for).
#include <array>
#include <cstdint>
#include <cstdio>
#include <set>
#include <vector>

#include "harness.h"

namespace {

constexpr int max_ranks = 3;
constexpr int num_meetings = 3;

enum Step : uint8_t {
  write_posting,  // of call n into buffer n % 2
  post,           // word += 1
  wake_sleepers,  // if num_sleepers > 0: wake all who sleep on my word
  announce,       // num_sleepers of the awaited peer += 1
  look,           // remember its word
  sleep_or_go,    // futex: sleep if the word is still the one remembered
  asleep,
  withdraw,       // num_sleepers -= 1
  read_postings,  // of all peers
  finished,       // all meetings done
  failed,         // saw the end of the channel
};

struct Rank {
  Step step = write_posting;
  uint8_t meeting = 0;  // number of meetings posted
  uint8_t peer = 0;     // awaited
  uint8_t seen = 0;
  uint8_t word = 0;  // posts, times two, plus one for "revoked"
  uint8_t num_sleepers = 0;
  std::array<uint8_t, 2> posting{255, 255};
  auto operator<=>(const Rank&) const = default;
};

struct State {
  std::array<Rank, max_ranks> ranks;
  uint8_t revoker = 0;  // 0: not yet; i + 1: has done the words up to i (one step each); 255: never
  auto operator<=>(const State&) const = default;
};

class Model {
 public:
  Model(int num_ranks, bool may_revoke) : num_ranks_(num_ranks) {
    State start;
    if (!may_revoke) start.revoker = 255;
    explore(start);
  }
  size_t num_states() const { return seen_.size(); }

 private:
  // Depth first, on an explicit stack.
  void explore(const State& start) {
    std::vector<State> todo{start};
    seen_.insert(start);
    while (!todo.empty()) {
      const State state = todo.back();
      todo.pop_back();
      int num_moves = 0;
      for (int rank = 0; rank < num_ranks_; ++rank) {
        State next = state;
        if (!move(next, rank)) continue;
        ++num_moves;
        if (seen_.insert(next).second) todo.push_back(next);
      }
      const bool can_revoke = state.revoker < num_ranks_;
      if (can_revoke) {
        State next = state;
        revoke_one(next);
        if (seen_.insert(next).second) todo.push_back(next);
      }
      // Nobody can move and no end is on its way: then everybody must be through.
      if (num_moves == 0 && (!can_revoke || state.revoker == 0)) check_end(state);
    }
  }

  void check_end(const State& state) const {
    for (int rank = 0; rank < num_ranks_; ++rank) {
      const Step step = state.ranks[rank].step;
      CHECK(step == finished || (step == failed && state.revoker != 255));
    }
  }

  void wake(State& state, int word_of) {
    for (int rank = 0; rank < num_ranks_; ++rank) {
      Rank& sleeper = state.ranks[rank];
      if (sleeper.step == asleep && sleeper.peer == word_of) sleeper.step = withdraw;
    }
  }

  void revoke_one(State& state) {
    state.ranks[state.revoker].word |= 1;
    wake(state, state.revoker);
    ++state.revoker;
  }

  // Go on to the next peer that has not got as far, or to reading.
  void next_peer(Rank& rank, int me) {
    do {
      ++rank.peer;
    } while (rank.peer == me);
    rank.step = rank.peer >= num_ranks_ ? read_postings : announce;
  }

  void start_waiting(Rank& rank, int me) {
    rank.peer = me == 0 ? 1 : 0;
    rank.step = announce;
  }

  bool move(State& state, int me) {
    Rank& rank = state.ranks[me];
    switch (rank.step) {
      case write_posting:
        rank.posting[rank.meeting % 2] = rank.meeting;
        rank.step = post;
        return true;
      case post:
        rank.word += 2;
        ++rank.meeting;
        rank.step = wake_sleepers;
        return true;
      case wake_sleepers:
        if (rank.num_sleepers > 0) wake(state, me);
        start_waiting(rank, me);
        return true;
      case announce:
        ++state.ranks[rank.peer].num_sleepers;
        rank.step = look;
        return true;
      case look:
        rank.seen = state.ranks[rank.peer].word;
        rank.step = (rank.seen / 2 >= rank.meeting || rank.seen % 2) ? withdraw : sleep_or_go;
        return true;
      case sleep_or_go:
        rank.step = state.ranks[rank.peer].word == rank.seen ? asleep : withdraw;
        return true;
      case asleep:
        return false;
      case withdraw:
        --state.ranks[rank.peer].num_sleepers;
        if (rank.seen / 2 >= rank.meeting) {
          next_peer(rank, me);
        } else {
          rank.step = rank.seen % 2 ? failed : announce;
        }
        return true;
      case read_postings:
        for (int peer = 0; peer < num_ranks_; ++peer) {
          CHECK(state.ranks[peer].posting[(rank.meeting - 1) % 2] == rank.meeting - 1);
        }
        rank.step = rank.meeting == num_meetings ? finished : write_posting;
        return true;
      case finished:
      case failed:
        return false;
    }
    return false;
  }

  const int num_ranks_;
  std::set<State> seen_;
};

}  // namespace

int main() {
  for (const bool may_revoke : {false, true}) {
    for (const int num_ranks : {2, 3}) {
      const Model model(num_ranks, may_revoke);
      std::printf("%d ranks, %s: %zu states\n", num_ranks, may_revoke ? "revoked" : "quiet",
                  model.num_states());
    }
  }
}
