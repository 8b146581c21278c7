// How the C interface asks Python: finding the other ranks, and everything else that happens once.
#pragma once

#include <string>
#include <vector>

namespace kadril {

// One argument of a function of kadril.capi.
struct Argument {
  enum class Kind { number, text, numbers } kind;
  long long number = 0;
  std::string text;
  std::vector<int> numbers;

  static Argument of(long long value) { return {Kind::number, value, {}, {}}; }
  static Argument of(std::string value) { return {Kind::text, 0, std::move(value), {}}; }
  static Argument of(std::vector<int> value) { return {Kind::numbers, 0, {}, std::move(value)}; }
};

// Call a function of kadril.capi that returns an int; -1 where it raised, with the reason in
// `last_failure()`. Starts Python where it does not run. Without the GIL.
int ask_python(const char* function, const std::vector<Argument>& arguments = {});

}  // namespace kadril
