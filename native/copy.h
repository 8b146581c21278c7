// Copy within the cache.
#pragma once

#include <cstddef>

namespace kadril {

// A copy whose target somebody is about to read: plain stores, so that the bytes stay in the cache.
// memcpy may choose string instructions or streaming stores, which send them to memory on some
// machines.
void copy_cached(void* target, const void* source, size_t bytes);

}  // namespace kadril
