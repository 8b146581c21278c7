// Fault injection: named points, compiled in, that tests arm to kill or stop
// this process just there.
//
// A point is "<collective>.<phase>". An unarmed point costs one relaxed load and a comparison.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "call.h"

namespace kadril {

enum class Phase : uint8_t {
  enter,       // before anything is posted
  published,   // the call is posted, the peers' are not yet seen
  mid_copy,    // data is written for the peers but not announced
  mid_reduce,  // part of the result is written
  reduced,     // the whole result is written, the peers are not yet told
  wait,        // about to wait for a peer
  exit,        // all is done but the return
};
inline constexpr int num_phases = 7;

namespace fault {

inline std::atomic<int> armed_point{-1};

void trigger();  // counts down and acts

inline void hit(Kind kind, Phase phase) {
  const int point = static_cast<int>(kind) * num_phases + static_cast<int>(phase);
  if (armed_point.load(std::memory_order_relaxed) == point) [[unlikely]] {
    trigger();
  }
}

// "point:action", "point:action#n" for the n-th hit, or "" to disarm. Actions: kill, stop, abort.
// Returns what is wrong with the text, or an empty string.
std::string arm(std::string_view text);

std::vector<std::string> points();

}  // namespace fault
}  // namespace kadril
