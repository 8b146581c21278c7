// Runs: a box of an array, as the runs of bytes that lie together in memory.
//
//     array of 4 x 6, box of 3 x 2:      . . x x . .        3 runs of 2 elements, 6 elements apart
//                                        . . x x . .
//                                        . . x x . .
//                                        . . . . . .
//
// A box is a stream of bytes, run after run, that can be read and written in any pieces. So are
// several boxes of one array, one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kadril {

class Runs {
 public:
  struct Dim {
    uint64_t count;
    int64_t stride;  // bytes
  };

  // Contiguous memory: one run.
  Runs() = default;
  // `dims` are those outside a run, the slowest first.
  Runs(uint64_t run_bytes, std::vector<Dim> dims) : box_{run_bytes, std::move(dims)} {}

  bool is_contiguous() const { return box_.dims.empty() && parts_.empty(); }

  // `bytes` bytes of the stream of the box at `memory`, from `begin` on.
  void read(std::byte* target, const std::byte* memory, uint64_t begin, uint64_t bytes) const;
  void write(std::byte* memory, const std::byte* source, uint64_t begin, uint64_t bytes) const;

  // Repeat a pattern over the first `bytes` bytes; runs have a whole number of it.
  void fill(std::byte* memory, uint64_t bytes, std::span<const std::byte> pattern) const;

  // Go on with another box of the same memory.
  void append(int64_t offset, uint64_t bytes, Runs box);

 private:
  struct Shape {
    uint64_t run_bytes = 0;
    std::vector<Dim> dims;
  };
  struct Part {
    int64_t offset;
    uint64_t bytes;
    Shape box;
  };

  // Calls step(offset in memory, offset in the piece, bytes of a run, runs, bytes from one to the
  // next) for all runs of a piece of the stream.
  template <typename Step>
  void walk(uint64_t begin, uint64_t bytes, Step step) const;
  template <typename Step>
  static void walk_box(const Shape& box, uint64_t begin, uint64_t bytes, Step step);

  Shape box_;
  std::vector<Part> parts_;  // instead, where there are several boxes
};

// Where a box of an array lies, dim by dim.
struct Extent {
  int64_t start;
  int64_t size;
};
using Box = std::vector<Extent>;

// A box of an array in memory: where it begins, its bytes, and how they lie.
struct Placed {
  int64_t offset;
  uint64_t bytes;
  Runs runs;
};

// `strides` are those of the array, in elements of `item` bytes.
Placed place(const Box& box, std::span<const int64_t> strides, size_t item);

// Copy a box to another one of as many bytes, which it does not overlap.
void copy_box(std::byte* target, const Placed& to, const std::byte* source, const Placed& from);

}  // namespace kadril
