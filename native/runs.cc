#include "runs.h"

#include <algorithm>
#include <cstring>

#include "copy.h"

namespace kadril {
namespace {

// Runs of a few bytes: the length is known to the compiler, and nothing is called.
template <size_t length>
void copy_crumbs(std::byte* target, int64_t to_next, const std::byte* source, int64_t from_next,
                 uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(target, source, length);
    target += to_next;
    source += from_next;
  }
}

void copy_runs(std::byte* target, int64_t to_next, const std::byte* source, int64_t from_next,
               uint64_t length, uint64_t count) {
  switch (length) {
    case 1:
      return copy_crumbs<1>(target, to_next, source, from_next, count);
    case 2:
      return copy_crumbs<2>(target, to_next, source, from_next, count);
    case 4:
      return copy_crumbs<4>(target, to_next, source, from_next, count);
    case 8:
      return copy_crumbs<8>(target, to_next, source, from_next, count);
    case 16:
      return copy_crumbs<16>(target, to_next, source, from_next, count);
    default:
      for (uint64_t i = 0; i < count; ++i) {
        copy_cached(target, source, length);
        target += to_next;
        source += from_next;
      }
  }
}

}  // namespace

template <typename Step>
void Runs::walk_box(const Shape& box, uint64_t begin, uint64_t bytes, Step step) {
  const auto& [run_bytes, dims] = box;
  if (dims.empty()) return step(static_cast<int64_t>(begin), 0, bytes, 1, 0);
  const Dim inner = dims.back();
  std::vector<uint64_t> index(dims.size());
  uint64_t number = begin / run_bytes;
  uint64_t within = begin % run_bytes;
  int64_t offset = 0;
  for (size_t i = dims.size(); i-- > 0;) {
    index[i] = number % dims[i].count;
    number /= dims[i].count;
    offset += static_cast<int64_t>(index[i]) * dims[i].stride;
  }
  for (uint64_t done = 0; done < bytes;) {
    // Whole runs along the innermost dim together; one that is cut, by itself.
    const uint64_t length = std::min(run_bytes - within, bytes - done);
    uint64_t count = 1;
    if (length == run_bytes) {
      count = std::min(inner.count - index.back(), (bytes - done) / run_bytes);
    }
    step(offset + static_cast<int64_t>(within), done, length, count, inner.stride);
    done += length * count;
    within = 0;
    index.back() += count;
    offset += static_cast<int64_t>(count) * inner.stride;
    for (size_t i = dims.size() - 1; i > 0 && index[i] == dims[i].count; --i) {
      offset += dims[i - 1].stride - static_cast<int64_t>(dims[i].count) * dims[i].stride;
      index[i] = 0;
      ++index[i - 1];
    }
  }
}

template <typename Step>
void Runs::walk(uint64_t begin, uint64_t bytes, Step step) const {
  if (parts_.empty()) return walk_box(box_, begin, bytes, step);
  uint64_t done = 0;
  for (const Part& part : parts_) {
    if (begin >= part.bytes) {
      begin -= part.bytes;
      continue;
    }
    const uint64_t length = std::min(part.bytes - begin, bytes - done);
    if (length == 0) return;
    walk_box(part.box, begin, length,
             [&](int64_t offset, uint64_t position, uint64_t run, uint64_t count, int64_t next) {
               step(part.offset + offset, done + position, run, count, next);
             });
    done += length;
    begin = 0;
  }
}

void Runs::read(std::byte* target, const std::byte* memory, uint64_t begin, uint64_t bytes) const {
  walk(begin, bytes,
       [&](int64_t offset, uint64_t position, uint64_t run, uint64_t count, int64_t next) {
         copy_runs(target + position, static_cast<int64_t>(run), memory + offset, next, run, count);
       });
}

void Runs::write(std::byte* memory, const std::byte* source, uint64_t begin, uint64_t bytes) const {
  walk(begin, bytes,
       [&](int64_t offset, uint64_t position, uint64_t run, uint64_t count, int64_t next) {
         copy_runs(memory + offset, next, source + position, static_cast<int64_t>(run), run, count);
       });
}

void Runs::fill(std::byte* memory, uint64_t bytes, std::span<const std::byte> pattern) const {
  const bool is_byte = std::all_of(pattern.begin(), pattern.end(),
                                   [&](std::byte each) { return each == pattern.front(); });
  const auto fill_run = [&](std::byte* run, uint64_t length) {
    if (is_byte) {
      std::memset(run, static_cast<int>(pattern.front()), length);
      return;
    }
    for (uint64_t i = 0; i < length; i += pattern.size()) {
      std::memcpy(run + i, pattern.data(), pattern.size());
    }
  };
  walk(0, bytes, [&](int64_t offset, uint64_t, uint64_t run, uint64_t count, int64_t next) {
    for (uint64_t i = 0; i < count; ++i) {
      fill_run(memory + offset + static_cast<int64_t>(i) * next, run);
    }
  });
}

void Runs::append(int64_t offset, uint64_t bytes, Runs box) {
  parts_.push_back({offset, bytes, std::move(box.box_)});
}

Placed place(const Box& box, std::span<const int64_t> strides, size_t item) {
  const auto bytes_of = [&](size_t dim) { return strides[dim] * static_cast<int64_t>(item); };
  int64_t offset = 0;
  uint64_t run = item;
  uint64_t total = item;
  std::vector<Runs::Dim> dims;  // the fastest first
  for (size_t dim = box.size(); dim-- > 0;) {
    const auto size = static_cast<uint64_t>(box[dim].size);
    offset += box[dim].start * bytes_of(dim);
    total *= size;
    if (size == 1) continue;
    if (dims.empty() && bytes_of(dim) == static_cast<int64_t>(run)) {
      run *= size;
    } else if (!dims.empty() &&
               bytes_of(dim) == static_cast<int64_t>(dims.back().count) * dims.back().stride) {
      dims.back().count *= size;  // goes on where the faster dim ends
    } else {
      dims.push_back({size, bytes_of(dim)});
    }
  }
  std::reverse(dims.begin(), dims.end());
  return {offset, total, Runs(run, std::move(dims))};
}

void copy_box(std::byte* target, const Placed& to, const std::byte* source, const Placed& from) {
  if (from.bytes == 0) return;
  target += to.offset;
  source += from.offset;
  if (from.runs.is_contiguous()) return to.runs.write(target, source, 0, from.bytes);
  if (to.runs.is_contiguous()) return from.runs.read(target, source, 0, from.bytes);
  std::byte piece[16 << 10];  // stays in the nearest cache
  for (uint64_t done = 0; done < from.bytes; done += sizeof piece) {
    const uint64_t length = std::min<uint64_t>(sizeof piece, from.bytes - done);
    from.runs.read(piece, source, done, length);
    to.runs.write(target, piece, done, length);
  }
}

}  // namespace kadril
