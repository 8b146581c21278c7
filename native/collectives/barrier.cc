#include "collectives.h"
#include "visit.h"

namespace kadril {

Error barrier(Channel& channel, Call call) {
  call.kind = Kind::barrier;
  Visit visit(channel, call);
  if (auto error = visit.begin({}, [](std::byte*) {})) return error;
  return visit.leave();
}

}  // namespace kadril
