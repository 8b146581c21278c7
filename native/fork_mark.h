// Knows in which process an object was made.
//
// A child made by fork() has its parent's mappings and descriptors but is not the rank that its
// parent is: were it to post to the parent's channel, it would be taken for the parent. Objects it
// makes itself are its own, so a process that was forked first and became a rank then is a rank
// like any other.
#pragma once

#include <cstdint>

namespace kadril {

uint32_t num_forks();  // between the loading of this library and this process

class ForkMark {
 public:
  // Whether this is a child of the process in which the mark was made.
  bool is_in_child() const { return num_forks() != num_forks_; }

 private:
  uint32_t num_forks_ = num_forks();
};

}  // namespace kadril
