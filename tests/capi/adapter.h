// A framework in a few lines, and its adapter in the style of Horovod's: an array with a dtype and
// a shape, seen by the library as a Tensor, and an OpContext that makes arrays for results.
#pragma once

#include <horovod/common/operations.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

namespace adapter {

using namespace horovod::common;

struct Array {
  DataType dtype = HOROVOD_FLOAT64;
  std::vector<int64_t> shape;
  std::vector<char> bytes;

  template <typename Value>
  static std::shared_ptr<Array> of(DataType dtype, std::vector<int64_t> shape,
                                   const std::vector<Value>& values) {
    auto array = std::make_shared<Array>();
    array->dtype = dtype;
    array->shape = std::move(shape);
    const auto* raw = reinterpret_cast<const char*>(values.data());
    array->bytes.assign(raw, raw + sizeof(Value) * values.size());
    return array;
  }
  static std::shared_ptr<Array> of(const std::vector<double>& values) {
    return of(HOROVOD_FLOAT64, {static_cast<int64_t>(values.size())}, values);
  }
  template <typename Value = double>
  std::vector<Value> values() const {
    const auto* first = reinterpret_cast<const Value*>(bytes.data());
    return std::vector<Value>(first, first + bytes.size() / sizeof(Value));
  }
};

class ArrayTensor : public Tensor {
 public:
  explicit ArrayTensor(std::shared_ptr<Array> array) : array_(std::move(array)) {}
  const DataType dtype() const override { return array_->dtype; }
  const TensorShape shape() const override {
    TensorShape shape;
    for (const int64_t dim : array_->shape) shape.AddDim(dim);
    return shape;
  }
  const void* data() const override { return array_->bytes.data(); }
  int64_t size() const override { return static_cast<int64_t>(array_->bytes.size()); }

 private:
  std::shared_ptr<Array> array_;
};

inline std::shared_ptr<Tensor> tensor_of(std::shared_ptr<Array> array) {
  return std::make_shared<ArrayTensor>(std::move(array));
}

class ArrayBuffer : public PersistentBuffer {
 public:
  explicit ArrayBuffer(int64_t size) : bytes_(static_cast<size_t>(size)) {}
  const void* AccessData(std::shared_ptr<OpContext>) const override { return bytes_.data(); }

 private:
  std::vector<char> bytes_;
};

// An event that another thread makes happen.
class ArrayEvent : public ReadyEvent {
 public:
  bool Ready() const override { return has_happened_; }
  void happen() { has_happened_ = true; }

 private:
  std::atomic<bool> has_happened_{false};
};

// Has as many outputs as it was given; results are put there.
class ArrayOpContext : public OpContext {
 public:
  explicit ArrayOpContext(std::vector<std::shared_ptr<Array>> outputs)
      : outputs_(std::move(outputs)) {}

  Status AllocatePersistent(int64_t size, std::shared_ptr<PersistentBuffer>* tensor) override {
    *tensor = std::make_shared<ArrayBuffer>(size);
    return Status::OK();
  }
  Status AllocateOutput(TensorShape shape, std::shared_ptr<Tensor>* tensor,
                        std::shared_ptr<ReadyEvent>* event = nullptr) override {
    return AllocateOutput(0, std::move(shape), tensor, event);
  }
  Status AllocateOutput(int output_index, TensorShape shape, std::shared_ptr<Tensor>* tensor,
                        std::shared_ptr<ReadyEvent>* = nullptr) override {
    auto output = outputs_.at(static_cast<size_t>(output_index));
    output->shape = shape.to_vector();
    const size_t item = output->dtype == HOROVOD_FLOAT64 ? 8 : 4;
    output->bytes.assign(static_cast<size_t>(shape.num_elements()) * item, 0);
    *tensor = tensor_of(output);
    return Status::OK();
  }
  Status AllocateZeros(int64_t num_elements, DataType dtype,
                       std::shared_ptr<Tensor>* tensor) override {
    const std::vector<double> zeros(static_cast<size_t>(num_elements));
    *tensor = tensor_of(Array::of(dtype, {num_elements}, zeros));
    return Status::OK();
  }
  Framework framework() const override { return Framework::PYTORCH; }

 private:
  std::vector<std::shared_ptr<Array>> outputs_;
};

// One operation: give its callback to Enqueue..., then wait for what it is told.
class Outcome {
 public:
  StatusCallback callback() {
    return [this](const Status& status) {
      const std::lock_guard<std::mutex> lock(mutex_);
      status_ = status;
      ++num_calls_;
      changed_.notify_all();
    };
  }
  Status wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return num_calls_ > 0; });
    return status_;
  }
  int num_calls() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return num_calls_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Status status_ = Status::InProgress();
  int num_calls_ = 0;
};

}  // namespace adapter

#define CHECK(condition)                                                                    \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      std::fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, kadril_last_error()); \
      std::exit(1);                                                                         \
    }                                                                                       \
  } while (0)

#define CHECK_OK(status)                                                                   \
  do {                                                                                     \
    const Status seen = (status);                                                          \
    if (!seen.ok()) {                                                                      \
      std::fprintf(stderr, "line %d: %s: %s\n", __LINE__, #status, seen.reason().c_str()); \
      std::exit(1);                                                                        \
    }                                                                                      \
  } while (0)
