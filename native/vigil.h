// A vigil: one thread's search for a deadlock that it is in, from look to look, while it waits.
//
//     look 1    say what it waits for
//     look 2    count threads, confirm; look around: a deadlock?
//     look 3    confirm again; the same deadlock, with nothing changed: end its channels
//
// Each look takes what the thread waits for now, and a standpoint that was described after `begin`.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "arena.h"
#include "waits.h"

namespace kadril {

class Vigil {
 public:
  Vigil(std::shared_ptr<Arena> arena, int rank)
      : arena_(std::move(arena)), rank_(rank), waits_(*arena_, rank) {}
  ~Vigil() { waits_.leave(place_); }
  Vigil(const Vigil&) = delete;
  Vigil& operator=(const Vigil&) = delete;

  // Before the standpoint of the next look is described.
  void begin() { version_ = waits_.version(); }
  // True where a deadlock was found twice with nothing changed in between; its channels have been
  // ended then.
  bool look(const WaitTarget& target, const Standpoint& standpoint);
  // Nothing can be said of what the thread waits for.
  void withdraw();

  // Seconds until the next look.
  double pause() const;

 private:
  const std::shared_ptr<Arena> arena_;
  const int rank_;
  Waits waits_;
  WaitTarget target_;
  uint64_t version_ = 0;
  int place_ = -1;
  int num_looks_ = 0;  // at this target
  uint64_t last_digest_ = 0;
};

}  // namespace kadril
