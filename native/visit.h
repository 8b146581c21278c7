// A visit: one member's part in one call. Holds the channel for its length, runs the first meeting,
// and shows the member what the others laid open.
#pragma once

#include <cstring>
#include <mutex>
#include <span>

#include "channel.h"
#include "fault.h"
#include "recorder.h"

namespace kadril {

// What a member lays open for a call.
struct Offer {
  const void* source = nullptr;  // memory it gives from, where that is one piece
  const void* target = nullptr;  // memory it wants the result in
  uint64_t source_bytes = 0;
  uint64_t target_bytes = 0;
  uint64_t bytes = 0;  // that it gives to others
};

class Visit {
 public:
  Visit(Channel& channel, const Call& call)
      : channel_(channel), call_(call), lock_(channel.mutex()) {}
  ~Visit() { Recorder::end(record_); }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  // The first meeting: post the call and the offer, wait, and compare with what the others posted.
  // `pack` writes what this member gives into its payload, and is called only where that fits.
  template <typename Pack>
  Error begin(const Offer& offer, Pack pack) {
    if (auto error = enter()) return error;
    prepare(offer);
    if (mine().inlined && offer.bytes > 0) {
      pack(mine().payload);
      fault::hit(call_.kind, Phase::mid_copy);
    }
    return publish();
  }

  // The same in pieces, for a call that has a table to write.
  Error enter();
  void prepare(const Offer& offer);
  Error publish() {
    announce();
    return confirm();
  }
  // Publishing in two steps, for work in between.
  void announce();
  Error confirm();

  // Further meetings of the same call; in two steps, for work in between.
  Error meet() { return channel_.meet(call_); }
  void post() { channel_.post(); }
  Error await_all() { return channel_.await_all(call_); }

  // Give every member that gives something staging memory. All or none: where one has no room,
  // all fail, and the channel stays usable.
  Error provide_staging();

  Error leave() {
    fault::hit(call_.kind, Phase::exit);
    return nullptr;
  }
  void hit(Phase phase) { fault::hit(call_.kind, phase); }

  int size() const { return channel_.num_members(); }
  int me() const { return channel_.me(); }
  const Posting& posting(int member) const { return channel_.posting(member); }
  Posting& mine() { return channel_.posting(me()); }
  std::span<Entry> my_table() {
    return {channel_.table(me()), static_cast<size_t>(Channel::table_capacity(size()))};
  }
  std::span<const Entry> sends(int member) const {
    return {channel_.table(member), posting(member).num_sends};
  }
  std::span<const Entry> recvs(int member) const {
    return {channel_.table(member) + posting(member).num_sends, posting(member).num_recvs};
  }
  Arena& arena() const { return channel_.arena(); }
  std::vector<const void*>& pointers() { return channel_.pointers(); }
  std::byte* staging(int member) const { return channel_.arena().at(staging_offset(member)); }
  // Memory of this member that it may fill before the first meeting of a call, where it has some:
  // like postings, it is used again only in the call after the next.
  uint64_t early_half() const;
  std::byte* source(int member) const { return channel_.arena().at(posting(member).source); }
  std::byte* target(int member) const { return channel_.arena().at(posting(member).target); }

  bool any_wish() const;  // of the call
  bool all_inlined() const;
  bool all_sources_shared() const;  // of the members that give something
  bool all_targets_shared() const;

 private:
  uint64_t staging_offset(int member) const;
  Error compare() const;

  Channel& channel_;
  const Call& call_;
  std::unique_lock<std::mutex> lock_;
  uint64_t record_ = 0;
};

// Staging memory of a member: two halves, so that one is filled while peers read the other.
inline constexpr uint64_t chunk_bytes = 512 << 10;
// Two halves in, two halves of results, two that are filled early.
inline constexpr uint64_t staging_bytes = 6 * chunk_bytes;

inline std::byte* staging_half(const Visit& visit, int member, uint64_t round) {
  return visit.staging(member) + (round & 1) * chunk_bytes;
}

}  // namespace kadril
