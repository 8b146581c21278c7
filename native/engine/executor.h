// The executor: serves what all members have agreed on, over a lane.
//
// Small tensors of one dtype, op and scale are *fused*: copied next to each other into scratch
// memory, reduced in one call, and copied back. Large ones go by themselves, in place, since a copy
// would cost more than a call.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/lane.h"
#include "engine/ledger.h"
#include "engine/timeline.h"

namespace kadril {

struct FusionOptions {
  uint64_t threshold = 64 << 20;  // bytes of one fused call; 0 never fuses
  uint64_t largest_piece = 1 << 20;
};

class Executor {
 public:
  // `before_finish` is told of every request just before its completion is done.
  Executor(Lane& lane, FusionOptions options, std::function<void(Request&)> before_finish);

  // Serve the agreements and finish their completions. What cannot be served by its nature is
  // the completion's failure; an error is the end of the lane, and leaves completions
  // unfinished in `agreements`.
  Error run(std::vector<Agreement>& agreements, Timeline* timeline);

 private:
  // One tensor of one agreement.
  struct Slice {
    Agreement* agreement;
    const Piece* piece;
    const void* source;  // null where this member has joined
    void* target;
    uint64_t count;
  };
  // Slices that are moved in one call.
  struct Batch {
    Verb verb;
    Reduction reduction;
    Scale scale;
    DType dtype;
    int root;
    uint64_t bytes = 0;
    std::vector<Slice> slices;
  };

  void add_to_batches(Agreement& agreement);
  void add_slice(const Descriptor& descriptor, Slice slice);
  bool fits(const Batch& batch, const Descriptor& descriptor, const Slice& slice) const;

  void add_spans(const Agreement& agreement, const char* phase, Clock::time_point begin);

  size_t num_together(size_t first) const;
  Error run_batch(Batch& batch);
  Error run_together(std::span<Batch> batches);
  void finish_batch(Batch& batch, const char* phase, Clock::time_point begin, const Error& error);
  Error run_allreduce(Batch& batch);
  Error run_narrow_average(Batch& batch);
  Error run_adasum(Batch& batch);
  Error run_broadcast(Batch& batch);
  Error run_single(Agreement& agreement);
  Error run_allgather(Agreement& agreement);
  Error run_alltoall(Agreement& agreement);
  Error run_reducescatter(Agreement& agreement);

  Call call_of(const Batch& batch) const;
  Call call_of(const Descriptor& descriptor, const Piece& piece) const;
  void finish(Agreement& agreement, Error error = nullptr);
  void refuse(Agreement& agreement);
  void wake_finished();

  Lane& lane_;
  const FusionOptions options_;
  const std::function<void(Request&)> before_finish_;
  std::vector<Batch> batches_;
  std::vector<std::shared_ptr<Completion>> finished_;
  Timeline* timeline_ = nullptr;
  Clock::time_point agreed_;
};

}  // namespace kadril
