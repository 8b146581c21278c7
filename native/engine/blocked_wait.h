// A blocked wait: a thread that does nothing else until a request is done, after it has slept on it
// for a while. It is told to those who look for deadlocks, and to people by the flight record.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/completion.h"
#include "recorder.h"
#include "vigil.h"

namespace kadril {

class BlockedWait {
 public:
  // `where` follows the text of the request: its process set and the line. `name` is the world rank
  // of this process; `waited` are the seconds that it has slept already.
  BlockedWait(std::shared_ptr<Completion> completion, const std::string& where, int name,
              double waited);
  ~BlockedWait();

  // The threads of this process, this one included: those that could submit something, and those
  // that could make any call. Both as counted since the last `wait`, or since this was made.
  struct Threads {
    int num_submitting;
    int num_calling;
  };
  // Sleep until it is done, a signal comes, or it is time to count threads anew; whether it is done.
  bool wait(double seconds, const Threads& threads);

  const Completion& completion() const { return *completion_; }

 private:
  void look(const Threads& threads);

  const std::shared_ptr<Completion> completion_;
  const std::string text_;
  const int name_;
  uint64_t number_ = 0;         // among the blocked, from 1 on
  bool is_deadlocked_ = false;  // and will be told so
  std::optional<Vigil> vigil_;  // where there is a place for it
  Recorder::LongWait recorded_;
};

}  // namespace kadril
