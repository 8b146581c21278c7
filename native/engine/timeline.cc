#include "engine/timeline.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdio>

#include "engine/quiet_thread.h"

namespace kadril {
namespace {

constexpr size_t enough_bytes = 256 << 10;
constexpr std::chrono::milliseconds long_enough{30};  // for what comes soon after

std::string quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", c);
      quoted += code;
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string upper(const char* text) {
  std::string result;
  for (; *text; ++text) result += static_cast<char>(std::toupper(*text));
  return result;
}

}  // namespace

Timeline::Timeline(std::string path, int rank, int64_t origin_ns)
    : path_(std::move(path)), rank_(rank), origin_ns_(origin_ns) {
  file_ = open(path_.c_str(), O_RDWR | O_CLOEXEC);
  const std::string pid = std::to_string(rank_);
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  const int64_t since_epoch = std::chrono::duration_cast<std::chrono::microseconds>(wall).count();
  append("{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":" + pid + ",\"args\":{\"name\":\"rank " +
         pid + "\",\"start_time_since_epoch_in_micros\":" +
         std::to_string(since_epoch - micros(Clock::now())) + "}}");
  append("{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":" + pid +
         ",\"args\":{\"sort_index\":" + pid + "}}");
  writer_ = start_quiet_thread([this] { keep_writing(); });
}

Timeline::~Timeline() {
  if (fork_mark_.is_in_child()) {  // thread and events are the parent's
    writer_.detach();
    if (file_ >= 0) close(file_);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  has_changed_.notify_all();
  writer_.join();
  write();
  if (file_ >= 0) close(file_);
}

void Timeline::keep_writing() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_changed_.wait(lock, [&] { return is_ending_ || !unwritten_.empty(); });
    has_changed_.wait_for(lock, long_enough,
                          [&] { return is_ending_ || unwritten_.size() >= enough_bytes; });
    if (is_ending_) return;
    lock.unlock();
    write();
    lock.lock();
  }
}

int64_t Timeline::micros(Clock::time_point time) const {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch());
  return (ns.count() - origin_ns_) / 1000;
}

int Timeline::track_of(const Descriptor& request) {
  const std::string name = std::string(name_of(request.verb)) + "." + request.name;
  const auto [track, is_new] = tracks_.emplace(name, static_cast<int>(tracks_.size()) + 1);
  if (is_new) {
    append("{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":" + std::to_string(rank_) + ",\"tid\":" +
           std::to_string(track->second) + ",\"args\":{\"name\":" + quoted(name) + "}}");
  }
  return track->second;
}

void Timeline::append(const std::string& event) {
  const bool is_awaited = unwritten_.empty();
  unwritten_ += ",\n";
  unwritten_ += event;
  if (is_awaited || unwritten_.size() >= enough_bytes) has_changed_.notify_all();
}

void Timeline::add_span(const Descriptor& request, const char* phase, Clock::time_point begin,
                        Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  const int track = track_of(request);
  const int64_t start = micros(begin);
  char head[192];
  std::snprintf(head, sizeof head,
                "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%lld,\"dur\":%lld,\"name\":\"", rank_,
                track, static_cast<long long>(start), static_cast<long long>(micros(end) - start));
  std::string event = head;
  event += phase;
  event += "_" + upper(name_of(request.verb)) + "\"";
  if (!request.pieces.empty()) {
    event += ",\"args\":{\"request\":" + quoted(request.text()) + "}";
  }
  append(event + "}");
}

void Timeline::add_mark(const char* text, Clock::time_point time) {
  const std::lock_guard lock(mutex_);
  append("{\"ph\":\"i\",\"s\":\"p\",\"pid\":" + std::to_string(rank_) +
         ",\"tid\":0,\"ts\":" + std::to_string(micros(time)) + ",\"name\":\"" + text + "\"}");
}

void Timeline::write() {
  const std::lock_guard file_lock(file_mutex_);
  std::string events;
  {
    const std::lock_guard lock(mutex_);
    events.swap(unwritten_);
  }
  if (file_ < 0 || events.empty()) return;
  while (flock(file_, LOCK_EX) != 0) {
    if (errno != EINTR) return;
  }
  const off_t end = lseek(file_, 0, SEEK_END);
  // The file is "[]" at first, and ends with "\n]" from the first event on.
  const bool is_first = end <= 2;
  std::string text = is_first ? "[" + events.substr(1) : events;
  text += "\n]";
  const off_t position = is_first ? 0 : end - 2;
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t step = pwrite(file_, text.data() + written, text.size() - written,
                                position + static_cast<off_t>(written));
    if (step < 0 && errno == EINTR) continue;
    if (step <= 0) break;
    written += static_cast<size_t>(step);
  }
  flock(file_, LOCK_UN);
}

}  // namespace kadril
