// What the functions in operations.h share: from a tensor of an adapter to a call of the C
// interface, and from its result to the adapter's callback. Not for adapters themselves.
#ifndef KADRIL_HOROVOD_ENQUEUE_H
#define KADRIL_HOROVOD_ENQUEUE_H

#include <kadril.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <iostream>
#include <iterator>
#include <mutex>
#include <thread>

#include "common.h"

namespace horovod {
namespace common {
namespace detail {

inline Status to_status(kadril_status status, const char* reason) {
  const std::string text = reason ? reason : "";
  switch (status) {
    case KADRIL_OK:
      return Status::OK();
    case KADRIL_MISMATCH:
    case KADRIL_NOT_INITIALIZED:
      return Status::PreconditionError(text);
    case KADRIL_INVALID:
    case KADRIL_NO_SUCH_SET:
    case KADRIL_NOT_A_MEMBER:
    case KADRIL_SET_EXISTS:
      return Status::InvalidArgument(text);
    case KADRIL_CLOSED:
      return Status::Aborted(text);
    default:
      return Status::UnknownError(text);
  }
}

inline Status last_status() { return to_status(kadril_last_status(), kadril_last_error()); }

struct Type {
  kadril_dtype code;
  int64_t size;
};

inline Type type_of(DataType dtype) {
  switch (dtype) {
    case HOROVOD_UINT8:
      return {KADRIL_UINT8, 1};
    case HOROVOD_INT8:
      return {KADRIL_INT8, 1};
    case HOROVOD_UINT16:
      return {KADRIL_UINT16, 2};
    case HOROVOD_INT16:
      return {KADRIL_INT16, 2};
    case HOROVOD_INT32:
      return {KADRIL_INT32, 4};
    case HOROVOD_INT64:
      return {KADRIL_INT64, 8};
    case HOROVOD_FLOAT16:
      return {KADRIL_FLOAT16, 2};
    case HOROVOD_FLOAT32:
      return {KADRIL_FLOAT32, 4};
    case HOROVOD_FLOAT64:
      return {KADRIL_FLOAT64, 8};
    case HOROVOD_BOOL:
      return {KADRIL_BOOL, 1};
    case HOROVOD_BFLOAT16:
      return {KADRIL_BFLOAT16, 2};
  }
  return {KADRIL_UINT8, 0};
}

// What is wrong with a tensor that is to be read or written; OK where nothing is.
inline Status check_tensor(const std::shared_ptr<Tensor>& tensor, const std::string& what) {
  if (!tensor) return Status::InvalidArgument(what + " is missing");
  const int64_t item = type_of(tensor->dtype()).size;
  if (item == 0) return Status::InvalidArgument(what + " has a dtype that does not exist");
  const int64_t expected = tensor->shape().num_elements() * item;
  if (tensor->size() != expected) {
    return Status::InvalidArgument(what + " of shape " + tensor->shape().DebugString() + " has " +
                                   std::to_string(tensor->size()) + " bytes, not " +
                                   std::to_string(expected));
  }
  return Status::OK();
}

inline Status check_alike(const Tensor& input, const Tensor& output, const std::string& name) {
  if (input.dtype() == output.dtype() && input.shape() == output.shape()) return Status::OK();
  return Status::InvalidArgument(
      name + ": the output is of another dtype or shape: " + output.shape().DebugString() +
      ", not " + input.shape().DebugString());
}

inline Status check_device(int device, const std::string& name) {
  if (device == CPU_DEVICE_ID) return Status::OK();
  return Status::InvalidArgument(name + ": device " + std::to_string(device) +
                                 "; only memory of the CPU (CPU_DEVICE_ID) is moved, so copy the"
                                 " tensor there first");
}

inline Status check_context(const std::shared_ptr<OpContext>& context, const std::string& name) {
  if (context) return Status::OK();
  return Status::InvalidArgument(name + ": the output needs an OpContext that allocates it");
}

inline void* writable(const Tensor& tensor) { return const_cast<void*>(tensor.data()); }

// An operation under way: what stays alive, what is done with its result, and whom to tell.
struct Pending {
  std::shared_ptr<OpContext> context;
  std::vector<std::shared_ptr<Tensor>> kept;
  std::function<Status(const kadril_result&)> take;  // may be empty
  std::vector<StatusCallback> callbacks;

  // Neither the engine's thread nor the C functions below it can pass an exception on.
  void tell(const Status& status) const noexcept {
    for (const StatusCallback& callback : callbacks) {
      try {
        if (callback) callback(status);
      } catch (const std::exception& error) {
        std::cerr << "kadril: a StatusCallback threw, which it must not: " << error.what() << "\n";
      } catch (...) {
        std::cerr << "kadril: a StatusCallback threw, which it must not\n";
      }
    }
  }
};

inline void on_done(void* argument, const kadril_result* result) {
  const std::unique_ptr<std::shared_ptr<Pending>> held(
      static_cast<std::shared_ptr<Pending>*>(argument));
  const Pending& pending = **held;
  Status status = to_status(result->status, result->error);
  if (status.ok() && pending.take) {
    try {
      status = pending.take(*result);
    } catch (const std::exception& error) {
      status = Status::UnknownError(std::string("the OpContext threw: ") + error.what());
    }
  }
  pending.tell(status);
}

// Events can only be asked whether they have happened: one thread for the whole program does so,
// and calls what was waiting. It sleeps while nothing waits, and ends with the program.
class ReadyWaiter {
 public:
  static ReadyWaiter& instance() {
    static ReadyWaiter* const forever = new ReadyWaiter;
    return *forever;
  }

  void add(ReadyEventList events, std::function<void()> then) {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back({std::move(events), std::move(then)});
    changed_.notify_one();
  }

 private:
  struct Waiting {
    ReadyEventList events;
    std::function<void()> then;
  };

  ReadyWaiter() {
    std::thread([this] { run(); }).detach();
  }

  [[noreturn]] void run() {
    using std::chrono::microseconds;
    constexpr microseconds shortest{20}, longest{1000};
    microseconds pause = shortest;
    while (true) {
      std::vector<Waiting> ready;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return !waiting_.empty(); });
        const auto first =
            std::stable_partition(waiting_.begin(), waiting_.end(),
                                  [](const Waiting& each) { return !each.events.Ready(); });
        std::move(first, waiting_.end(), std::back_inserter(ready));
        waiting_.erase(first, waiting_.end());
      }
      for (const Waiting& each : ready) each.then();
      pause = ready.empty() ? std::min(longest, 2 * pause) : shortest;
      std::this_thread::sleep_for(pause);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Waiting> waiting_;
};

// Submit now, or when the events have happened. `submit(callback, context)` calls the C
// interface. What is refused at once is returned, and nobody is called; what is refused later is
// told to the callbacks.
template <typename Submit>
Status start(ReadyEventList events, std::shared_ptr<Pending> pending, Submit submit) {
  auto submit_now = [pending, submit]() -> Status {
    auto held = std::make_unique<std::shared_ptr<Pending>>(pending);
    if (submit(&on_done, static_cast<void*>(held.get())) != 0) return last_status();
    static_cast<void>(held.release());  // on_done() has it
    return Status::OK();
  };
  if (events.Ready()) return submit_now();
  ReadyWaiter::instance().add(std::move(events), [pending, submit_now] {
    const Status status = submit_now();
    if (!status.ok()) pending->tell(status);
  });
  return Status::OK();
}

// Write to an output that the context allocates.
inline Status fill_output(OpContext& context, int index, const TensorShape& shape, DataType dtype,
                          const void* data) {
  std::shared_ptr<Tensor> output;
  std::shared_ptr<ReadyEvent> event;
  Status status = context.AllocateOutput(index, shape, &output, &event);
  if (status.ok()) status = check_tensor(output, "output " + std::to_string(index));
  if (!status.ok()) return status;
  if (output->dtype() != dtype || output->shape() != shape) {
    return Status::PreconditionError("the OpContext gave output " + std::to_string(index) +
                                     " another dtype or shape than " + shape.DebugString());
  }
  while (event && !event->Ready()) std::this_thread::yield();
  if (output->size() > 0) {
    std::memcpy(writable(*output), data, static_cast<size_t>(output->size()));
  }
  return Status::OK();
}

inline Status take_output(OpContext& context, DataType dtype, const kadril_result& result) {
  const TensorShape shape(std::vector<int64_t>(result.shape, result.shape + result.num_dims));
  return fill_output(context, 0, shape, dtype, result.data);
}

inline Status take_received_splits(OpContext& context, const kadril_result& result) {
  const std::vector<int32_t> splits(result.splits, result.splits + result.num_splits);
  return fill_output(context, 1, TensorShape({static_cast<int64_t>(splits.size())}), HOROVOD_INT32,
                     splits.data());
}

// The numbers of an integer tensor of one dim, such as splits.
inline Status read_integers(const Tensor& tensor, const std::string& what,
                            std::vector<int64_t>* numbers) {
  const auto count = static_cast<size_t>(tensor.shape().num_elements());
  if (tensor.dtype() == HOROVOD_INT32) {
    const auto* values = static_cast<const int32_t*>(tensor.data());
    numbers->assign(values, values + count);
  } else if (tensor.dtype() == HOROVOD_INT64) {
    const auto* values = static_cast<const int64_t*>(tensor.data());
    numbers->assign(values, values + count);
  } else {
    return Status::InvalidArgument(what + " must be of dtype HOROVOD_INT32 or HOROVOD_INT64");
  }
  return Status::OK();
}

// A tensor that one rank can be written to.
inline Status check_rank_output(const std::shared_ptr<Tensor>& output) {
  const Status status = check_tensor(output, "the output of the last rank");
  if (!status.ok()) return status;
  const bool is_integer = output->dtype() == HOROVOD_INT32 || output->dtype() == HOROVOD_INT64;
  if (is_integer && output->shape().num_elements() == 1) return Status::OK();
  return Status::InvalidArgument(
      "the output of the last rank must be one HOROVOD_INT32 or HOROVOD_INT64");
}

inline void write_rank(const Tensor& output, int rank) {
  const int32_t narrow = rank;
  const int64_t wide = rank;
  const bool is_narrow = output.dtype() == HOROVOD_INT32;
  std::memcpy(writable(output), is_narrow ? static_cast<const void*>(&narrow) : &wide,
              is_narrow ? sizeof narrow : sizeof wide);
}

// The tensors of a group, as the C interface takes them.
struct Group {
  std::vector<std::shared_ptr<OpContext>> contexts;  // kept alive
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<kadril_dtype> dtypes;
  std::vector<std::vector<int64_t>> dims;
  std::vector<const int64_t*> shapes;
  std::vector<int> num_dims;
  std::string name;  // of all names, so that ranks that group differently are told

  Status fill(const std::vector<std::shared_ptr<Tensor>>& tensors,
              const std::vector<std::shared_ptr<Tensor>>& results,
              const std::vector<std::string>& names) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      Status status = check_tensor(tensors[i], "tensor " + names[i]);
      if (status.ok()) status = check_tensor(results[i], "output " + names[i]);
      if (status.ok()) status = check_alike(*tensors[i], *results[i], names[i]);
      if (!status.ok()) return status;
      inputs.push_back(tensors[i]->data());
      outputs.push_back(writable(*results[i]));
      dtypes.push_back(type_of(tensors[i]->dtype()).code);
      dims.push_back(tensors[i]->shape().to_vector());
      num_dims.push_back(tensors[i]->shape().dims());
      name += (i > 0 ? ", " : "") + names[i];
    }
    for (const auto& each : dims) shapes.push_back(each.data());
    return Status::OK();
  }
};

// The first that is not OK.
inline Status all_of(std::initializer_list<Status> statuses) {
  for (const Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return Status::OK();
}

}  // namespace detail
}  // namespace common
}  // namespace horovod

#endif  // KADRIL_HOROVOD_ENQUEUE_H
