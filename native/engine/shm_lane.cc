#include "engine/shm_lane.h"

#include <algorithm>

namespace kadril {

ShmLane::ShmLane(Channel& channel, int arena_rank)
    : channel_(channel), arena_rank_(arena_rank), bell_(channel), hooks_(*this) {
  channel_.set_hooks(&hooks_);
  channel_.set_spinning(false);
}

void ShmLane::LateHooks::late(const Call&, const std::vector<int>& members, bool stopped,
                              double elapsed) noexcept {
  try {
    if (lane_.late_hook_) lane_.late_hook_(members, stopped, elapsed);
  } catch (...) {  // a report must never hurt the call it reports on
  }
}

ShmLane::~ShmLane() { close(); }

void ShmLane::close() noexcept {
  release_scratch();
  channel_.close();
  channel_.set_hooks(nullptr);
}

void ShmLane::release_scratch() {
  // Peers may still be reading it: their last call need not have returned.
  if (scratch_ != no_offset) channel_.release_when_unused(scratch_, scratch_bytes_);
  scratch_ = no_offset;
  scratch_bytes_ = 0;
}

Error ShmLane::allreduce(const Call& call, const void* source, void* target) {
  return kadril::allreduce(channel_, call, source, target);
}

Error ShmLane::broadcast(const Call& call, void* memory) {
  return kadril::broadcast(channel_, call, memory);
}

Error ShmLane::allgatherv(const Call& call, const void* source, void* target,
                          std::span<const uint64_t> counts) {
  return kadril::allgatherv(channel_, call, source, target, counts);
}

Error ShmLane::reduce_scatterv(const Call& call, const void* source, void* target,
                               std::span<const uint64_t> counts) {
  return kadril::reduce_scatterv(channel_, call, source, target, counts);
}

Error ShmLane::alltoallv(const Call& call, const void* source, std::span<const uint64_t> send,
                         void* target, std::span<const uint64_t> recv) {
  return kadril::alltoallv(channel_, call, source, send, target, recv);
}

Error ShmLane::exchange(const Call& call, std::span<const Outgoing> sends,
                        std::span<const Incoming> recvs) {
  return kadril::exchange(channel_, call, sends, recvs);
}

void* ShmLane::scratch(uint64_t bytes) {
  constexpr uint64_t least_bytes = 1 << 20;
  if (plain_scratch_) plain_scratch_.reset();
  if (scratch_bytes_ < bytes) {
    release_scratch();
    const uint64_t wanted = std::max(least_bytes, bytes + bytes / 4);
    if (channel_.arena().allocate(arena_rank_, wanted, scratch_)) {
      scratch_ = no_offset;  // the staged way does without
      plain_scratch_ = std::make_unique<std::byte[]>(bytes);
      return plain_scratch_.get();
    }
    scratch_bytes_ = wanted;
  }
  return channel_.arena().at(scratch_);
}

LanePlace ShmLane::place() const {
  LanePlace place{channel_.shared_arena(), arena_rank_, {}};
  place.target.board = channel_.board();
  place.target.num_members = static_cast<uint32_t>(size());
  place.target.me = static_cast<uint32_t>(me());
  return place;
}

Error ShmLane::give_up_stalled(const Call& call, int member, double elapsed) {
  return channel_.give_up(Reason::stalled, member, call, elapsed);
}

}  // namespace kadril
