// The two futex calls, on words shared between processes.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>

namespace kadril {

enum class Wake { changed, timed_out, interrupted };

// Sleep until `word` is no longer `seen`, a wake-up, a signal, or `seconds` have passed.
inline Wake futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, double seconds) {
  timespec timeout;
  timeout.tv_sec = static_cast<time_t>(seconds);
  timeout.tv_nsec = static_cast<long>((seconds - static_cast<double>(timeout.tv_sec)) * 1e9);
  const long result = syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
  if (result == 0) return Wake::changed;
  if (errno == ETIMEDOUT) return Wake::timed_out;
  if (errno == EINTR) return Wake::interrupted;
  return Wake::changed;  // EAGAIN: it had changed already
}

inline void futex_wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace kadril
