// Broadcast: the root stages, the others copy out.
#include <algorithm>

#include "collectives.h"
#include "copy.h"
#include "visit.h"

namespace kadril {

Error broadcast(Channel& channel, Call call, void* memory) {
  call.kind = Kind::broadcast;
  const uint64_t bytes = call.count * size_of(call.dtype);
  auto const mine = static_cast<std::byte*>(memory);
  Visit visit(channel, call);
  const bool is_root = visit.me() == call.root;
  const uint64_t given = is_root ? bytes : 0;
  const auto pack = [&](std::byte* payload) { copy_cached(payload, memory, bytes); };
  if (auto error = visit.begin({memory, nullptr, bytes, 0, given}, pack)) return error;

  if (visit.all_inlined()) {
    if (!is_root && bytes > 0) copy_cached(mine, visit.posting(call.root).payload, bytes);
    visit.hit(Phase::mid_reduce);
    visit.hit(Phase::reduced);
    return visit.leave();
  }
  if (visit.all_sources_shared()) {
    if (!is_root) copy_cached(mine, visit.source(call.root), bytes);
    visit.hit(Phase::mid_copy);
    visit.hit(Phase::mid_reduce);
    visit.hit(Phase::reduced);
    if (auto error = visit.meet()) return error;
    return visit.leave();
  }
  if (auto error = visit.provide_staging()) return error;
  for (uint64_t begin = 0, round = 0; begin < bytes; begin += chunk_bytes, ++round) {
    const uint64_t length = std::min(chunk_bytes, bytes - begin);
    if (is_root) copy_shared(staging_half(visit, visit.me(), round), mine + begin, length);
    visit.hit(Phase::mid_copy);
    if (auto error = visit.meet()) return error;
    if (!is_root) copy_cached(mine + begin, staging_half(visit, call.root, round), length);
    visit.hit(Phase::mid_reduce);
  }
  visit.hit(Phase::reduced);
  return visit.leave();
}

}  // namespace kadril
