#include "runs.h"

#include <algorithm>

#include "copy.h"

namespace kadril {

// Calls step(offset in memory, offset in the piece, bytes) for each run of a piece of the stream.
template <typename Step>
void Runs::walk(uint64_t begin, uint64_t bytes, Step step) const {
  if (dims_.empty()) return step(static_cast<int64_t>(begin), uint64_t{0}, bytes);
  std::vector<uint64_t> index(dims_.size());
  uint64_t number = begin / run_bytes_;
  uint64_t within = begin % run_bytes_;
  int64_t offset = 0;
  for (size_t i = dims_.size(); i-- > 0;) {
    index[i] = number % dims_[i].count;
    number /= dims_[i].count;
    offset += static_cast<int64_t>(index[i]) * dims_[i].stride;
  }
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t length = std::min(run_bytes_ - within, bytes - done);
    step(offset + static_cast<int64_t>(within), done, length);
    done += length;
    within = 0;
    for (size_t i = dims_.size(); i-- > 0;) {
      offset += dims_[i].stride;
      if (++index[i] < dims_[i].count) break;
      offset -= static_cast<int64_t>(dims_[i].count) * dims_[i].stride;
      index[i] = 0;
    }
  }
}

void Runs::read(std::byte* target, const std::byte* memory, uint64_t begin, uint64_t bytes) const {
  walk(begin, bytes, [&](int64_t offset, uint64_t position, uint64_t length) {
    copy_cached(target + position, memory + offset, length);
  });
}

void Runs::write(std::byte* memory, const std::byte* source, uint64_t begin, uint64_t bytes) const {
  walk(begin, bytes, [&](int64_t offset, uint64_t position, uint64_t length) {
    copy_cached(memory + offset, source + position, length);
  });
}

}  // namespace kadril
