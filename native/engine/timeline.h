// The timeline: what the engine did when, for chrome://tracing and Perfetto.
//
// All ranks of a host write to one file, a JSON array that is whole at every moment: a rank that
// has something takes the file's lock and writes over the closing bracket,
//
//     [ {...}, {...} ]
//                    ^-- , {...}, {...} ]      in one write
//
// so a job that is killed leaves a file that opens. A rank is a process of the trace, a tensor's
// name one of its threads.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "engine/request.h"

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
  void add_mark(const char* text);

  bool has_unwritten() const { return has_unwritten_; }
  void write_if_due();  // where there is enough of it, or some for a while
  void write();

 private:
  int track_of(const std::string& name);
  int64_t micros(Clock::time_point time) const;
  void append(const std::string& event);

  const std::string path_;
  const int rank_;
  const int64_t origin_ns_;
  int file_ = -1;
  std::mutex mutex_;
  std::string unwritten_;
  std::atomic<bool> has_unwritten_{false};
  Clock::time_point last_write_ = Clock::now();
  std::unordered_map<std::string, int> tracks_;
};

}  // namespace kadril
