// Ranks as threads of one process that share one mapping: quick, and what ThreadSanitizer can see.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "arena.h"
#include "channel.h"
#include "collectives.h"

namespace kadril::test {

inline void check(bool holds, const char* text, const char* file, int line) {
  if (holds) return;
  std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, text);
  std::abort();
}
#define CHECK(condition) ::kadril::test::check((condition), #condition, __FILE__, __LINE__)

inline void check_ok(const Error& error, const char* text, const char* file, int line) {
  if (!error) return;
  std::fprintf(stderr, "%s:%d: %s failed: reason %d, member %d, %s\n", file, line, text,
               static_cast<int>(error->reason), error->member, error->detail.c_str());
  std::abort();
}
#define CHECK_OK(expression) ::kadril::test::check_ok((expression), #expression, __FILE__, __LINE__)

// An arena and the world's channel for every rank of it.
class World {
 public:
  explicit World(int size, Waiting waiting = {20, 10, 100, 10}) {
    ArenaOptions options;
    options.num_ranks = size;
    options.capacity = 256 << 20;
    options.control_bytes = Channel::board_bytes(size);
    CHECK_OK(Arena::create(options, arena_));
    Channel::format(*arena_, arena_->control_offset(), size);
    liveness_ = std::make_shared<Liveness>(std::vector<int>(static_cast<size_t>(size), -1));
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
    for (int rank = 0; rank < size; ++rank) {
      channels_.push_back(std::make_unique<Channel>(arena_, liveness_, arena_->control_offset(),
                                                    ranks, rank, false, waiting, nullptr));
    }
  }

  void run(const std::function<void(Channel&)>& body) {
    std::vector<std::thread> threads;
    for (auto& channel : channels_) threads.emplace_back([&] { body(*channel); });
    for (auto& thread : threads) thread.join();
  }

  std::shared_ptr<Arena> arena() { return arena_; }
  std::shared_ptr<Liveness> liveness() { return liveness_; }
  Channel& channel(int rank) { return *channels_[static_cast<size_t>(rank)]; }

 private:
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<Liveness> liveness_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

inline Call call_of(DType dtype, uint64_t count, Op op = Op::sum, int root = -1) {
  Call call;
  call.dtype = dtype;
  call.op = op;
  call.count = count;
  call.root = root;
  return call;
}

}  // namespace kadril::test
