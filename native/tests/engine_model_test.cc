// All interleavings of two more protocols: the bell that the engine's thread sleeps on
// (Channel::ring, Channel::await_ring), and the slots of outboxes (outbox.cc).
//
// One step for each access to shared memory. The bell asks for sequential consistency; words of
// outboxes are released and acquired, and each is written by one rank only.
//
// A check that cannot fail shows nothing, so each protocol is also explored with one line of it
// broken, in each way that looks harmless: every one of these must be found out.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <set>
#include <vector>

#include "harness.h"

namespace {

struct Explored {
  size_t num_states = 0;
  size_t num_faults = 0;  // states in which something does not hold
};

// `move` gives what became of a step: impossible, done, or done although something did not hold.
enum Moved : uint8_t { impossible, done, wrong };

Moved held(bool holds) { return holds ? done : wrong; }

template <typename State, typename Move, typename End>
Explored explore(const State& start, int num_threads, Move move, End holds_at_end) {
  Explored explored;
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
        const Moved moved = move(next, thread, choice);
        if (moved == impossible) continue;
        ++num_moves;
        if (moved == wrong) {
          ++explored.num_faults;
        } else if (seen.insert(next).second) {
          todo.push_back(next);
        }
      }
    }
    if (num_moves == 0 && !holds_at_end(state)) ++explored.num_faults;
  }
  explored.num_states = seen.size();
  return explored;
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

enum class BellBreak : uint8_t {
  none,
  sleeps_without_a_second_look,  // at the number of rings
  counts_after_looking,          // rings between are missed
  rings_before_giving,           // the sleeper looks, and finds nothing
  does_not_say_asleep,           // who rings sees nobody to wake
};

struct Bell {
  std::array<BellStep, 3> steps{start_listening, give_work, give_work};
  std::array<uint8_t, 3> has_given{};
  uint8_t num_rings = 0, seen = 0, num_done = 0;
  bool is_listening = false, is_asleep = false;
  auto operator<=>(const Bell&) const = default;
};

Moved move_sleeper(Bell& bell, BellBreak broken) {
  BellStep& step = bell.steps[0];
  switch (step) {
    case start_listening:
      bell.is_listening = true;
      step = broken == BellBreak::counts_after_looking ? look_for_work : count_rings;
      return done;
    case count_rings:
      bell.seen = bell.num_rings;
      step = broken == BellBreak::counts_after_looking ? say_asleep : look_for_work;
      return done;
    case look_for_work:
      for (const int giver : {1, 2}) {
        if (bell.has_given[giver] == 1) {
          bell.has_given[giver] = 2;
          ++bell.num_done;
          step = bell.num_done == 2                          ? through
                 : broken == BellBreak::counts_after_looking ? look_for_work
                                                             : count_rings;
          return done;
        }
      }
      step = broken == BellBreak::counts_after_looking ? count_rings : say_asleep;
      return done;
    case say_asleep:
      bell.is_asleep = broken != BellBreak::does_not_say_asleep;
      step = sleep_or_go;
      return done;
    case sleep_or_go:
      if (broken == BellBreak::sleeps_without_a_second_look) {
        step = asleep;
      } else {
        step = bell.num_rings == bell.seen ? asleep : say_awake;
      }
      return done;
    case say_awake:
      bell.is_asleep = false;
      step = broken == BellBreak::counts_after_looking ? look_for_work : count_rings;
      return done;
    default:
      return impossible;
  }
}

Moved move_bell(Bell& bell, int thread, bool choice, BellBreak broken) {
  if (choice) return impossible;
  if (thread == 0) return move_sleeper(bell, broken);
  const bool is_reversed = broken == BellBreak::rings_before_giving;
  BellStep& step = bell.steps[thread];
  switch (step) {
    case give_work:
      bell.has_given[thread] = 1;
      step = is_reversed ? through : look_for_listener;
      return done;
    case look_for_listener:  // who does not listen yet looks for work before it sleeps
      if (bell.is_listening) {
        step = ring;
      } else {
        step = is_reversed ? give_work : through;
      }
      return done;
    case ring:
      ++bell.num_rings;
      step = look_for_sleeper;
      return done;
    case look_for_sleeper:
      if (bell.is_asleep && bell.steps[0] == asleep) bell.steps[0] = say_awake;
      step = is_reversed ? give_work : through;
      return done;
    default:
      return impossible;
  }
}

Explored explore_bell(BellBreak broken) {
  Bell start;
  if (broken == BellBreak::rings_before_giving) {
    start.steps = {start_listening, look_for_listener, look_for_listener};
  }
  const auto move = [broken](Bell& bell, int thread, bool choice) {
    return move_bell(bell, thread, choice, broken);
  };
  // Otherwise it sleeps beside work.
  return explore(start, 3, move, [](const Bell& bell) { return bell.num_done == 2; });
}

// ---- outboxes: two ranks, two slots each, blocks that are posted and taken at will ----------------

constexpr int num_slots = 2, num_blocks = 5;

enum BoxStep : uint8_t { idle, write_mark, write_posted, read_mark, read_slot };

enum class BoxBreak : uint8_t {
  none,
  posts_before_the_mark,   // readers find no mark, or that of an older block
  takes_what_others_lack,  // a rank reads a block that its owner has not posted
  uses_slots_too_early,    // the owner forgets that the other may still read
  takes_before_reading,    // says that it has taken what it has yet to read
};

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

Moved move_box(Boxes& boxes, int me, bool wants_to_take, BoxBreak broken) {
  Box& mine = boxes[me];
  const Box& other = boxes[1 - me];
  const bool is_early = broken == BoxBreak::uses_slots_too_early;
  const uint8_t least_taken = is_early ? mine.taken : std::min(mine.taken, other.taken);
  switch (mine.step) {
    case idle:
      if (wants_to_take) {
        // A rank takes a block when all have posted it, itself included.
        const bool lacks = other.posted <= mine.taken && broken != BoxBreak::takes_what_others_lack;
        if (mine.taken == num_blocks || lacks || mine.posted <= mine.taken) {
          return impossible;
        }
        mine.step = read_mark;
        return done;
      }
      if (mine.posted == num_blocks || least_taken + num_slots <= mine.posted) return impossible;
      if (!find_slot(mine, least_taken)) return wrong;
      mine.slots[mine.slot] = mine.posted;
      mine.holds[mine.slot] = mine.posted;
      mine.step = broken == BoxBreak::posts_before_the_mark ? write_posted : write_mark;
      return done;
    case write_mark:
      if (wants_to_take) return impossible;
      if (broken == BoxBreak::posts_before_the_mark) {
        mine.marks[(mine.posted - 1) % num_slots] = static_cast<uint8_t>(mine.slot + 1);
        mine.step = idle;
        return done;
      }
      mine.marks[mine.posted % num_slots] = static_cast<uint8_t>(mine.slot + 1);
      mine.step = write_posted;
      return done;
    case write_posted:
      if (wants_to_take) return impossible;
      ++mine.posted;
      mine.step = broken == BoxBreak::posts_before_the_mark ? write_mark : idle;
      return done;
    case read_mark:
      if (wants_to_take) return impossible;
      mine.mark = other.marks[mine.taken % num_slots];
      if (broken == BoxBreak::takes_before_reading) ++mine.taken;
      mine.step = read_slot;
      return held(mine.mark != 0);
    case read_slot:
      if (wants_to_take) return impossible;
      if (broken == BoxBreak::takes_before_reading) --mine.taken;
      mine.step = idle;
      ++mine.taken;
      return held(other.slots[mine.mark - 1] == mine.taken - 1);
  }
  return impossible;
}

Explored explore_boxes(BoxBreak broken) {
  const auto move = [broken](Boxes& boxes, int thread, bool choice) {
    return move_box(boxes, thread, choice, broken);
  };
  return explore(Boxes{}, 2, move, [](const Boxes& boxes) {
    for (const Box& box : boxes) {
      if (box.posted != num_blocks || box.taken != num_blocks) return false;
    }
    return true;
  });
}

}  // namespace

int main() {
  const Explored bell = explore_bell(BellBreak::none);
  std::printf("bell: %zu states\n", bell.num_states);
  CHECK(bell.num_faults == 0);
  for (const BellBreak broken :
       {BellBreak::sleeps_without_a_second_look, BellBreak::counts_after_looking,
        BellBreak::rings_before_giving, BellBreak::does_not_say_asleep}) {
    const Explored found = explore_bell(broken);
    std::printf("bell, broken %d: %zu states, %zu faults\n", static_cast<int>(broken),
                found.num_states, found.num_faults);
    CHECK(found.num_faults > 0);
  }
  const Explored boxes = explore_boxes(BoxBreak::none);
  std::printf("outboxes: %zu states\n", boxes.num_states);
  CHECK(boxes.num_faults == 0);
  for (const BoxBreak broken : {BoxBreak::posts_before_the_mark, BoxBreak::takes_what_others_lack,
                                BoxBreak::uses_slots_too_early, BoxBreak::takes_before_reading}) {
    const Explored found = explore_boxes(broken);
    std::printf("outboxes, broken %d: %zu states, %zu faults\n", static_cast<int>(broken),
                found.num_states, found.num_faults);
    CHECK(found.num_faults > 0);
  }
}
