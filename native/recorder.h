// The flight recorder of this process: its last calls, in a file that others read.
//
//     0         header: whose it is, and how many calls it has begun
//     2048      waits: what threads that have waited for a while wait for, as text
//     4096      the last 64 calls, in a ring
//
// Written by plain stores into a mapped file, so a call costs some nanoseconds, no system call, and
// what was written is there for other processes also after a crash, if the file outlives this one
// (src/kadril/transport/recording.py makes it). Another process of the same user reads it as
// src/kadril/observe/flight_record.py does; it must expect that a record changes while it is read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "call.h"
#include "failure.h"

namespace kadril {

class Recorder {
 public:
  // Record into an empty file from now on, for ever, since calls may be under way. The descriptor
  // stays the caller's. Does nothing where this process has a recorder.
  static Error open(int descriptor, int rank, int size, int stack_signal);
  // Go on under this rank; false where this process has no recorder, as in a child made by fork.
  static bool go_on(int rank, int size);
  static bool is_open() { return file_.load(std::memory_order_acquire) != nullptr; }

  // The number of the record, to be given to `end`; 0 where nothing is recorded. `group` is equal
  // for the calls of one group, and `sequence` counts them.
  static uint64_t begin(const Call& call, uint64_t group, uint32_t sequence, uint32_t num_members);
  static void end(uint64_t number);

  // A wait that takes long, from when it is told to the end of its scope.
  class LongWait {
   public:
    LongWait() = default;
    ~LongWait() { resume(place_); }
    LongWait(const LongWait&) = delete;
    LongWait& operator=(const LongWait&) = delete;
    // Only the first time. `seconds` have passed since it began.
    void tell(std::string_view text, double seconds) {
      if (place_ < 0) place_ = wait(text, seconds);
    }

   private:
    int place_ = -1;
  };

  // Records no call of this thread as long as it lives: for those that nobody has made, by which
  // the engine finds out what all ranks have asked for.
  class Pause {
   public:
    Pause() { ++num_pauses_; }
    ~Pause() { --num_pauses_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
  };

 private:
  static int wait(std::string_view text, double seconds);  // the place of the text, or -1
  static void resume(int place);

  static thread_local int num_pauses_;
  struct File;
  static std::atomic<File*> file_;
};

}  // namespace kadril
