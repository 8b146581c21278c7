#include "outbox.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "copy.h"

namespace kadril {
namespace {

// Words are written by one rank and read by the others. What was written before a word is there for
// whoever has read it; what was read before is read.
void write_word(int64_t& word, int64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

int64_t read_word(int64_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }

}  // namespace

Outbox::Outbox(std::byte* memory, uint64_t slot_bytes, int rank, int size)
    : heads_(reinterpret_cast<Head*>(memory)),
      slots_(memory + static_cast<uint64_t>(size) * sizeof(Head)),
      slot_bytes_(slot_bytes),
      bytes_for_one_(slot_bytes / static_cast<uint64_t>(size - 1) / line_bytes * line_bytes),
      rank_(rank),
      size_(size) {
  for (int64_t each = 0; each < num_slots; ++each) empty_.push_back(each);
}

int64_t Outbox::least_taken() const {
  int64_t least = read_word(head(0).taken);
  for (int rank = 1; rank < size_; ++rank) least = std::min(least, read_word(head(rank).taken));
  return least;
}

bool Outbox::has_room() {
  const int64_t oldest = num_posted_ - num_slots;
  if (least_taken_ <= oldest) least_taken_ = least_taken();
  return least_taken_ > oldest;
}

std::vector<int> Outbox::laggards() const {
  std::vector<int> found;
  for (int rank = 0; rank < size_; ++rank) {
    if (read_word(head(rank).taken) <= num_posted_ - num_slots) found.push_back(rank);
  }
  return found;
}

std::vector<int64_t> Outbox::all_posted() const {
  std::vector<int64_t> found;
  for (int rank = 0; rank < size_; ++rank) found.push_back(read_word(head(rank).posted));
  return found;
}

void Outbox::set_walked(int64_t number) { write_word(head(rank_).walked, number); }
int64_t Outbox::walked(int rank) const { return read_word(head(rank).walked); }
void Outbox::set_settling(bool is_settling) { write_word(head(rank_).settling, is_settling); }
bool Outbox::is_settling(int rank) const { return read_word(head(rank).settling) != 0; }

bool Outbox::are_settling() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && !is_settling(rank)) return false;
  }
  return true;
}

int64_t Outbox::empty_slot() {
  const int64_t least = least_taken();
  while (!full_.empty() && full_.front().first < least) {
    empty_.push_back(full_.front().second);
    full_.pop_front();
  }
  const int64_t slot = empty_.back();
  empty_.pop_back();
  return slot;
}

size_t Outbox::post(std::span<const Block> blocks, const std::byte* memory) {
  size_t count = 0;
  for (const Block& block : blocks) {
    if (!has_room()) break;
    int64_t mark = 0;
    if (memory) {
      const int64_t number = empty_slot();
      for (const Block::Part& part : block.parts) {
        copy_shared(slot(rank_, number) + part.position, memory + part.offset, part.bytes);
      }
      full_.emplace_back(num_posted_, number);
      mark = number + 1;
    }
    Head& mine = head(rank_);
    write_word(mine.marks[num_posted_ % num_slots], mark);
    write_word(mine.posted, ++num_posted_);
    ++count;
  }
  return count;
}

const std::byte* Outbox::given(int sender, int64_t number) const {
  const int64_t mark = read_word(head(sender).marks[number % num_slots]);
  return mark ? slot(sender, mark - 1) + position(sender, rank_) : nullptr;
}

void Outbox::add_up(std::span<const Block> blocks, const std::byte* own, std::byte* result,
                    std::span<const int64_t> posted, DType dtype, Scale scale) {
  for (const Block& block : blocks) {
    sources_.clear();
    for (int rank = 0; rank < size_ && block.count > 0; ++rank) {
      const std::byte* source = nullptr;
      if (rank == rank_) {
        source = own ? own + block.source : nullptr;
      } else if (num_taken_ < posted[static_cast<size_t>(rank)]) {
        source = given(rank, num_taken_);
      }
      if (source) sources_.push_back(source);
    }
    void* target = result + block.target;
    if (!sources_.empty()) {
      reduce_into(&target, 1, sources_.data(), static_cast<int>(sources_.size()), block.count,
                  dtype, Op::sum, scale);
    } else if (block.count > 0) {
      std::memset(target, 0, block.count * size_of(dtype));
    }
    take();
  }
}

void Outbox::take() { write_word(head(rank_).taken, ++num_taken_); }

void Outbox::skip(int64_t count) {
  num_taken_ += count;
  write_word(head(rank_).taken, num_taken_);
}

void Outbox::skip_to(int64_t number) {
  num_posted_ = number;
  write_word(head(rank_).posted, number);
  write_word(head(rank_).walked, number);
}

}  // namespace kadril
