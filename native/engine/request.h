// A request: a descriptor with the caller's memory and the ticket it gets for it.
#pragma once

#include <memory>
#include <vector>

#include "engine/descriptor.h"
#include "engine/ticket.h"

namespace kadril {

// Where a piece comes from and where its result goes; the same place for one in place.
struct Memory {
  const void* source = nullptr;
  void* target = nullptr;
};

struct Request {
  Descriptor descriptor;
  std::vector<Memory> memory;  // one for each piece
  std::shared_ptr<Ticket> ticket;
  Clock::time_point submitted = Clock::now();
};

}  // namespace kadril
