#include "fork_mark.h"

#include <pthread.h>

#include <atomic>

namespace kadril {
namespace {

std::atomic<bool> forked{false};

// Registered when the library is loaded, before any thread can fork.
const int registered = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });

}  // namespace

bool is_forked_child() {
  (void)registered;
  return forked.load(std::memory_order_relaxed);
}

}  // namespace kadril
