#include "engine/timeline.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdio>

namespace kadril {
namespace {

constexpr size_t enough_bytes = 256 << 10;
constexpr std::chrono::milliseconds long_enough{1000};

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
  append("{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":" + pid + ",\"args\":{\"name\":\"rank " +
         pid + "\"}}");
  append("{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":" + pid +
         ",\"args\":{\"sort_index\":" + pid + "}}");
}

Timeline::~Timeline() {
  write();
  if (file_ >= 0) close(file_);
}

int64_t Timeline::micros(Clock::time_point time) const {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch());
  return (ns.count() - origin_ns_) / 1000;
}

int Timeline::track_of(const std::string& name) {
  const auto [track, is_new] = tracks_.emplace(name, static_cast<int>(tracks_.size()) + 1);
  if (is_new) {
    append("{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":" + std::to_string(rank_) + ",\"tid\":" +
           std::to_string(track->second) + ",\"args\":{\"name\":" + quoted(name) + "}}");
  }
  return track->second;
}

void Timeline::append(const std::string& event) {
  unwritten_ += ",\n";
  unwritten_ += event;
  has_unwritten_ = true;
}

void Timeline::add_span(const Descriptor& request, const char* phase, Clock::time_point begin,
                        Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  const int track = track_of(request.name);
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

void Timeline::add_mark(const char* text) {
  const std::lock_guard lock(mutex_);
  append("{\"ph\":\"i\",\"s\":\"p\",\"pid\":" + std::to_string(rank_) + ",\"tid\":0,\"ts\":" +
         std::to_string(micros(Clock::now())) + ",\"name\":\"" + text + "\"}");
}

void Timeline::write_if_due() {
  if (!has_unwritten_) return;
  if (unwritten_.size() >= enough_bytes || Clock::now() - last_write_ >= long_enough) write();
}

void Timeline::write() {
  const std::lock_guard lock(mutex_);
  last_write_ = Clock::now();
  if (file_ < 0 || unwritten_.empty()) return;
  if (flock(file_, LOCK_EX) != 0) return;
  const off_t end = lseek(file_, 0, SEEK_END);
  // The file is "[]" at first, and ends with "\n]" from the first event on.
  const bool is_first = end <= 2;
  std::string text = is_first ? "[" + unwritten_.substr(1) : unwritten_;
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
  unwritten_.clear();
  has_unwritten_ = false;
}

}  // namespace kadril
