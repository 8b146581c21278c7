#include "recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>

#include "fork_mark.h"

namespace kadril {
namespace {

constexpr uint64_t magic = 0x646f636572'646bull;  // "kdrecod", read from the lowest byte
constexpr uint32_t layout = 1;
constexpr uint32_t num_records = 64;
constexpr int num_waits = 4;

// Some milliseconds behind at worst, for a quarter of what the exact time costs.
uint64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

struct alignas(64) Record {
  std::atomic<uint64_t> number;  // from 1 on; 0 while the record is written
  std::atomic<uint64_t> group;
  std::atomic<uint64_t> begin;
  std::atomic<uint64_t> end;  // 0 while the call is under way
  std::atomic<uint64_t> count;
  std::atomic<uint32_t> sequence;
  std::atomic<uint32_t> num_members;
  std::atomic<uint32_t> codes;  // kind, dtype, op: a byte each
  std::atomic<int32_t> root;
  std::atomic<uint64_t> name[8];
};
static_assert(sizeof(Record) == 128);

struct Wait {
  std::atomic<uint64_t> since;  // 0: free
  char text[504];
};

// A child made by fork has the mapping too, and must not write to it.
std::atomic<uint32_t> forks_at_opening{0};

bool is_in_child() { return num_forks() != forks_at_opening.load(std::memory_order_relaxed); }

std::mutex waits_mutex;

}  // namespace

struct Recorder::File {
  std::atomic<uint64_t> magic;
  uint32_t layout;
  uint32_t num_records;
  int32_t pid;
  std::atomic<int32_t> rank, size;  // in an elastic job they change
  int32_t stack_signal;
  std::atomic<uint64_t> num_begun;
  alignas(2048) Wait waits[num_waits];
  alignas(4096) Record records[kadril::num_records];
};

std::atomic<Recorder::File*> Recorder::file_{nullptr};
thread_local int Recorder::num_pauses_ = 0;

Error Recorder::open(int descriptor, int rank, int size, int stack_signal) {
  static_assert(sizeof(File) == 4096 + sizeof(Record) * kadril::num_records);
  File* before = file_.load();
  if (before && !is_in_child()) return nullptr;
  const auto failed = [](const char* what) {
    return fail(Reason::no_room, std::string(what) + ": " + std::strerror(errno));
  };
  // Blocks are taken now, so that a full disk is an error here and never a SIGBUS later.
  errno = posix_fallocate(descriptor, 0, sizeof(File));
  if (errno != 0) return failed("posix_fallocate");
  void* memory =
      mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  if (memory == MAP_FAILED) return failed("mmap");
  auto file = static_cast<File*>(memory);
  file->layout = kadril::layout;
  file->num_records = kadril::num_records;
  file->pid = getpid();
  file->rank.store(rank);
  file->size.store(size);
  file->stack_signal = stack_signal;
  file->magic.store(kadril::magic, std::memory_order_release);
  forks_at_opening.store(num_forks());
  // What the parent of a fork has mapped stays mapped.
  if (!file_.compare_exchange_strong(before, file)) munmap(memory, sizeof(File));
  return nullptr;
}

bool Recorder::go_on(int rank, int size) {
  File* file = file_.load(std::memory_order_acquire);
  if (!file || is_in_child()) return false;
  file->rank.store(rank);
  file->size.store(size);
  return true;
}

uint64_t Recorder::begin(const Call& call, uint64_t group, uint32_t sequence,
                         uint32_t num_members) {
  File* file = file_.load(std::memory_order_acquire);
  if (!file || num_pauses_ > 0 || is_in_child()) return 0;
  constexpr auto plainly = std::memory_order_relaxed;
  const uint64_t number = file->num_begun.fetch_add(1, plainly) + 1;
  Record& record = file->records[number % kadril::num_records];
  record.number.store(0, std::memory_order_release);
  record.group.store(group, plainly);
  record.begin.store(now(), plainly);
  record.end.store(0, plainly);
  record.count.store(call.count, plainly);
  record.sequence.store(sequence, plainly);
  record.num_members.store(num_members, plainly);
  record.codes.store(static_cast<uint32_t>(call.kind) | static_cast<uint32_t>(call.dtype) << 8 |
                         static_cast<uint32_t>(call.op) << 16,
                     plainly);
  record.root.store(call.root, plainly);
  static_assert(sizeof record.name == sizeof call.name);
  const size_t num_words = call.name[0] ? max_name / 8 : 1;
  for (size_t i = 0; i < num_words; ++i) {
    uint64_t word;
    std::memcpy(&word, call.name + 8 * i, 8);
    record.name[i].store(word, plainly);
  }
  record.number.store(number, std::memory_order_release);
  return number;
}

void Recorder::end(uint64_t number) {
  if (number == 0) return;
  File* file = file_.load(std::memory_order_acquire);
  Record& record = file->records[number % kadril::num_records];
  if (record.number.load(std::memory_order_relaxed) == number) {
    record.end.store(now(), std::memory_order_relaxed);
  }
}

int Recorder::wait(std::string_view text, double seconds) {
  File* file = file_.load(std::memory_order_acquire);
  if (!file || is_in_child()) return -1;
  const std::lock_guard lock(waits_mutex);
  for (int place = 0; place < num_waits; ++place) {
    Wait& wait = file->waits[place];
    if (wait.since.load() != 0) continue;
    const size_t length = whole_letters(text, sizeof wait.text - 1);
    std::memcpy(wait.text, text.data(), length);
    wait.text[length] = 0;
    wait.since.store(now() - static_cast<uint64_t>(seconds * 1e9));
    return place;
  }
  return -1;
}

void Recorder::resume(int place) {
  if (place < 0) return;
  const std::lock_guard lock(waits_mutex);
  file_.load()->waits[place].since.store(0);
}

}  // namespace kadril
