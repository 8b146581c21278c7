// Reduce-scatter: in each round a member stages a slice of every part, side by side:
//
//     half:  | slice of part 0 | slice of part 1 | ... |
//
// and member m reduces the m-th slice of all halves. So every member works in every round.
#include <algorithm>
#include <numeric>
#include <vector>

#include "collectives.h"
#include "copy.h"
#include "visit.h"

namespace kadril {
namespace {

class ReduceScatter {
 public:
  ReduceScatter(Visit& visit, const Call& call, const void* source, void* target,
                std::span<const uint64_t> counts)
      : visit_(visit),
        call_(call),
        source_(static_cast<const std::byte*>(source)),
        target_(static_cast<std::byte*>(target)),
        counts_(counts),
        item_(size_of(call.dtype)),
        begins_(counts.size()),
        sources_(counts.size()) {
    std::exclusive_scan(counts.begin(), counts.end(), begins_.begin(), uint64_t{0});
  }

  Error run() {
    if (visit_.all_inlined()) {
      reduce_mine(0, mine(), [&](int m) { return visit_.posting(m).payload + my_byte(); });
      visit_.hit(Phase::mid_reduce);
      visit_.hit(Phase::reduced);
      return visit_.leave();
    }
    if (visit_.all_sources_shared()) {
      visit_.hit(Phase::mid_copy);
      reduce_mine(0, mine(), [&](int m) { return visit_.source(m) + my_byte(); });
      visit_.hit(Phase::mid_reduce);
      visit_.hit(Phase::reduced);
      if (auto error = visit_.meet()) return error;
      return visit_.leave();
    }
    if (auto error = visit_.provide_staging()) return error;
    return staged();
  }

 private:
  Error staged() {
    // A whole number of cache lines, so that no two members read and write the same one.
    const uint64_t slice_bytes = chunk_bytes / counts_.size() / 64 * 64;
    const uint64_t slice = slice_bytes / item_;
    const uint64_t longest = *std::max_element(counts_.begin(), counts_.end());
    for (uint64_t begin = 0, round = 0; begin < longest; begin += slice, ++round) {
      std::byte* half = staging_half(visit_, visit_.me(), round);
      for (size_t part = 0; part < counts_.size(); ++part) {
        // Its own slice a member reads where it is: nobody else does.
        if (begin >= counts_[part] || part == static_cast<size_t>(visit_.me())) continue;
        copy_shared(half + part * slice_bytes, source_ + (begins_[part] + begin) * item_,
                    std::min(slice, counts_[part] - begin) * item_);
      }
      visit_.hit(Phase::mid_copy);
      if (auto error = visit_.meet()) return error;
      if (begin < mine()) {
        reduce_mine(begin, std::min(slice, mine() - begin), [&](int m) -> const std::byte* {
          if (m == visit_.me()) return source_ + my_byte() + begin * item_;
          return staging_half(visit_, m, round) + static_cast<uint64_t>(visit_.me()) * slice_bytes;
        });
      }
      visit_.hit(Phase::mid_reduce);
    }
    visit_.hit(Phase::reduced);
    return visit_.leave();
  }

  template <typename Find>
  void reduce_mine(uint64_t begin, uint64_t count, Find find) {
    for (int m = 0; m < visit_.size(); ++m) sources_[m] = find(m);
    void* const targets[] = {target_ + begin * item_};
    reduce_into(targets, 1, sources_.data(), visit_.size(), count, call_.dtype, call_.op,
                call_.scale);
  }

  uint64_t mine() const { return counts_[visit_.me()]; }
  uint64_t my_byte() const { return begins_[visit_.me()] * item_; }

  Visit& visit_;
  const Call& call_;
  const std::byte* source_;
  std::byte* target_;
  std::span<const uint64_t> counts_;
  const size_t item_;
  std::vector<uint64_t> begins_;
  std::vector<const void*> sources_;
};

}  // namespace

Error reduce_scatterv(Channel& channel, Call call, const void* source, void* target,
                      std::span<const uint64_t> counts) {
  call.kind = Kind::reduce_scatterv;
  call.set_counts(counts);
  if (!supports(call.dtype, call.op)) return fail(Reason::unsupported, call.text());
  const uint64_t bytes =
      std::accumulate(counts.begin(), counts.end(), uint64_t{0}) * size_of(call.dtype);
  Visit visit(channel, call);
  const auto pack = [&](std::byte* payload) { copy_cached(payload, source, bytes); };
  if (auto error = visit.begin({source, nullptr, bytes, 0, bytes}, pack)) return error;
  return ReduceScatter(visit, call, source, target, counts).run();
}

}  // namespace kadril
