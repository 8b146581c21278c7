// A thread that takes no signals: those are for the program's own threads.
#pragma once

#include <signal.h>

#include <thread>
#include <utility>

namespace kadril {

template <typename Function>
std::thread start_quiet_thread(Function function) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(function));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace kadril
