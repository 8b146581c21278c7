#include "fault.h"

#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>

namespace kadril::fault {
namespace {

constexpr const char* phase_names[num_phases] = {"enter",   "published", "mid_copy", "mid_reduce",
                                                 "reduced", "wait",      "exit"};
constexpr int actions[] = {SIGKILL, SIGSTOP, SIGABRT};
constexpr std::string_view action_names[] = {"kill", "stop", "abort"};

std::atomic<int> countdown{0};
std::atomic<int> action_signal{0};

bool has_phase(Kind kind, Phase phase) {
  const bool moves_data =
      phase == Phase::mid_copy || phase == Phase::mid_reduce || phase == Phase::reduced;
  return !(kind == Kind::barrier && moves_data);
}

std::string name_of_point(Kind kind, Phase phase) {
  return std::string(name_of(kind)) + "." + phase_names[static_cast<int>(phase)];
}

int find_point(std::string_view name) {
  for (int kind = 0; kind < num_kinds; ++kind) {
    for (int phase = 0; phase < num_phases; ++phase) {
      if (name_of_point(Kind(kind), Phase(phase)) == name && has_phase(Kind(kind), Phase(phase))) {
        return kind * num_phases + phase;
      }
    }
  }
  return -1;
}

}  // namespace

void trigger() {
  if (countdown.fetch_sub(1) != 1) return;
  armed_point.store(-1);
  kill(getpid(), action_signal.load());
}

std::string arm(std::string_view text) {
  armed_point.store(-1);
  if (text.empty()) return {};
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return "expected point:action";
  std::string_view action = text.substr(colon + 1);
  int nth = 1;
  if (const size_t hash = action.find('#'); hash != std::string_view::npos) {
    const std::string_view digits = action.substr(hash + 1);
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), nth);
    if (parsed.ec != std::errc() || nth < 1) return "expected a count of 1 or more behind '#'";
    action = action.substr(0, hash);
  }
  const int point = find_point(text.substr(0, colon));
  if (point < 0) return "no such point: " + std::string(text.substr(0, colon));
  for (size_t i = 0; i < std::size(actions); ++i) {
    if (action != action_names[i]) continue;
    action_signal.store(actions[i]);
    countdown.store(nth);
    armed_point.store(point);
    return {};
  }
  return "no such action: " + std::string(action) + " (kill, stop or abort)";
}

std::vector<std::string> points() {
  std::vector<std::string> names;
  for (int kind = 0; kind < num_kinds; ++kind) {
    for (int phase = 0; phase < num_phases; ++phase) {
      if (has_phase(Kind(kind), Phase(phase))) {
        names.push_back(name_of_point(Kind(kind), Phase(phase)));
      }
    }
  }
  return names;
}

}  // namespace kadril::fault
