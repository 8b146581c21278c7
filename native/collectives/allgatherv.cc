// All-gather: every member stages its own block, and copies the blocks of the others out.
#include <algorithm>
#include <numeric>

#include "collectives.h"
#include "copy.h"
#include "visit.h"

namespace kadril {
namespace {

// Copy the bytes [begin, begin + length) of every peer's block, from where `find(m)` says they are.
template <typename Find>
void copy_blocks(const Visit& visit, std::byte* target, std::span<const uint64_t> counts,
                 size_t item, uint64_t begin, uint64_t length, Find find) {
  uint64_t block = 0;
  for (int m = 0; m < visit.size(); ++m) {
    const uint64_t bytes = counts[m] * item;
    if (m != visit.me() && begin < bytes) {
      copy_cached(target + block + begin, find(m), std::min(length, bytes - begin));
    }
    block += bytes;
  }
}

}  // namespace

Error allgatherv(Channel& channel, Call call, const void* source, void* target,
                 std::span<const uint64_t> counts) {
  call.kind = Kind::allgatherv;
  call.set_counts(counts);
  const size_t item = size_of(call.dtype);
  Visit visit(channel, call);
  const uint64_t own = counts[visit.me()] * item;
  const uint64_t own_begin =
      std::accumulate(counts.begin(), counts.begin() + visit.me(), uint64_t{0}) * item;
  const uint64_t longest = *std::max_element(counts.begin(), counts.end()) * item;
  auto const from = static_cast<const std::byte*>(source);
  auto const to = static_cast<std::byte*>(target);

  const auto pack = [&](std::byte* payload) { copy_cached(payload, source, own); };
  if (auto error = visit.begin({source, nullptr, own, 0, own}, pack)) return error;
  if (own > 0 && to + own_begin != from) copy_cached(to + own_begin, from, own);

  if (visit.all_inlined()) {
    copy_blocks(visit, to, counts, item, 0, longest,
                [&](int m) { return visit.posting(m).payload; });
    visit.hit(Phase::mid_reduce);
    visit.hit(Phase::reduced);
    return visit.leave();
  }
  if (visit.all_sources_shared()) {
    visit.hit(Phase::mid_copy);
    copy_blocks(visit, to, counts, item, 0, longest, [&](int m) { return visit.source(m); });
    visit.hit(Phase::mid_reduce);
    visit.hit(Phase::reduced);
    if (auto error = visit.meet()) return error;
    return visit.leave();
  }
  if (auto error = visit.provide_staging()) return error;
  for (uint64_t begin = 0, round = 0; begin < longest; begin += chunk_bytes, ++round) {
    if (begin < own) {
      copy_shared(staging_half(visit, visit.me(), round), from + begin,
                  std::min(chunk_bytes, own - begin));
    }
    visit.hit(Phase::mid_copy);
    if (auto error = visit.meet()) return error;
    copy_blocks(visit, to, counts, item, begin, chunk_bytes,
                [&](int m) { return staging_half(visit, m, round); });
    visit.hit(Phase::mid_reduce);
  }
  visit.hit(Phase::reduced);
  return visit.leave();
}

}  // namespace kadril
