#include "arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "room.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace kadril {

struct Arena::Header {
  static constexpr uint64_t expected_magic = 0x6c69726461'6b02ull;  // "kadril", layout 2

  std::atomic<uint64_t> magic;
  uint64_t generation;
  uint64_t bytes;
  uint64_t control_offset;
  uint64_t waits_offset;
  uint64_t heap_offset;
  uint64_t heap_bytes;
  uint32_t num_ranks;
  uint32_t owner;
};

namespace {

constexpr uint64_t page = 4096;
constexpr uint64_t heap_alignment = 2 << 20;
// Added to every heap. Ranks walk over the same place of all heaps at once; were these a
// power of two apart, caches that hash addresses would take them for each other
// (measured: ten times slower).
constexpr uint64_t heap_skew = 17 * page;
// Below this many bytes asking how much room there is would cost more than the memory.
constexpr uint64_t ask_for_room_from = 1 << 20;

uint64_t round_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

std::string last_error(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

int open_named() {
  unsigned char random[16];
  if (getrandom(random, sizeof random, 0) != sizeof random) return -1;
  char name[48] = "/kadril-";
  for (size_t i = 0; i < sizeof random; ++i) {
    std::snprintf(name + 8 + 2 * i, 3, "%02x", random[i]);
  }
  const int descriptor = shm_open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  // Peers get the descriptor, so the name need not outlive this line, and no crash
  // can leave it behind.
  if (descriptor >= 0) shm_unlink(name);
  return descriptor;
}

int open_memfd() { return memfd_create("kadril", MFD_CLOEXEC | MFD_ALLOW_SEALING); }

// Takes pages now, so that running out is an error here and never a SIGBUS later.
int take_pages(int descriptor, uint64_t offset, uint64_t bytes) {
  int result;
  do {
    result = fallocate(descriptor, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result;
}

void give_pages_back(int descriptor, uint64_t offset, uint64_t bytes) {
  fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
}

}  // namespace

Error Arena::create(const ArenaOptions& options, std::shared_ptr<Arena>& out) {
  auto arena = std::shared_ptr<Arena>(new Arena());
  const uint64_t capacity = options.capacity ? options.capacity : total_memory();
  const uint64_t heap_bytes = round_up(capacity, heap_alignment) + heap_skew;
  const uint64_t waits_offset = round_up(page + options.control_bytes, alignof(RankWaits));
  const uint64_t control_end =
      waits_offset + sizeof(RankWaits) * static_cast<uint64_t>(options.num_ranks);
  const uint64_t heap_offset = round_up(control_end, heap_alignment);
  const uint64_t bytes = heap_offset + heap_bytes * static_cast<uint64_t>(options.num_ranks);

  rlimit limit;
  // Growing a file beyond this limit would raise SIGXFSZ, which ends the process.
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    return arena->no_room(bytes, static_cast<int64_t>(limit.rlim_cur),
                          "the file size limit (ulimit -f) is below the shared segment's size");
  }
  arena->descriptor_ = options.named ? open_named() : open_memfd();
  if (arena->descriptor_ < 0) {
    return fail(Reason::no_room, last_error(options.named ? "shm_open" : "memfd_create"));
  }
  if (ftruncate(arena->descriptor_, static_cast<off_t>(bytes)) != 0) {
    return arena->no_room(bytes, -1, last_error("ftruncate").c_str());
  }
  // Nobody can shrink the segment under a mapping, which would turn accesses into SIGBUS.
  if (!options.named)
    fcntl(arena->descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  if (take_pages(arena->descriptor_, 0, control_end) != 0) {
    return arena->no_room(control_end, available_room(arena->descriptor_),
                          last_error("fallocate").c_str());
  }
  if (auto error = arena->map(bytes)) return error;

  auto header = new (arena->base_) Header();
  header->generation = options.generation;
  header->bytes = bytes;
  header->control_offset = page;
  header->waits_offset = waits_offset;
  header->heap_offset = heap_offset;
  header->heap_bytes = heap_bytes;
  header->num_ranks = static_cast<uint32_t>(options.num_ranks);
  header->owner = getuid();
  header->magic.store(Header::expected_magic, std::memory_order_release);
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    const uint64_t begin = heap_offset + heap_bytes * static_cast<uint64_t>(rank);
    arena->heaps_.emplace_back(begin, begin + heap_bytes);
  }
  out = std::move(arena);
  return nullptr;
}

Error Arena::attach(int descriptor, uint64_t generation, std::shared_ptr<Arena>& out) {
  auto arena = std::shared_ptr<Arena>(new Arena());
  arena->descriptor_ = descriptor;
  struct stat status;
  if (fstat(descriptor, &status) != 0) return fail(Reason::invalid, last_error("fstat"));
  if (static_cast<uint64_t>(status.st_size) < 2 * page) {
    return fail(Reason::invalid, "the descriptor is not a segment of kadril");
  }
  if (auto error = arena->map(static_cast<uint64_t>(status.st_size))) return error;
  const Header& header = arena->header();
  if (header.magic.load(std::memory_order_acquire) != Header::expected_magic) {
    return fail(Reason::invalid, "the segment was made by another version of kadril");
  }
  if (header.generation != generation || header.owner != getuid() ||
      header.bytes != arena->bytes_) {
    return fail(Reason::invalid, "the segment belongs to another job");
  }
  for (uint64_t rank = 0; rank < header.num_ranks; ++rank) {
    const uint64_t begin = header.heap_offset + header.heap_bytes * rank;
    arena->heaps_.emplace_back(begin, begin + header.heap_bytes);
  }
  out = std::move(arena);
  return nullptr;
}

Arena::~Arena() {
  if (base_) munmap(base_, bytes_);
  if (descriptor_ >= 0) close(descriptor_);
}

Error Arena::map(uint64_t bytes) {
  void* base =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor_, 0);
  if (base == MAP_FAILED) {
    return no_room(
        bytes, -1,
        "the address space cannot be mapped; raise `ulimit -v` or set KADRIL_SHARED_CAPACITY"
        " to the bytes that one rank shares at most");
  }
  base_ = static_cast<std::byte*>(base);
  bytes_ = bytes;
  return nullptr;
}

const Arena::Header& Arena::header() const { return *reinterpret_cast<const Header*>(base_); }

uint64_t Arena::control_offset() const { return header().control_offset; }

RankWaits& Arena::waits(int rank) const {
  return reinterpret_cast<RankWaits*>(at(header().waits_offset))[rank];
}

Error Arena::no_room(uint64_t bytes, int64_t available, const char* what) const {
  auto error = fail(Reason::no_room, what);
  error->needed = bytes;
  error->available = available;
  return error;
}

Error Arena::allocate(int rank, uint64_t bytes, uint64_t& offset) {
  const uint64_t rounded = round_up(bytes ? bytes : 1, page);
  std::lock_guard lock(mutex_);
  reap();
  if (rounded >= ask_for_room_from) {
    const int64_t room = available_room(descriptor_);
    if (rounded > static_cast<uint64_t>(room)) {
      return no_room(bytes, room, "not enough memory is available");
    }
  }
  Heap& heap = heaps_[static_cast<size_t>(rank)];
  const auto taken = heap.take(rounded);
  if (!taken) {
    return no_room(bytes, static_cast<int64_t>(heap.largest_free()),
                   "this rank's part of the shared segment is full; raise KADRIL_SHARED_CAPACITY");
  }
  if (take_pages(descriptor_, *taken, rounded) != 0) {
    const std::string why = last_error("fallocate");
    give_pages_back(descriptor_, *taken, rounded);
    heap.give_back(*taken, rounded);
    return no_room(bytes, available_room(descriptor_), why.c_str());
  }
  // Only spares the page faults of first use, so a kernel without it loses nothing.
  madvise(at(*taken), rounded, MADV_POPULATE_WRITE);
  num_allocated_bytes_ += rounded;
  offset = *taken;
  return nullptr;
}

void Arena::release(int rank, uint64_t offset, uint64_t bytes) {
  if (quarantined_.load()) return;
  const uint64_t rounded = round_up(bytes ? bytes : 1, page);
  std::lock_guard lock(mutex_);
  give_pages_back(descriptor_, offset, rounded);
  heaps_[static_cast<size_t>(rank)].give_back(offset, rounded);
  num_allocated_bytes_ -= rounded;
}

void Arena::release_when_unused(int rank, uint64_t offset, uint64_t bytes, const Users* users) {
  std::lock_guard lock(mutex_);
  graves_.push_back({rank, offset, round_up(bytes, page), users, users->incarnation(), false});
  reap();
}

Error Arena::allocate_board(int rank, uint64_t bytes, uint64_t& offset) {
  {
    std::lock_guard lock(mutex_);
    reap();
    const auto spare = spare_boards_.find(round_up(bytes, page));
    if (spare != spare_boards_.end()) {
      offset = spare->second;
      spare_boards_.erase(spare);
      return nullptr;
    }
  }
  return allocate(rank, bytes, offset);
}

void Arena::release_board(int rank, uint64_t offset, uint64_t bytes, const Users* users) {
  std::lock_guard lock(mutex_);
  graves_.push_back({rank, offset, round_up(bytes, page), users, users->incarnation(), true});
  reap();
}

void Arena::reap() {
  if (quarantined_.load()) return;
  std::erase_if(graves_, [this](const Grave& grave) {
    if (!grave.users->are_gone(grave.incarnation)) return false;
    if (grave.is_board) {
      spare_boards_.emplace(grave.bytes, grave.offset);
      return true;
    }
    give_pages_back(descriptor_, grave.offset, grave.bytes);
    heaps_[static_cast<size_t>(grave.rank)].give_back(grave.offset, grave.bytes);
    num_allocated_bytes_ -= grave.bytes;
    return true;
  });
}

uint64_t Arena::offset_of(const void* memory, uint64_t bytes) const {
  const auto address = static_cast<const std::byte*>(memory);
  const std::byte* heaps = base_ + header().heap_offset;
  if (address < heaps || address + bytes > base_ + bytes_) return no_offset;
  return static_cast<uint64_t>(address - base_);
}

}  // namespace kadril
