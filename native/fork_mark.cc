#include "fork_mark.h"

#include <pthread.h>

#include <atomic>

namespace kadril {
namespace {

std::atomic<uint32_t> forks{0};

// Registered when the library is loaded, before any object can be made.
const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });

}  // namespace

uint32_t num_forks() {
  (void)registered;
  return forks.load(std::memory_order_relaxed);
}

}  // namespace kadril
