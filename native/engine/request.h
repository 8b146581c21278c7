// A request: a descriptor with the caller's memory and the completion it gets for it.
#pragma once

#include <memory>
#include <vector>

#include "engine/completion.h"
#include "engine/descriptor.h"

namespace kadril {

// Where a piece comes from and where its result goes; the same place for one in place.
struct Memory {
  const void* source = nullptr;
  void* target = nullptr;
};

struct Request {
  Descriptor descriptor;
  std::vector<Memory> memory;  // one for each piece
  std::shared_ptr<Completion> completion;
  Clock::time_point submitted = Clock::now();
};

}  // namespace kadril
