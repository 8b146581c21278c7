// Copies of memory: one function for each kind of reader.
#pragma once

#include <cstddef>

namespace kadril {

// A copy whose target this core is about to read: plain stores, so that the bytes stay in the
// cache. memcpy may choose string instructions or streaming stores, which send them to memory on
// some machines.
void copy_cached(void* target, const void* source, size_t bytes);

// A copy whose target other cores have read, and are about to read again; a reader that is told of
// it by a store with release semantics sees all of it. Plain stores have to take each line away
// from the others first. Where cores share a cache that is quick; where they do not it takes ten
// times as long as streaming stores, which bypass all caches. On a virtual machine that may change
// from one second to the next. So both are timed now and then, and streaming stores are used where
// they are much quicker: whoever reads what they wrote has to fetch it from memory.
void copy_shared(void* target, const void* source, size_t bytes);

// Whether streaming stores are the quicker ones at the moment: then a result for other cores is
// better copied by `copy_shared` than written as it is made.
bool streaming_is_quicker();

}  // namespace kadril
