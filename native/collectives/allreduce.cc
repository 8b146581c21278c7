// All-reduce, in three ways:
//
//   inlined  1 meeting;       every member reduces all postings
//   staged   2 + n meetings;  each member reduces its own part of a chunk, and shows the result
//                             to the others:
//
//            chunk of member 0:  [ mine | to 1 | to 2 ]      to r: staged, member r reduces it
//                     member 1:  [ to 0 | mine | to 2 ]      mine: not staged, reduced in place
//                     member 2:  [ to 0 | to 1 | mine ]
//
//   shared   2 meetings;      each member reduces its own part of the arrays in place and writes
//                             it to all
#include <algorithm>
#include <vector>

#include "collectives.h"
#include "copy.h"
#include "visit.h"

namespace kadril {
namespace {

// Bytes that are added up before they are shown to the others.
constexpr uint64_t piece_bytes = 32 << 10;

struct Range {
  uint64_t begin, end;  // elements
  uint64_t count() const { return end - begin; }
};

// The m-th of p parts; borders at whole cache lines, so that members do not write to the same one.
Range part(uint64_t count, int member, int num_members, size_t item) {
  const uint64_t line = std::max<uint64_t>(1, 64 / item);
  const uint64_t num_lines = (count + line - 1) / line;
  const auto border = [&](int m) {
    const uint64_t lines =
        num_lines / num_members * m + std::min<uint64_t>(num_lines % num_members, m);
    return std::min(count, lines * line);
  };
  return {border(member), border(member + 1)};
}

class AllReduce {
 public:
  AllReduce(Visit& visit, const Call& call, const void* source, void* target)
      : visit_(visit),
        call_(call),
        source_(static_cast<const std::byte*>(source)),
        target_(static_cast<std::byte*>(target)),
        item_(size_of(call.dtype)),
        chunk_(chunk_bytes / item_),
        num_rounds_((call.count + chunk_ - 1) / chunk_),
        sources_(visit.pointers()) {}

  Error run() {
    if (visit_.all_inlined()) return inlined();
    if (visit_.all_sources_shared() && visit_.all_targets_shared()) return shared();
    if (auto error = visit_.provide_staging()) return error;
    return staged();
  }

 private:
  Error inlined() {
    for (int m = 0; m < visit_.size(); ++m) sources_[m] = visit_.posting(m).payload;
    reduce_to(target_, call_.count);
    return done();
  }

  // The results of round r are read in round r + 1, so that each round needs only one meeting.
  Error staged() {
    for (uint64_t round = 0; round <= num_rounds_; ++round) {
      if (round < num_rounds_) fill(round);
      if (auto error = visit_.meet()) return error;
      if (round < num_rounds_) reduce_part(round);
      if (round > 0) collect(round - 1);
      visit_.hit(Phase::mid_reduce);
    }
    return done();
  }

  Error shared() {
    std::vector<void*> targets(sources_.size());
    const Range mine = part(call_.count, visit_.me(), visit_.size(), item_);
    for (int m = 0; m < visit_.size(); ++m) {
      sources_[m] = visit_.source(m) + mine.begin * item_;
      targets[m] = visit_.target(m) + mine.begin * item_;
    }
    visit_.hit(Phase::mid_copy);
    reduce_into(targets.data(), visit_.size(), sources_.data(), visit_.size(), mine.count(),
                call_.dtype, call_.op, call_.scale);
    visit_.hit(Phase::mid_reduce);
    visit_.hit(Phase::reduced);
    if (auto error = visit_.meet()) return error;
    return visit_.leave();
  }

  // What the others reduce of this chunk.
  void fill(uint64_t round) {
    for (int m = 0; m < visit_.size(); ++m) {
      if (m == visit_.me()) continue;
      const Range theirs = part_of(round, m);
      copy_shared(staging_half(visit_, visit_.me(), round) + theirs.begin * item_,
                  source_ + (round * chunk_ + theirs.begin) * item_, theirs.count() * item_);
    }
    visit_.hit(Phase::mid_copy);
  }

  // This member's own part: its sum goes to its own target, and to where the others look for
  // it.
  void reduce_part(uint64_t round) {
    const Range mine = part_of(round, visit_.me());
    const uint64_t offset = (round * chunk_ + mine.begin) * item_;
    for (int m = 0; m < visit_.size(); ++m) {
      sources_[m] = staging_half(visit_, m, round) + mine.begin * item_;
    }
    sources_[visit_.me()] = source_ + offset;
    std::byte* const result = result_half(visit_.me(), round) + mine.begin * item_;
    if (!streaming_is_quicker()) {
      void* const targets[] = {target_ + offset, result};
      reduce_into(targets, 2, sources_.data(), visit_.size(), mine.count(), call_.dtype, call_.op,
                  call_.scale);
      return;
    }
    // In pieces, so that what was added up is still in the cache when it is copied.
    const uint64_t piece = piece_bytes / item_;
    for (uint64_t begin = 0; begin < mine.count(); begin += piece) {
      const uint64_t count = std::min(piece, mine.count() - begin);
      reduce_to(target_ + offset + begin * item_, count);
      copy_shared(result + begin * item_, target_ + offset + begin * item_, count * item_);
      for (auto& source : sources_) source = static_cast<const std::byte*>(source) + count * item_;
    }
  }

  // The parts of the others, from where they left them.
  void collect(uint64_t round) {
    for (int m = 0; m < visit_.size(); ++m) {
      if (m == visit_.me()) continue;
      const Range theirs = part_of(round, m);
      copy_cached(target_ + (round * chunk_ + theirs.begin) * item_,
                  result_half(m, round) + theirs.begin * item_, theirs.count() * item_);
    }
  }

  Range part_of(uint64_t round, int member) const {
    return part(count_of(round), member, visit_.size(), item_);
  }

  std::byte* result_half(int member, uint64_t round) const {
    return visit_.staging(member) + (2 + (round & 1)) * chunk_bytes;
  }

  void reduce_to(std::byte* target, uint64_t count) {
    void* const targets[] = {target};
    reduce_into(targets, 1, sources_.data(), visit_.size(), count, call_.dtype, call_.op,
                call_.scale);
  }

  Error done() {
    visit_.hit(Phase::mid_reduce);
    visit_.hit(Phase::reduced);
    return visit_.leave();
  }

  uint64_t count_of(uint64_t round) const { return std::min(chunk_, call_.count - round * chunk_); }

  Visit& visit_;
  const Call& call_;
  const std::byte* source_;
  std::byte* target_;
  const size_t item_;
  const uint64_t chunk_;  // elements
  const uint64_t num_rounds_;
  std::vector<const void*>& sources_;
};

}  // namespace

Error allreduce(Channel& channel, Call call, const void* source, void* target, bool* any_wish) {
  call.kind = Kind::allreduce;
  if (!supports(call.dtype, call.op)) return fail(Reason::unsupported, call.text());
  const uint64_t bytes = call.count * size_of(call.dtype);
  Visit visit(channel, call);
  const auto pack = [&](std::byte* payload) { copy_cached(payload, source, bytes); };
  if (auto error = visit.begin({source, target, bytes, bytes, bytes}, pack)) return error;
  if (any_wish) *any_wish = visit.any_wish();
  return AllReduce(visit, call, source, target).run();
}

}  // namespace kadril
