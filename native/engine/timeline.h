// The timeline: what the engine did when, for chrome://tracing and Perfetto.
//
// All ranks of a host write to one file, a JSON array that is whole at every moment: a rank that
// has something takes the file's lock and writes over the closing bracket,
//
//     [ {...}, {...} ]
//                    ^-- , {...}, {...} ]      in one write
//
// so a job that is killed leaves a file that opens. A thread of its own does so a moment after
// there is something, however long the engine sleeps then. A rank is a process of the trace, a
// request's kind and name one of its threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "engine/request.h"
#include "fork_mark.h"

namespace kadril {

class Timeline {
 public:
  // `origin_ns` is the moment of zero on this rank's steady clock. The file exists.
  Timeline(std::string path, int rank, int64_t origin_ns);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  void add_span(const Descriptor& request, const char* phase, Clock::time_point begin,
                Clock::time_point end);
  void add_mark(const char* text, Clock::time_point time);

  void write();  // now

 private:
  void keep_writing();
  int track_of(const Descriptor& request);
  int64_t micros(Clock::time_point time) const;
  void append(const std::string& event);

  const std::string path_;
  const int rank_;
  const int64_t origin_ns_;
  const ForkMark fork_mark_;
  std::mutex file_mutex_;  // guards the file, and is taken first
  int file_ = -1;
  std::mutex mutex_;  // guards the three below
  std::string unwritten_;
  bool is_ending_ = false;
  std::unordered_map<std::string, int> tracks_;
  std::condition_variable has_changed_;
  std::thread writer_;
};

}  // namespace kadril
