// The lane over a transport that is written in Python: c10d, MPI, or a world of one.
#pragma once

#include <nanobind/nanobind.h>

#include <latch>
#include <memory>
#include <vector>

#include "engine/lane.h"

namespace kadril {

class PythonLane final : public Lane {
 public:
  // `lane` has the methods of `kadril.engine.lane.TransportLane`.
  PythonLane(nanobind::object lane, int size, int me);

  int size() const override { return size_; }
  int me() const override { return me_; }
  Bell& bell() override { return bell_; }

  // A Python thread state that the engine's thread keeps. One for each call would do, but for
  // fork(): making it takes a lock of the interpreter without the GIL, and a child made at that
  // moment waits for that lock for ever (Python 3.11: before fork() returns in it).
  std::shared_ptr<void> enter() override;
  // Until the thread has entered; without the GIL.
  void await_entry() const { entered_.wait(); }

  Error allreduce(const Call& call, const void* source, void* target) override;
  bool takes_many() const override { return true; }
  // For 35 known names. Blocks of 8 ranks of a host ride along in the one packet of a meeting.
  uint64_t block_bytes() const override { return 160; }
  Error allreduce_many(const Call& call, std::span<const ReducedArray> arrays) override;
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
  Error give_up_stalled(const Call& call, int member, double elapsed) override;
  void leave_call() noexcept override { close(); }
  void close() noexcept override;

 private:
  // Within one process: members that are elsewhere cannot ring.
  class LocalBell final : public Bell {
   public:
    uint32_t count() const override { return num_rings_.load(); }
    void ring() override;
    void wait(uint32_t seen, double seconds) override;

   private:
    std::atomic<uint32_t> num_rings_{0};
    std::atomic<uint32_t> is_asleep_{0};
  };

  nanobind::object lane_;
  const int size_;
  const int me_;
  std::latch entered_{1};
  LocalBell bell_;
  std::vector<std::byte> scratch_;
  std::atomic<bool> is_closed_{false};
};

}  // namespace kadril
