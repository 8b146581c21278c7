// Runs: a box of an array, as the runs of bytes that lie together in memory.
//
//     array of 4 x 6, box of 3 x 2:      . . x x . .        3 runs of 2 elements, 6 elements apart
//                                        . . x x . .
//                                        . . x x . .
//                                        . . . . . .
//
// A box is a stream of bytes, run after run, that can be read and written in any pieces.
#pragma once

#include <cstddef>
#include <cstdint>
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
  Runs(uint64_t run_bytes, std::vector<Dim> dims) : run_bytes_(run_bytes), dims_(std::move(dims)) {}

  bool is_contiguous() const { return dims_.empty(); }

  // `bytes` bytes of the stream of the box at `memory`, from `begin` on.
  void read(std::byte* target, const std::byte* memory, uint64_t begin, uint64_t bytes) const;
  void write(std::byte* memory, const std::byte* source, uint64_t begin, uint64_t bytes) const;

 private:
  template <typename Step>
  void walk(uint64_t begin, uint64_t bytes, Step step) const;

  uint64_t run_bytes_ = 0;
  std::vector<Dim> dims_;
};

}  // namespace kadril
