// Horovod's types for framework adapters, over kadril: an adapter gives the library its tensors as
// subclasses of `Tensor`, and room for results through a subclass of `OpContext`.
//
//     Status               what became of an operation
//     TensorShape          dims
//     Tensor               memory of the framework, with dtype and shape
//     OpContext            allocates outputs whose size only the other ranks knew
//     ReadyEventList       what must have happened before the memory may be read
//
// Header-only, C++17; the library behind it has a C interface (kadril.h).
#ifndef KADRIL_HOROVOD_COMMON_H
#define KADRIL_HOROVOD_COMMON_H

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace horovod {
namespace common {

// Tensors in memory that the CPU can read; the only ones there are here.
constexpr int CPU_DEVICE_ID = -1;

enum Framework { TENSORFLOW, PYTORCH, MXNET, XLA };

enum DeviceType { CPU, GPU };

enum StatusType {
  OK,
  UNKNOWN_ERROR,       // a rank was lost or is too late, or something that has no name here
  PRECONDITION_ERROR,  // ranks asked for different things, or kadril is not initialized
  ABORTED,             // kadril was shut down meanwhile
  INVALID_ARGUMENT,    // refused at once, on this rank
  IN_PROGRESS
};

enum DataType {
  HOROVOD_UINT8 = 0,
  HOROVOD_INT8 = 1,
  HOROVOD_UINT16 = 2,
  HOROVOD_INT16 = 3,
  HOROVOD_INT32 = 4,
  HOROVOD_INT64 = 5,
  HOROVOD_FLOAT16 = 6,
  HOROVOD_FLOAT32 = 7,
  HOROVOD_FLOAT64 = 8,
  HOROVOD_BOOL = 9,
  HOROVOD_BFLOAT16 = 10
};

// Unlike Horovod's, AVERAGE is taken by every function that has a ReduceOp.
enum ReduceOp { AVERAGE = 0, SUM = 1, ADASUM = 2, MIN = 3, MAX = 4, PRODUCT = 5 };

class Status {
 public:
  Status() = default;
  static Status OK() { return Status(); }
  static Status UnknownError(const std::string& message) {
    return Status(StatusType::UNKNOWN_ERROR, message);
  }
  static Status PreconditionError(const std::string& message) {
    return Status(StatusType::PRECONDITION_ERROR, message);
  }
  static Status Aborted(const std::string& message) { return Status(StatusType::ABORTED, message); }
  static Status InvalidArgument(const std::string& message) {
    return Status(StatusType::INVALID_ARGUMENT, message);
  }
  static Status InProgress() { return Status(StatusType::IN_PROGRESS, ""); }

  bool ok() const { return type_ == StatusType::OK; }
  bool in_progress() const { return type_ == StatusType::IN_PROGRESS; }
  StatusType type() const { return type_; }
  const std::string& reason() const { return reason_; }

 private:
  Status(StatusType type, std::string reason) : type_(type), reason_(std::move(reason)) {}

  StatusType type_ = StatusType::OK;
  std::string reason_;
};

// Called once, from a thread of the library, which must not be kept waiting. It must not throw.
using StatusCallback = std::function<void(const Status&)>;

class TensorShape {
 public:
  TensorShape() = default;
  TensorShape(std::vector<int64_t> dims) : dims_(std::move(dims)) {}  // NOLINT: as in Horovod

  void AddDim(int64_t dim) { dims_.push_back(dim); }
  void AppendShape(const TensorShape& other) {
    dims_.insert(dims_.end(), other.dims_.begin(), other.dims_.end());
  }
  int dims() const { return static_cast<int>(dims_.size()); }
  int64_t dim_size(int index) const { return dims_.at(static_cast<size_t>(index)); }
  int64_t num_elements() const {
    int64_t count = 1;
    for (const int64_t dim : dims_) count *= dim;
    return count;
  }
  const std::vector<int64_t>& to_vector() const { return dims_; }
  std::string DebugString() const {
    std::string text = "[";
    for (size_t i = 0; i < dims_.size(); ++i) {
      text += (i > 0 ? ", " : "") + std::to_string(dims_[i]);
    }
    return text + "]";
  }
  bool operator==(const TensorShape& other) const { return dims_ == other.dims_; }
  bool operator!=(const TensorShape& other) const { return dims_ != other.dims_; }

 private:
  std::vector<int64_t> dims_;
};

// Something that happens before memory may be read, such as the end of a kernel.
class ReadyEvent {
 public:
  virtual bool Ready() const = 0;
  virtual ~ReadyEvent() = default;
};

class ReadyEventList {
 public:
  void AddReadyEvent(const std::shared_ptr<ReadyEvent>& event) {
    if (event) events_.push_back(event);
  }
  void AddReadyEvents(const ReadyEventList& other) {
    events_.insert(events_.end(), other.events_.begin(), other.events_.end());
  }
  bool Ready() const {
    for (const auto& event : events_) {
      if (!event->Ready()) return false;
    }
    return true;
  }
  size_t size() const { return events_.size(); }

 private:
  std::vector<std::shared_ptr<ReadyEvent>> events_;
};

class OpContext;

// Memory that an adapter keeps for the library. kadril has its own, and asks for none.
class PersistentBuffer {
 public:
  virtual const void* AccessData(std::shared_ptr<OpContext> context) const = 0;
  virtual ~PersistentBuffer() = default;
};

// The const of dtype() means nothing, but adapters that have it must match.
#ifdef __GNUC__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-qualifiers"
#endif
class Tensor {
 public:
  virtual const DataType dtype() const = 0;
  virtual const TensorShape shape() const = 0;
  virtual const void* data() const = 0;  // contiguous
  virtual int64_t size() const = 0;      // in bytes
  virtual ~Tensor() = default;
};
#ifdef __GNUC__
#pragma GCC diagnostic pop
#endif

// How the library allocates memory of the framework, from its own thread.
class OpContext {
 public:
  virtual Status AllocatePersistent(int64_t size, std::shared_ptr<PersistentBuffer>* tensor) = 0;
  // The (first) output of an operation. Where an event is given back, it is waited for before the
  // memory is written to.
  virtual Status AllocateOutput(TensorShape shape, std::shared_ptr<Tensor>* tensor,
                                std::shared_ptr<ReadyEvent>* event = nullptr) = 0;
  // Output 1 of an all-to-all is the splits that were received, HOROVOD_INT32.
  virtual Status AllocateOutput(int output_index, TensorShape shape,
                                std::shared_ptr<Tensor>* tensor,
                                std::shared_ptr<ReadyEvent>* event = nullptr) {
    if (output_index == 0) return AllocateOutput(std::move(shape), tensor, event);
    return Status::PreconditionError("this OpContext has only one output, and output " +
                                     std::to_string(output_index) + " is needed");
  }
  virtual Status AllocateZeros(int64_t num_elements, DataType dtype,
                               std::shared_ptr<Tensor>* tensor) = 0;
  virtual Framework framework() const = 0;
  virtual ~OpContext() = default;
};

}  // namespace common
}  // namespace horovod

#endif  // KADRIL_HOROVOD_COMMON_H
