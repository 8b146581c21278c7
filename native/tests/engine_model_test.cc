// All interleavings of two more protocols: the bell that the engine's thread sleeps on
// (Channel::ring, Channel::await_ring), and the slots of outboxes (outbox.cc).
//
// One step for each access to shared memory. The bell asks for sequential consistency; words of
// outboxes are released and acquired, and each is written by one rank only.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <set>
#include <vector>

#include "harness.h"

namespace {

template <typename State, typename Move, typename End>
size_t explore(const State& start, int num_threads, Move move, End check_end) {
  std::vector<State> todo{start};
  std::set<State> seen{start};
  while (!todo.empty()) {
    const State state = todo.back();
    todo.pop_back();
    int num_moves = 0;
    for (int thread = 0; thread < num_threads; ++thread) {
      // A thread may have a choice of two.
      for (const bool choice : {false, true}) {
        State next = state;
        if (!move(next, thread, choice)) continue;
        ++num_moves;
        if (seen.insert(next).second) todo.push_back(next);
      }
    }
    if (num_moves == 0) check_end(state);
  }
  return seen.size();
}

// ---- the bell: threads 1 and 2 give work and ring; thread 0 must not sleep while there is some ----

enum BellStep : uint8_t {
  // of the one who sleeps
  start_listening,
  count_rings,
  look_for_work,
  say_asleep,
  sleep_or_go,
  asleep,
  say_awake,
  // of those who ring
  give_work,
  look_for_listener,
  ring,
  look_for_sleeper,
  through,
};

struct Bell {
  std::array<BellStep, 3> steps{start_listening, give_work, give_work};
  std::array<uint8_t, 3> has_given{};
  uint8_t num_rings = 0, seen = 0, num_done = 0;
  bool is_listening = false, is_asleep = false;
  auto operator<=>(const Bell&) const = default;
};

bool move_sleeper(Bell& bell) {
  BellStep& step = bell.steps[0];
  switch (step) {
    case start_listening:
      bell.is_listening = true;
      step = count_rings;
      return true;
    case count_rings:
      bell.seen = bell.num_rings;
      step = look_for_work;
      return true;
    case look_for_work:
      for (const int giver : {1, 2}) {
        if (bell.has_given[giver] == 1) {
          bell.has_given[giver] = 2;
          ++bell.num_done;
          step = bell.num_done == 2 ? through : count_rings;
          return true;
        }
      }
      step = say_asleep;
      return true;
    case say_asleep:
      bell.is_asleep = true;
      step = sleep_or_go;
      return true;
    case sleep_or_go:
      step = bell.num_rings == bell.seen ? asleep : say_awake;
      return true;
    case say_awake:
      bell.is_asleep = false;
      step = count_rings;
      return true;
    default:
      return false;
  }
}

bool move_bell(Bell& bell, int thread, bool choice) {
  if (choice) return false;
  if (thread == 0) return move_sleeper(bell);
  BellStep& step = bell.steps[thread];
  switch (step) {
    case give_work:
      bell.has_given[thread] = 1;
      step = look_for_listener;
      return true;
    case look_for_listener:  // who does not listen yet looks for work before it sleeps
      step = bell.is_listening ? ring : through;
      return true;
    case ring:
      ++bell.num_rings;
      step = look_for_sleeper;
      return true;
    case look_for_sleeper:
      if (bell.is_asleep && bell.steps[0] == asleep) bell.steps[0] = say_awake;
      step = through;
      return true;
    default:
      return false;
  }
}

// ---- outboxes: two ranks, two slots each, blocks that are posted and taken at will ----------------

constexpr int num_slots = 2, num_blocks = 5;

enum BoxStep : uint8_t { idle, write_mark, write_posted, read_mark, read_slot };

struct Box {
  BoxStep step = idle;
  uint8_t posted = 0, taken = 0, slot = 0, mark = 0;
  std::array<uint8_t, num_slots> marks{}, slots{255, 255};
  std::array<uint8_t, num_slots> holds{255, 255};  // block in each slot, as its owner knows
  auto operator<=>(const Box&) const = default;
};

using Boxes = std::array<Box, 2>;

// The slot that was emptied: its block was taken by all.
bool find_slot(Box& mine, uint8_t least_taken) {
  for (uint8_t slot = 0; slot < num_slots; ++slot) {
    if (mine.holds[slot] == 255 || mine.holds[slot] < least_taken) {
      mine.slot = slot;
      return true;
    }
  }
  return false;
}

bool move_box(Boxes& boxes, int me, bool wants_to_take) {
  Box& mine = boxes[me];
  const Box& other = boxes[1 - me];
  const uint8_t least_taken = std::min(mine.taken, other.taken);
  switch (mine.step) {
    case idle:
      if (wants_to_take) {
        // A rank takes a block when all have posted it, itself included.
        if (mine.taken == num_blocks || other.posted <= mine.taken || mine.posted <= mine.taken) {
          return false;
        }
        mine.step = read_mark;
        return true;
      }
      if (mine.posted == num_blocks || least_taken + num_slots <= mine.posted) return false;
      CHECK(find_slot(mine, least_taken));
      mine.slots[mine.slot] = mine.posted;
      mine.holds[mine.slot] = mine.posted;
      mine.step = write_mark;
      return true;
    case write_mark:
      if (wants_to_take) return false;
      mine.marks[mine.posted % num_slots] = static_cast<uint8_t>(mine.slot + 1);
      mine.step = write_posted;
      return true;
    case write_posted:
      if (wants_to_take) return false;
      ++mine.posted;
      mine.step = idle;
      return true;
    case read_mark:
      if (wants_to_take) return false;
      mine.mark = other.marks[mine.taken % num_slots];
      CHECK(mine.mark != 0);
      mine.step = read_slot;
      return true;
    case read_slot:
      if (wants_to_take) return false;
      CHECK(other.slots[mine.mark - 1] == mine.taken);
      ++mine.taken;
      mine.step = idle;
      return true;
  }
  return false;
}

}  // namespace

int main() {
  const size_t num_bells = explore(Bell{}, 3, move_bell, [](const Bell& bell) {
    CHECK(bell.num_done == 2);  // else it sleeps beside work
  });
  std::printf("bell: %zu states\n", num_bells);
  const size_t num_boxes = explore(Boxes{}, 2, move_box, [](const Boxes& boxes) {
    for (const Box& box : boxes) CHECK(box.posted == num_blocks && box.taken == num_blocks);
  });
  std::printf("outboxes: %zu states\n", num_boxes);
}
