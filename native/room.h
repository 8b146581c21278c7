// How much memory may still be taken, by the machine, the cgroup and (named
// segments) the file system.
#pragma once

#include <cstdint>

namespace kadril {

// Bytes; never negative. `descriptor` is the segment, whose file system may be
// smaller than the machine.
int64_t available_room(int descriptor);

uint64_t total_memory();

}  // namespace kadril
