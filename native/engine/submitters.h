// The submitters of a process: its threads that have asked for something, and live.
//
// What a rank will ask for next, one of these threads asks for. Where all of them sleep on requests
// of one set, nothing more will come to that set from this rank before one of them is woken.
#pragma once

#include <atomic>
#include <memory>

namespace kadril {

class Submitters {
 public:
  static std::shared_ptr<Submitters> of_this_process();

  // Count the calling thread, once, until it ends.
  static void add_this_thread(const std::shared_ptr<Submitters>& submitters);
  bool has_this_thread() const;
  int size() const { return size_.load(); }

  // Somebody is called back when a request is done, and may ask for more then: what comes next
  // depends on more than threads that sleep.
  void add_callback() { has_callbacks_.store(true); }
  bool has_callbacks() const { return has_callbacks_.load(); }

 private:
  class Memberships;  // of a thread
  static Memberships& memberships_of_this_thread();

  std::atomic<int> size_{0};
  std::atomic<bool> has_callbacks_{false};
};

}  // namespace kadril
