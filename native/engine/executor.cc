#include "engine/executor.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "copy.h"
#include "engine/adasum.h"
#include "kernels.h"

namespace kadril {
namespace {

constexpr size_t max_open_batches = 16;

// Members that a mean is taken over; the joined ones count too.
Scale mean_scale(Reduction reduction, Scale scale, DType dtype, int num_members) {
  // Integers are divided exactly, afterwards: in float64 the product with 1/49 is off by one.
  if (reduction == Reduction::average && !is_integer(dtype)) scale.after /= num_members;
  return scale;
}

// Narrow integers are averaged in int64, which no sum of them overflows.
bool is_narrow_average(Reduction reduction, DType dtype) {
  return reduction == Reduction::average && is_integer(dtype) && size_of(dtype) < sizeof(int64_t);
}

Output make_output(Completion& completion, DType dtype, std::vector<uint64_t> dims) {
  constexpr std::align_val_t alignment{64};
  Output output;
  output.piece = {dtype, std::move(dims)};
  if (completion.allocate) {
    output.memory = completion.allocate(completion.outputs.size(), output.piece);
    if (!output.memory) throw std::bad_alloc();
    return output;
  }
  const auto memory = static_cast<std::byte*>(
      ::operator new(std::max<uint64_t>(1, output.piece.bytes()), alignment));
  output.memory = {memory, [=](std::byte* bytes) { ::operator delete(bytes, alignment); }};
  return output;
}

bool is_fatal(const Failure& failure) {
  return failure.reason != Reason::mismatch && failure.reason != Reason::no_room &&
         failure.reason != Reason::unsupported && failure.reason != Reason::invalid;
}

}  // namespace

Executor::Executor(Lane& lane, FusionOptions options, std::function<void(Request&)> before_finish)
    : lane_(lane), options_(options), before_finish_(std::move(before_finish)) {}

Error Executor::run(std::vector<Agreement>& agreements, Timeline* timeline) {
  timeline_ = timeline;
  agreed_ = Clock::now();
  batches_.clear();
  for (Agreement& agreement : agreements) {
    if (timeline_ && agreement.mine) {
      timeline_->add_span(agreement.mine->descriptor, "NEGOTIATE", agreement.mine->submitted,
                          agreed_);
    }
    if (!agreement.problem.empty()) {
      refuse(agreement);
    } else if (!agreement.entry || agreement.any().verb == Verb::barrier) {
      finish(agreement);
    } else if (agreement.any().verb == Verb::allreduce || agreement.any().verb == Verb::broadcast) {
      add_to_batches(agreement);
    }
  }
  wake_finished();
  for (size_t i = 0; i < batches_.size();) {
    const size_t count = num_together(i);
    auto error =
        count > 1 ? run_together(std::span(batches_).subspan(i, count)) : run_batch(batches_[i]);
    if (error) return error;
    i += count;
  }
  for (Agreement& agreement : agreements) {
    if (agreement.mine && !agreement.mine->completion->is_done()) {  // not served in a batch
      if (auto error = run_single(agreement)) return error;
    }
  }
  wake_finished();
  return nullptr;
}

void Executor::add_to_batches(Agreement& agreement) {
  const Descriptor& descriptor = agreement.any();
  for (size_t i = 0; i < descriptor.pieces.size(); ++i) {
    const Piece& piece = descriptor.pieces[i];
    Slice slice{&agreement, &piece, nullptr, nullptr, piece.count()};
    if (agreement.mine) {
      slice.source = agreement.mine->memory[i].source;
      slice.target = agreement.mine->memory[i].target;
    }
    if (slice.count > 0) add_slice(descriptor, slice);
  }
  if (agreement.num_unserved == 0) finish(agreement);
}

bool Executor::fits(const Batch& batch, const Descriptor& descriptor, const Slice& slice) const {
  if (batch.verb != descriptor.verb || batch.bytes + slice.piece->bytes() > options_.threshold ||
      slice.piece->bytes() > options_.largest_piece ||
      batch.slices.front().piece->bytes() > options_.largest_piece) {
    return false;
  }
  if (batch.verb == Verb::broadcast) return batch.root == descriptor.root;
  return batch.dtype == slice.piece->dtype && batch.reduction == descriptor.reduction &&
         batch.scale == descriptor.scale;
}

void Executor::add_slice(const Descriptor& descriptor, Slice slice) {
  // Only a few kinds are open at a time, and the last one is the likeliest.
  const size_t oldest = batches_.size() > max_open_batches ? batches_.size() - max_open_batches : 0;
  ++slice.agreement->num_unserved;
  for (size_t i = batches_.size(); i-- > oldest;) {
    if (!fits(batches_[i], descriptor, slice)) continue;
    batches_[i].bytes += slice.piece->bytes();
    batches_[i].slices.push_back(slice);
    return;
  }
  Batch batch{descriptor.verb, descriptor.reduction, descriptor.scale, slice.piece->dtype,
              descriptor.root, slice.piece->bytes(), {slice}};
  batches_.push_back(std::move(batch));
}

Call Executor::call_of(const Batch& batch) const {
  Call call;
  call.dtype = batch.dtype;
  call.op = op_of(batch.reduction);
  call.scale = mean_scale(batch.reduction, batch.scale, batch.dtype, lane_.size());
  call.count = 0;
  for (const Slice& slice : batch.slices) call.count += slice.count;
  call.set_name(batch.slices.size() > 1 ? "fused" : batch.slices[0].agreement->any().name);
  return call;
}

Call Executor::call_of(const Descriptor& descriptor, const Piece& piece) const {
  Call call;
  call.dtype = piece.dtype;
  call.op = op_of(descriptor.reduction);
  call.scale = mean_scale(descriptor.reduction, descriptor.scale, piece.dtype, lane_.size());
  call.set_name(descriptor.name);
  return call;
}

// Before the request is finished: its submitter may end the timeline as soon as it is.
void Executor::add_spans(const Agreement& agreement, const char* phase, Clock::time_point begin) {
  if (!timeline_ || !agreement.mine) return;
  timeline_->add_span(agreement.mine->descriptor, "QUEUE", agreed_, begin);
  timeline_->add_span(agreement.mine->descriptor, phase, begin, Clock::now());
}

Error Executor::run_batch(Batch& batch) {
  const auto begin = Clock::now();
  Error error;
  if (batch.verb == Verb::broadcast) {
    error = run_broadcast(batch);
  } else if (is_narrow_average(batch.reduction, batch.dtype)) {
    error = run_narrow_average(batch);
  } else if (batch.reduction == Reduction::adasum) {
    error = run_adasum(batch);
  } else {
    error = run_allreduce(batch);
  }
  if (error && is_fatal(*error)) return error;
  finish_batch(batch, batch.slices.size() > 1 ? "FUSED" : "RUN", begin, error);
  return nullptr;
}

void Executor::finish_batch(Batch& batch, const char* phase, Clock::time_point begin,
                            const Error& error) {
  for (Slice& slice : batch.slices) {
    add_spans(*slice.agreement, phase, begin);
    const bool is_last = --slice.agreement->num_unserved == 0;
    if (error) finish(*slice.agreement, std::make_unique<Failure>(*error));
    if (is_last) finish(*slice.agreement);
  }
  wake_finished();
}

// Sums that follow each other and are of one kind, if the first is of a large array; by what all
// members know. A shorter one in between does not part them: while it is summed by itself, the
// links between hosts run empty.
size_t Executor::num_together(size_t first) const {
  const Batch& leader = batches_[first];
  if (!lane_.takes_many() || leader.bytes <= options_.largest_piece) return 1;
  uint64_t bytes = 0;
  size_t count = 0;
  for (const Batch& batch : std::span(batches_).subspan(first)) {
    bytes += batch.bytes;
    const bool is_one_array = batch.slices.size() == 1;
    const bool is_plain = batch.verb == Verb::allreduce && batch.reduction != Reduction::adasum &&
                          !(batch.reduction == Reduction::average && is_integer(batch.dtype));
    const bool is_alike = batch.dtype == leader.dtype && batch.reduction == leader.reduction &&
                          batch.scale == leader.scale;
    if (!is_one_array || !is_plain || !is_alike || bytes > options_.threshold) break;
    ++count;
  }
  return std::max<size_t>(count, 1);
}

Error Executor::run_together(std::span<Batch> batches) {
  const auto begin = Clock::now();
  Call call = call_of(batches.front());
  call.set_name("together");
  uint64_t absent = 0;  // bytes of arrays that this member, which has joined, does not have
  for (const Batch& batch : batches) absent += batch.slices[0].source ? 0 : batch.bytes;
  auto place = static_cast<std::byte*>(absent ? lane_.scratch(absent) : nullptr);
  std::vector<ReducedArray> arrays;
  for (const Batch& batch : batches) {
    const Slice& slice = batch.slices[0];
    if (slice.source) {
      arrays.push_back({slice.source, slice.target, slice.count});
    } else {
      fill_neutral(batch.dtype, call.op, place, slice.count);
      arrays.push_back({place, place, slice.count});
      place += batch.bytes;
    }
  }
  const auto error = lane_.allreduce_many(call, arrays);
  if (error && is_fatal(*error)) return std::make_unique<Failure>(*error);
  for (Batch& batch : batches) finish_batch(batch, "TOGETHER", begin, error);
  return nullptr;
}

Error Executor::run_allreduce(Batch& batch) {
  Call call = call_of(batch);
  const size_t item = size_of(batch.dtype);
  Slice& first = batch.slices.front();
  const bool is_direct = batch.slices.size() == 1 && first.source;
  const void* source = first.source;
  void* target = first.target;
  if (!is_direct) {
    auto place = static_cast<std::byte*>(lane_.scratch(batch.bytes));
    source = target = place;
    for (const Slice& slice : batch.slices) {
      if (slice.source) {
        copy_cached(place, slice.source, slice.count * item);
      } else {
        fill_neutral(batch.dtype, call.op, place, slice.count);
      }
      place += slice.count * item;
    }
  }
  if (auto error = lane_.allreduce(call, source, target)) return error;
  if (batch.reduction == Reduction::average && is_integer(batch.dtype)) {
    divide_integers(batch.dtype, target, call.count, lane_.size());
  }
  auto place = static_cast<const std::byte*>(target);
  for (const Slice& slice : batch.slices) {
    if (!is_direct && slice.source) copy_cached(slice.target, place, slice.count * item);
    place += slice.count * item;
  }
  return nullptr;
}

Error Executor::run_narrow_average(Batch& batch) {
  Call call = call_of(batch);
  call.dtype = DType::int64;
  auto buffer = static_cast<int64_t*>(lane_.scratch(call.count * sizeof(int64_t)));
  auto place = buffer;
  for (const Slice& slice : batch.slices) {
    if (slice.source) {
      widen_integers(batch.dtype, slice.source, place, slice.count);
    } else {
      std::fill_n(place, slice.count, 0);
    }
    place += slice.count;
  }
  if (auto error = lane_.allreduce(call, buffer, buffer)) return error;
  divide_integers(DType::int64, buffer, call.count, lane_.size());
  place = buffer;
  for (const Slice& slice : batch.slices) {
    if (slice.source) narrow_integers(batch.dtype, place, slice.target, slice.count);
    place += slice.count;
  }
  return nullptr;
}

Error Executor::run_adasum(Batch& batch) {
  Call call = call_of(batch);
  const size_t item = size_of(batch.dtype);
  auto buffer = static_cast<std::byte*>(lane_.scratch(2 * batch.bytes));
  std::vector<uint64_t> counts;
  auto place = buffer;
  const auto scale = [&](double factor) {
    void* const targets[] = {buffer};
    const void* const sources[] = {buffer};
    if (factor != 1) {
      reduce_into(targets, 1, sources, 1, call.count, batch.dtype, Op::sum, {factor, 1});
    }
  };
  for (const Slice& slice : batch.slices) {
    std::memcpy(place, slice.source, slice.count * item);
    place += slice.count * item;
    counts.push_back(slice.count);
  }
  scale(batch.scale.before);
  if (auto error = adasum(lane_, call, buffer, buffer + batch.bytes, counts)) return error;
  scale(batch.scale.after);
  place = buffer;
  for (const Slice& slice : batch.slices) {
    std::memcpy(slice.target, place, slice.count * item);
    place += slice.count * item;
  }
  return nullptr;
}

Error Executor::run_broadcast(Batch& batch) {
  Call call;
  call.dtype = DType::uint8;
  call.root = batch.root;
  call.count = batch.bytes;
  call.set_name(batch.slices.size() > 1 ? "fused" : batch.slices[0].agreement->any().name);
  const bool is_root = lane_.me() == batch.root;
  Slice& first = batch.slices.front();
  const bool is_direct = batch.slices.size() == 1;
  auto buffer = static_cast<std::byte*>(is_direct ? first.target : lane_.scratch(batch.bytes));
  auto place = buffer;
  for (const Slice& slice : batch.slices) {
    const uint64_t bytes = slice.piece->bytes();
    if (is_root && place != slice.source) std::memcpy(place, slice.source, bytes);
    if (is_root && !is_direct && slice.target != slice.source) {
      std::memcpy(slice.target, slice.source, bytes);
    }
    place += bytes;
  }
  if (auto error = lane_.broadcast(call, buffer)) return error;
  place = buffer;
  for (const Slice& slice : batch.slices) {
    if (!is_root && !is_direct) copy_cached(slice.target, place, slice.piece->bytes());
    place += slice.piece->bytes();
  }
  return nullptr;
}

Error Executor::run_single(Agreement& agreement) {
  const auto begin = Clock::now();
  Error error;
  try {
    switch (agreement.any().verb) {
      case Verb::allgather:
        error = run_allgather(agreement);
        break;
      case Verb::alltoall:
        error = run_alltoall(agreement);
        break;
      case Verb::reducescatter:
        error = run_reducescatter(agreement);
        break;
      default:
        break;
    }
  } catch (const std::bad_alloc&) {
    // The others are in the middle of a call that this member cannot come to.
    error = fail(Reason::closed, "no memory for the result of " + agreement.any().text());
  }
  if (error && is_fatal(*error)) return error;
  add_spans(agreement, "RUN", begin);
  finish(agreement, std::move(error));
  return nullptr;
}

Error Executor::run_allgather(Agreement& agreement) {
  const LedgerEntry& entry = *agreement.entry;
  const auto size = static_cast<size_t>(lane_.size());
  const Descriptor& mine = agreement.mine->descriptor;
  for (size_t i = 0; i < mine.pieces.size(); ++i) {
    std::vector<uint64_t> counts(size);
    std::vector<uint64_t> dims = mine.pieces[i].dims;
    dims[0] = 0;
    for (size_t member = 0; member < size; ++member) {
      counts[member] = entry.said[member].pieces[i].count();
      dims[0] += entry.said[member].pieces[i].dims[0];
    }
    Output output = make_output(*agreement.mine->completion, mine.pieces[i].dtype, dims);
    const Call call = call_of(mine, mine.pieces[i]);
    if (auto error =
            lane_.allgatherv(call, agreement.mine->memory[i].source, output.memory.get(), counts)) {
      return error;
    }
    agreement.mine->completion->outputs.push_back(std::move(output));
    for (size_t member = 0; member < size; ++member) {
      agreement.mine->completion->received_splits.push_back(entry.said[member].pieces[i].dims[0]);
    }
  }
  return nullptr;
}

Error Executor::run_alltoall(Agreement& agreement) {
  const LedgerEntry& entry = *agreement.entry;
  const auto size = static_cast<size_t>(lane_.size());
  const Descriptor& mine = agreement.mine->descriptor;
  const Piece& piece = mine.pieces[0];
  std::vector<uint64_t> send(size), recv(size), received(size);
  std::vector<uint64_t> dims = piece.dims;
  dims[0] = 0;
  for (size_t member = 0; member < size; ++member) {
    received[member] = entry.said[member].splits[static_cast<size_t>(lane_.me())];
    send[member] = mine.splits[member] * piece.row_count();
    recv[member] = received[member] * piece.row_count();
    dims[0] += received[member];
  }
  Output output = make_output(*agreement.mine->completion, piece.dtype, dims);
  if (auto error = lane_.alltoallv(call_of(mine, piece), agreement.mine->memory[0].source, send,
                                   output.memory.get(), recv)) {
    return error;
  }
  agreement.mine->completion->outputs.push_back(std::move(output));
  agreement.mine->completion->received_splits = std::move(received);
  return nullptr;
}

Error Executor::run_reducescatter(Agreement& agreement) {
  const int size = lane_.size();
  const Descriptor& mine = agreement.mine->descriptor;
  for (size_t i = 0; i < mine.pieces.size(); ++i) {
    const Piece& piece = mine.pieces[i];
    std::vector<uint64_t> counts;
    for (int member = 0; member < size; ++member) {
      counts.push_back(rows_of_member(piece.dims[0], member, size) * piece.row_count());
    }
    std::vector<uint64_t> dims = piece.dims;
    dims[0] = rows_of_member(piece.dims[0], lane_.me(), size);
    Output output = make_output(*agreement.mine->completion, piece.dtype, dims);
    Call call = call_of(mine, piece);
    const void* source = agreement.mine->memory[i].source;
    void* target = output.memory.get();
    std::vector<int64_t> wide_source, wide_target;
    if (is_narrow_average(mine.reduction, piece.dtype)) {
      wide_source.resize(piece.count());
      wide_target.resize(output.piece.count());
      widen_integers(piece.dtype, source, wide_source.data(), wide_source.size());
      call.dtype = DType::int64;
      source = wide_source.data();
      target = wide_target.data();
    }
    if (auto error = lane_.reduce_scatterv(call, source, target, counts)) return error;
    if (mine.reduction == Reduction::average && is_integer(piece.dtype)) {
      divide_integers(call.dtype, target, output.piece.count(), size);
    }
    if (call.dtype != piece.dtype) {
      narrow_integers(piece.dtype, wide_target.data(), output.memory.get(), wide_target.size());
    }
    agreement.mine->completion->outputs.push_back(std::move(output));
  }
  return nullptr;
}

void Executor::refuse(Agreement& agreement) {
  auto error = fail(Reason::mismatch, agreement.problem);
  for (size_t member = 0; member < agreement.entry->said.size(); ++member) {
    error->calls.push_back(agreement.entry->is_present[member]
                               ? agreement.entry->said[member].text_with_site()
                               : "join()");
  }
  finish(agreement, std::move(error));
}

void Executor::finish(Agreement& agreement, Error error) {
  if (!agreement.mine || agreement.mine->completion->is_done()) return;
  before_finish_(*agreement.mine);
  agreement.mine->completion->finish(std::move(error));
  finished_.push_back(agreement.mine->completion);
}

void Executor::wake_finished() {
  for (const auto& completion : finished_) completion->wake();
  finished_.clear();
}

}  // namespace kadril
