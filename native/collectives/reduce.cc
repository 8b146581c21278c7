// Reduce: the members other than the root stage, the root adds them up in member order.
#include <algorithm>
#include <vector>

#include "collectives.h"
#include "copy.h"
#include "visit.h"

namespace kadril {
namespace {

// Where the root finds what member m gives, from element `begin` on, in round `round`.
const std::byte* find(const Visit& visit, int member, const void* own, uint64_t begin_byte,
                      uint64_t round, bool inlined, bool shared) {
  if (member == visit.me()) return static_cast<const std::byte*>(own) + begin_byte;
  if (inlined) return visit.posting(member).payload + begin_byte;
  if (shared) return visit.source(member) + begin_byte;
  return staging_half(visit, member, round);
}

}  // namespace

Error reduce(Channel& channel, Call call, const void* source, void* target) {
  call.kind = Kind::reduce;
  if (!supports(call.dtype, call.op)) return fail(Reason::unsupported, call.text());
  const size_t item = size_of(call.dtype);
  const uint64_t bytes = call.count * item;
  Visit visit(channel, call);
  const bool is_root = visit.me() == call.root;
  const uint64_t given = is_root ? 0 : bytes;
  const auto pack = [&](std::byte* payload) { copy_cached(payload, source, given); };
  if (auto error = visit.begin({source, nullptr, bytes, 0, given}, pack)) return error;

  const bool inlined = visit.all_inlined();
  const bool shared = !inlined && visit.all_sources_shared();
  const bool staged = !inlined && !shared;
  if (staged) {
    if (auto error = visit.provide_staging()) return error;
  }
  if (shared) visit.hit(Phase::mid_copy);
  // What is not staged is there at once, and is read in one round.
  const uint64_t chunk = staged ? chunk_bytes / item : std::max<uint64_t>(1, call.count);
  std::vector<const void*> sources(static_cast<size_t>(visit.size()));
  for (uint64_t begin = 0, round = 0; begin < call.count; begin += chunk, ++round) {
    const uint64_t count = std::min(chunk, call.count - begin);
    if (staged) {
      if (!is_root) {
        copy_shared(staging_half(visit, visit.me(), round),
                    static_cast<const std::byte*>(source) + begin * item, count * item);
        visit.hit(Phase::mid_copy);
      }
      if (auto error = visit.meet()) return error;
    }
    if (is_root) {
      for (int m = 0; m < visit.size(); ++m) {
        sources[m] = find(visit, m, source, begin * item, round, inlined, shared);
      }
      void* const targets[] = {static_cast<std::byte*>(target) + begin * item};
      reduce_into(targets, 1, sources.data(), visit.size(), count, call.dtype, call.op, call.scale);
    }
    visit.hit(Phase::mid_reduce);
  }
  visit.hit(Phase::reduced);
  if (shared) {
    if (auto error = visit.meet()) return error;
  }
  return visit.leave();
}

}  // namespace kadril
