#include "liveness.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace kadril {
namespace {

// The process id behind a pidfd, in this process's own pid namespace; 0 or less
// where there is none.
int pid_of(int pidfd) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
  int pid = -1;
  if (FILE* file = std::fopen(path, "re")) {
    char line[128];
    while (std::fgets(line, sizeof line, file)) {
      if (std::sscanf(line, "Pid: %d", &pid) == 1) break;
    }
    std::fclose(file);
  }
  return pid;
}

char state_of(int pid) {
  char path[64], text[512] = {};
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  if (FILE* file = std::fopen(path, "re")) {
    const size_t n = std::fread(text, 1, sizeof text - 1, file);
    text[n] = 0;
    std::fclose(file);
  }
  // "pid (name) state ...", where the name may hold anything, parentheses too.
  const char* behind_name = std::strrchr(text, ')');
  return behind_name && behind_name[1] == ' ' ? behind_name[2] : '?';
}

// Whether SIGKILL waits for a process, by the masks of signals that /proc shows.
bool is_killed(int pid) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/status", pid);
  bool found = false;
  if (FILE* file = std::fopen(path, "re")) {
    char line[256];
    unsigned long long mask;
    while (!found && std::fgets(line, sizeof line, file)) {
      const bool is_mask = std::sscanf(line, "SigPnd: %llx", &mask) == 1 ||
                           std::sscanf(line, "ShdPnd: %llx", &mask) == 1;
      found = is_mask && (mask >> (SIGKILL - 1) & 1);
    }
    std::fclose(file);
  }
  return found;
}

}  // namespace

Liveness::Liveness(std::vector<int> pidfds)
    : pidfds_(std::move(pidfds)), dead_(new std::atomic<bool>[pidfds_.size()]) {
  for (size_t i = 0; i < pidfds_.size(); ++i) dead_[i].store(false);
}

Liveness::~Liveness() {
  stop();
  for (const int pidfd : pidfds_) {
    if (pidfd >= 0) close(pidfd);
  }
}

Error Liveness::start() {
  bool has_peer = false;
  for (const int pidfd : pidfds_) has_peer |= pidfd >= 0;
  if (!has_peer) return nullptr;
  stop_event_ = eventfd(0, EFD_CLOEXEC);
  if (stop_event_ < 0) return fail(Reason::no_room, "eventfd: no descriptor left (ulimit -n)");
  // The watcher must never be the thread that runs a signal handler of the program.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Error error;
  try {
    thread_ = std::thread([this] { watch(); });
    pthread_setname_np(thread_.native_handle(), "kadril-liveness");
  } catch (const std::system_error&) {
    error = fail(Reason::no_room, "a thread could not be started (ulimit -u)");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

void Liveness::stop() {
  if (thread_.joinable()) {
    if (fork_mark_.is_in_child()) {
      thread_.detach();  // the thread is the parent's; here is only its handle
    } else {
      const uint64_t one = 1;
      while (write(stop_event_, &one, sizeof one) < 0 && errno == EINTR) {
      }
      thread_.join();
    }
  }
  if (stop_event_ >= 0) close(stop_event_);
  stop_event_ = -1;
}

void Liveness::watch() noexcept {
  std::vector<pollfd> polled;
  for (const int pidfd : pidfds_) polled.push_back({pidfd, POLLIN, 0});  // poll passes over -1
  polled.push_back({stop_event_, POLLIN, 0});
  while (true) {
    if (poll(polled.data(), polled.size(), -1) < 0) continue;  // EINTR, ENOMEM
    if (polled.back().revents) return;
    for (size_t rank = 0; rank + 1 < polled.size(); ++rank) {
      if (!polled[rank].revents) continue;
      polled[rank].fd = -1;
      announce(static_cast<int>(rank));
    }
  }
}

void Liveness::announce(int rank) noexcept {
  if (dead_[static_cast<size_t>(rank)].exchange(true)) return;
  std::lock_guard lock(mutex_);
  for (DeathListener* listener : listeners_) listener->on_death(rank);
}

void Liveness::notice_killed(int rank) noexcept {
  const int pidfd = pidfds_[static_cast<size_t>(rank)];
  if (pidfd < 0 || is_dead(rank)) return;
  const int pid = pid_of(pidfd);
  if (pid > 0 && is_killed(pid)) announce(rank);
}

bool Liveness::is_stopped(int rank) const {
  const int pidfd = pidfds_[static_cast<size_t>(rank)];
  if (pidfd < 0) return false;
  const int pid = pid_of(pidfd);
  if (pid <= 0) return false;
  const char state = state_of(pid);
  return state == 'T' || state == 't';
}

void Liveness::add(DeathListener* listener) {
  std::lock_guard lock(mutex_);
  listeners_.insert(listener);
}

void Liveness::remove(DeathListener* listener) {
  std::lock_guard lock(mutex_);
  listeners_.erase(listener);
}

}  // namespace kadril
