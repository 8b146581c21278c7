// The lane over a channel of the shared-memory core.
#pragma once

#include <memory>

#include "channel.h"
#include "engine/lane.h"

namespace kadril {

class ShmLane final : public Lane {
 public:
  // The channel is the lane's alone from here on, and outlives it.
  ShmLane(Channel& channel, int arena_rank);
  ~ShmLane() override;

  int size() const override { return channel_.num_members(); }
  int me() const override { return channel_.me(); }
  Bell& bell() override { return bell_; }

  Error allreduce(const Call& call, const void* source, void* target) override;
  Error broadcast(const Call& call, void* memory) override;
  Error allgatherv(const Call& call, const void* source, void* target,
                   std::span<const uint64_t> counts) override;
  Error reduce_scatterv(const Call& call, const void* source, void* target,
                        std::span<const uint64_t> counts) override;
  Error alltoallv(const Call& call, const void* source, std::span<const uint64_t> send,
                  void* target, std::span<const uint64_t> recv) override;
  Error exchange(const Call& call, std::span<const Outgoing> sends,
                 std::span<const Incoming> recvs) override;
  void* scratch(uint64_t bytes) override;
  void set_urgent(bool urgent) override { channel_.set_spinning(urgent); }
  LanePlace place() const override;
  void show_activity(uint64_t activity) override { channel_.show_activity(activity); }
  Error give_up_stalled(const Call& call, int member, double elapsed) override;
  void leave_call() noexcept override { channel_.leave_call(); }
  void close() noexcept override;

 private:
  class ShmBell final : public Bell {
   public:
    explicit ShmBell(Channel& channel) : channel_(channel) {}
    uint32_t count() const override { return channel_.num_rings(); }
    void ring() override { channel_.ring_self(); }
    void wait(uint32_t seen, double seconds) override { channel_.await_ring(seen, seconds); }
    bool reaches_peers() const override { return true; }
    void ask_for(uint32_t cycle) override { channel_.ask_for(cycle); }
    bool is_asked_for(uint32_t cycle) const override { return channel_.is_asked_for(cycle); }
    void listen(bool on) override { channel_.listen(on); }

   private:
    Channel& channel_;
  };

  class LateHooks final : public Hooks {
   public:
    explicit LateHooks(ShmLane& lane) : lane_(lane) {}
    void late(const Call&, const std::vector<int>& members, bool stopped,
              double elapsed) noexcept override;

   private:
    ShmLane& lane_;
  };

  void release_scratch();

  Channel& channel_;
  const int arena_rank_;
  ShmBell bell_;
  LateHooks hooks_;
  uint64_t scratch_ = no_offset;
  uint64_t scratch_bytes_ = 0;
  std::unique_ptr<std::byte[]> plain_scratch_;  // where the arena had no room
};

}  // namespace kadril
