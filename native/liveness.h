// Liveness: knows which local peers are dead, and tells every channel at once.
//
// A thread sleeps on the pidfds of all peers, so an idle world costs nothing and a death is known
// within microseconds, whatever the GIL or the peers do. Being late is not being dead: that is for
// a channel's patience.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "failure.h"
#include "fork_mark.h"

namespace kadril {

class DeathListener {
 public:
  virtual ~DeathListener() = default;
  virtual void on_death(int rank) noexcept = 0;
};

class Liveness {
 public:
  // One descriptor per rank, taken over; -1 for this process itself (and in tests
  // whose ranks are threads).
  explicit Liveness(std::vector<int> pidfds);
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  Error start();  // start watching, where there is a peer to watch
  void stop();    // ends the thread; called by the destructor too

  bool is_dead(int rank) const { return dead_[static_cast<size_t>(rank)].load(); }
  // Held by SIGSTOP or a debugger, by the state that /proc shows.
  bool is_stopped(int rank) const;
  // Take a rank for dead that SIGKILL has been sent to. It never comes back to its program, but
  // needs a core to end, and its pidfd is silent until then: for seconds on a crowded machine.
  void notice_killed(int rank) noexcept;

  // A listener is told of every death after it was added; it asks is_dead for those before.
  void add(DeathListener* listener);
  void remove(DeathListener* listener);

 private:
  void watch() noexcept;
  void announce(int rank) noexcept;

  const ForkMark fork_mark_;
  std::vector<int> pidfds_;
  std::unique_ptr<std::atomic<bool>[]> dead_;
  std::mutex mutex_;  // guards listeners_, and is held while they are told
  std::set<DeathListener*> listeners_;
  int stop_event_ = -1;
  std::thread thread_;
};

}  // namespace kadril
