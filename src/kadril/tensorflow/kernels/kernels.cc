// TensorFlow's ops over the C interface of kadril, compiled on the user's machine against the
// TensorFlow that is installed there (see op_library.py). It is linked to nothing of kadril:
// `kadril_tensorflow_connect` hands over a table of functions.
//
// A kernel is asynchronous: it submits a request and returns, and a thread of the engine calls back.
// So any number of collectives of one graph are in flight at once, and ranks may run them in any
// order. The ops bear the names that Horovod's have: scripts look for them in graphs and errors.
//
//     ComputeAsync --> submit ----------------> callback: set outputs, done()
//                         |                        (after a cancellation: only let go of the memory)
//                         `--> cancelled: done() at once, the request is withdrawn
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kadril.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace kadril_tensorflow {

using tensorflow::AsyncOpKernel;
using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;
using Status = absl::Status;

const kadril_functions* functions = nullptr;

// With the kind of the error, which TensorFlow has no place for; `op_errors.py` reads it.
Status marked(absl::StatusCode code, const std::string& text, const char* kind) {
  return Status(code, text + " [kadril." + kind + "]");
}

Status status_of(kadril_status kind, const std::string& text) {
  switch (kind) {
    case KADRIL_OK:
      return absl::OkStatus();
    case KADRIL_INVALID:
    case KADRIL_NO_SUCH_SET:
    case KADRIL_NOT_A_MEMBER:
    case KADRIL_SET_EXISTS:
      return absl::InvalidArgumentError(text);
    case KADRIL_MISMATCH:
      return marked(absl::StatusCode::kFailedPrecondition, text, "MismatchError");
    case KADRIL_NOT_INITIALIZED:
      return marked(absl::StatusCode::kFailedPrecondition, text, "NotInitializedError");
    case KADRIL_CANCELLED:
      return absl::CancelledError(text);
    case KADRIL_PEER_LOST:
      return marked(absl::StatusCode::kUnknown, text, "PeerLost");
    case KADRIL_STALLED:
      return marked(absl::StatusCode::kUnknown, text, "Stalled");
    default:
      return marked(absl::StatusCode::kUnknown, text, "KadrilError");
  }
}

Status last_failure(const std::string& name) {
  return status_of(functions->last_status(), name + ": " + functions->last_error());
}

bool to_kadril(DataType dtype, kadril_dtype* found) {
  switch (dtype) {
    case tensorflow::DT_BOOL:
      return *found = KADRIL_BOOL, true;
    case tensorflow::DT_UINT8:
      return *found = KADRIL_UINT8, true;
    case tensorflow::DT_INT8:
      return *found = KADRIL_INT8, true;
    case tensorflow::DT_UINT16:
      return *found = KADRIL_UINT16, true;
    case tensorflow::DT_INT16:
      return *found = KADRIL_INT16, true;
    case tensorflow::DT_UINT32:
      return *found = KADRIL_UINT32, true;
    case tensorflow::DT_INT32:
      return *found = KADRIL_INT32, true;
    case tensorflow::DT_UINT64:
      return *found = KADRIL_UINT64, true;
    case tensorflow::DT_INT64:
      return *found = KADRIL_INT64, true;
    case tensorflow::DT_HALF:
      return *found = KADRIL_FLOAT16, true;
    case tensorflow::DT_BFLOAT16:
      return *found = KADRIL_BFLOAT16, true;
    case tensorflow::DT_FLOAT:
      return *found = KADRIL_FLOAT32, true;
    case tensorflow::DT_DOUBLE:
      return *found = KADRIL_FLOAT64, true;
    case tensorflow::DT_COMPLEX64:
      return *found = KADRIL_COMPLEX64, true;
    case tensorflow::DT_COMPLEX128:
      return *found = KADRIL_COMPLEX128, true;
    default:
      return false;
  }
}

void* memory_of(const Tensor& tensor) { return const_cast<char*>(tensor.tensor_data().data()); }

// One run of a kernel, from its request to the engine's callback. It holds the memory of both ends:
// after a cancellation the step is gone, and the engine may still be at work.
class Operation : public std::enable_shared_from_this<Operation> {
 public:
  Operation(OpKernelContext* ctx, AsyncOpKernel::DoneCallback done, std::string name)
      : ctx_(ctx), done_(std::move(done)), name_(std::move(name)) {}

  kadril_request request = {};
  std::vector<int64_t> splits;
  int64_t num_members = 0;  // whose rows are told, for each tensor

  Status add(const Tensor& input, bool has_output) {
    kadril_tensor tensor = {};
    if (!to_kadril(input.dtype(), &tensor.dtype)) {
      return absl::InvalidArgumentError(name_ + ": no tensors of this dtype can be moved");
    }
    const auto dims = input.shape().dim_sizes();
    shapes_.emplace_back(dims.begin(), dims.end());
    tensor.input = memory_of(input);
    if (has_output) {
      // Before the input is kept: one that nobody else holds is reduced in its own memory.
      Tensor output;
      const int index = static_cast<int>(outputs_.size());
      const auto made =
          ctx_->forward_input_or_allocate_temp({index}, input.dtype(), input.shape(), &output);
      if (!made.ok()) return made;
      tensor.output = memory_of(output);
      outputs_.push_back(output);
    }
    inputs_.push_back(input);
    tensors_.push_back(tensor);
    return absl::OkStatus();
  }

  void start() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].shape = shapes_[i].data();
      tensors_[i].num_dims = static_cast<int>(shapes_[i].size());
    }
    request.tensors = tensors_.data();
    request.num_tensors = static_cast<int>(tensors_.size());
    request.splits = splits.empty() ? nullptr : splits.data();
    request.callback = &Operation::on_done;
    if (outputs_.empty() && !tensors_.empty()) request.allocate = &Operation::on_allocate;
    auto* kept = new std::shared_ptr<Operation>(shared_from_this());
    request.context = kept;
    // Read before: after it is submitted the step may end at any moment.
    tensorflow::CancellationManager* const manager = ctx_->cancellation_manager();
    const auto token = manager ? manager->get_cancellation_token() : 0;
    bool is_watched = false;
    if (manager) {
      manager_ = manager;
      token_ = token;
      is_watched =
          manager->RegisterCallback(token, [self = shared_from_this()] { self->cancel(); });
      if (!is_watched) {
        delete kept;
        return answer(absl::CancelledError(name_ + ": the step was cancelled"), false);
      }
    }
    const int64_t ticket = functions->submit(&request);
    if (ticket < 0) {
      const Status why = last_failure(name_);
      delete kept;
      return answer(why, true);
    }
    ticket_.store(ticket);
    if (is_cancelled_.load()) functions->cancel(ticket);
  }

 private:
  static void* on_allocate(void* context, int index, const int64_t* shape, int num_dims) {
    Operation& self = **static_cast<std::shared_ptr<Operation>*>(context);
    TensorShape dims;
    for (int i = 0; i < num_dims; ++i) dims.AddDim(shape[i]);
    Tensor result(self.inputs_[static_cast<size_t>(index)].dtype(), dims);
    if (!result.IsInitialized() && dims.num_elements() > 0) return nullptr;
    self.outputs_.push_back(result);
    static char nothing;
    return dims.num_elements() > 0 ? memory_of(result) : &nothing;
  }

  static void on_done(void* context, const kadril_result* result) {
    const std::unique_ptr<std::shared_ptr<Operation>> kept(
        static_cast<std::shared_ptr<Operation>*>(context));
    Operation& self = **kept;
    self.last_joined_ = result->last_joined;
    self.received_.assign(result->splits, result->splits + result->num_splits);
    self.answer(result->error ? status_of(result->status, self.name_ + ": " + result->error)
                              : absl::OkStatus(),
                true);
  }

  // By a thread of TensorFlow's, while the step is being cancelled.
  void cancel() {
    is_cancelled_.store(true);
    const int64_t ticket = ticket_.load();
    if (ticket > 0) functions->cancel(ticket);
    if (is_answered_.exchange(true)) return;
    ctx_->SetStatus(absl::CancelledError(name_ + ": the step was cancelled"));
    done_();
  }

  void answer(const Status& status, bool is_watched) {
    if (is_answered_.exchange(true)) return;
    if (manager_ && is_watched) manager_->DeregisterCallback(token_);
    if (status.ok()) {
      set_outputs();
    } else {
      ctx_->SetStatus(status);
    }
    auto done = std::move(done_);
    inputs_.clear();
    outputs_.clear();
    done();
  }

  void set_outputs() {
    int index = 0;
    for (const Tensor& output : outputs_) ctx_->set_output(index++, output);
    if (request.verb == KADRIL_JOIN) {
      Tensor last(tensorflow::DT_INT32, TensorShape({}));
      last.scalar<int32_t>()() = last_joined_;
      ctx_->set_output(index, last);
    }
    if (request.verb != KADRIL_ALLGATHER && request.verb != KADRIL_ALLTOALL) return;
    TensorShape shape({num_members});
    if (request.is_group) shape.InsertDim(0, static_cast<int64_t>(tensors_.size()));
    Tensor rows(tensorflow::DT_INT32, shape);
    for (size_t i = 0; i < received_.size(); ++i) {
      rows.flat<int32_t>()(static_cast<int64_t>(i)) = static_cast<int32_t>(received_[i]);
    }
    ctx_->set_output(index, rows);
  }

  OpKernelContext* const ctx_;
  AsyncOpKernel::DoneCallback done_;
  const std::string name_;
  tensorflow::CancellationManager* manager_ = nullptr;
  tensorflow::CancellationToken token_ = 0;
  std::atomic<int64_t> ticket_{0};
  std::atomic<bool> is_cancelled_{false};
  std::atomic<bool> is_answered_{false};
  std::vector<kadril_tensor> tensors_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<Tensor> inputs_, outputs_;
  std::vector<int64_t> received_;
  int last_joined_ = -1;
};

// What all kernels have in common: which set, under which name, and how the request is begun.
class Collective : public AsyncOpKernel {
 public:
  Collective(OpKernelConstruction* construction, kadril_verb verb, bool is_group)
      : AsyncOpKernel(construction), verb_(verb), is_group_(is_group) {
    read(construction, "tensor_name", &tensor_name_);
    read(construction, "ignore_name_scope", &ignores_scope_);
    read(construction, "is_counted", &is_counted_);
    read(construction, "is_eager", &is_eager_);
    read(construction, "process_set_id", &set_);
    read(construction, "reduce_op", &op_);
    read_double(construction, "prescale_bits", &prescale_);
    read_double(construction, "postscale_bits", &postscale_);
    read(construction, "root_rank", &root_rank_);
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    OP_REQUIRES_ASYNC(ctx, functions,
                      absl::FailedPreconditionError("kadril.tensorflow is not loaded"), done);
    const std::string name = tensor_name(ctx);
    auto operation = std::make_shared<Operation>(ctx, done, is_counted_ ? type_string() : name);
    kadril_request& request = operation->request;
    request.verb = verb_;
    request.name = is_counted_ ? nullptr : name.c_str();
    request.is_group = is_group_;
    request.op = static_cast<kadril_op>(op_);
    request.prescale = prescale_;
    request.postscale = postscale_;
    request.root_rank = root_rank_;
    request.set = set_;
    // An eager op is a step by itself, in which nothing else can fail.
    request.step = is_eager_ || is_counted_ ? 0 : static_cast<uint64_t>(ctx->step_id());
    operation->num_members = functions->process_set_size(set_);
    OP_REQUIRES_ASYNC(ctx, operation->num_members >= 0, last_failure(type_string()), done);
    const bool has_output = verb_ == KADRIL_ALLREDUCE || verb_ == KADRIL_BROADCAST;
    const int num_tensors = verb_ == KADRIL_ALLTOALL ? 1 : ctx->num_inputs();
    for (int i = 0; i < num_tensors; ++i) {
      OP_REQUIRES_OK_ASYNC(ctx, operation->add(ctx->input(i), has_output), done);
    }
    if (verb_ == KADRIL_ALLTOALL) {
      OP_REQUIRES_OK_ASYNC(ctx, read_splits(ctx->input(1), *operation), done);
    }
    operation->start();
  }

 private:
  template <typename Value>
  static void read(OpKernelConstruction* construction, const char* name, Value* value) {
    if (construction->HasAttr(name)) {
      OP_REQUIRES_OK(construction, construction->GetAttr(name, value));
    }
  }

  // From its bits: a float of TensorFlow's attributes has 32 of them, in which 30 * 0.7 is not 21.
  static void read_double(OpKernelConstruction* construction, const char* name, double* value) {
    int64_t bits = 0;
    if (!construction->HasAttr(name)) return;
    OP_REQUIRES_OK(construction, construction->GetAttr(name, &bits));
    std::memcpy(value, &bits, sizeof bits);
  }

  // As it was given, or that of the node. Iterations of a loop may overlap, ten of them by default:
  // each has a name of its own, and a few do for all.
  std::string tensor_name(OpKernelContext* ctx) const {
    std::string name = tensor_name_.empty() ? this->name() : tensor_name_;
    if (ignores_scope_) name = name.substr(name.find_last_of('/') + 1);
    const auto place = ctx->frame_iter();
    if (place.frame_id == 0 && place.iter_id == 0) return name;
    constexpr uint64_t num_names = 64;
    return name + "@" + std::to_string(place.frame_id) + "." +
           std::to_string(static_cast<uint64_t>(place.iter_id) % num_names);
  }

  Status read_splits(const Tensor& given, Operation& operation) const {
    if (given.NumElements() == 0) return absl::OkStatus();
    if (given.NumElements() != operation.num_members) {
      return absl::InvalidArgumentError(
          "alltoall: splits has " + std::to_string(given.NumElements()) +
          " entries, and the process set " + std::to_string(operation.num_members) + " ranks");
    }
    for (int64_t i = 0; i < given.NumElements(); ++i) {
      operation.splits.push_back(given.dtype() == tensorflow::DT_INT64 ? given.flat<int64_t>()(i)
                                                                       : given.flat<int32_t>()(i));
    }
    return absl::OkStatus();
  }

  const kadril_verb verb_;
  const bool is_group_;
  std::string tensor_name_;
  bool ignores_scope_ = false;
  bool is_counted_ = false;
  bool is_eager_ = false;
  int set_ = 0;
  int op_ = KADRIL_SUM;
  double prescale_ = 1, postscale_ = 1;
  int root_rank_ = 0;
};

template <kadril_verb verb, bool is_group>
class CollectiveOf final : public Collective {
 public:
  explicit CollectiveOf(OpKernelConstruction* construction)
      : Collective(construction, verb, is_group) {}
};

// A number that is asked for when the graph runs, so that it is right after a change of the ranks.
enum class Fact { rank, size, local_rank, local_size, included };

template <Fact fact>
class FactOp final : public OpKernel {
 public:
  explicit FactOp(OpKernelConstruction* construction) : OpKernel(construction) {
    if (construction->HasAttr("process_set_id")) {
      OP_REQUIRES_OK(construction, construction->GetAttr("process_set_id", &set_));
    }
  }

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES(ctx, functions, absl::FailedPreconditionError("kadril.tensorflow is not loaded"));
    const int number = ask();
    OP_REQUIRES(ctx, number >= 0 || fact == Fact::included, last_failure(type_string()));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &output));
    output->scalar<int32_t>()() = number;
  }

 private:
  int ask() const {
    switch (fact) {
      case Fact::rank:
        return functions->rank();
      case Fact::size:
        return functions->process_set_size(set_);
      case Fact::local_rank:
        return functions->local_rank();
      case Fact::local_size:
        return functions->local_size();
      case Fact::included:
        return functions->process_set_included(set_);
    }
    return -1;
  }

  int set_ = 0;
};

// ---- the ops ------------------------------------------------------------------------------------

Status same_shapes(InferenceContext* c) {
  for (int i = 0; i < c->num_inputs(); ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

// All dims but the first.
Status other_rows(InferenceContext* c) {
  int num_tensors = c->num_outputs();
  for (int i = 0; i < num_tensors && i < c->num_inputs(); ++i) {
    ShapeHandle shape;
    if (!c->RankKnown(c->input(i))) {
      c->set_output(i, c->UnknownShape());
      continue;
    }
    const Status ranked = c->WithRankAtLeast(c->input(i), 1, &shape);
    if (!ranked.ok()) return ranked;
    const Status replaced = c->ReplaceDim(shape, 0, c->UnknownDim(), &shape);
    if (!replaced.ok()) return replaced;
    c->set_output(i, shape);
  }
  return absl::OkStatus();
}

// The last output is the rows of each member.
Status gathered(InferenceContext* c) {
  c->set_output(c->num_outputs() - 1, c->UnknownShape());
  const int num_tensors = c->num_outputs() - 1;
  for (int i = 0; i < num_tensors; ++i) {
    ShapeHandle shape = c->input(i);
    if (c->RankKnown(shape)) {
      const Status ranked = c->WithRankAtLeast(shape, 1, &shape);
      if (!ranked.ok()) return ranked;
      const Status replaced = c->ReplaceDim(shape, 0, c->UnknownDim(), &shape);
      if (!replaced.ok()) return replaced;
    }
    c->set_output(i, shape);
  }
  return absl::OkStatus();
}

}  // namespace kadril_tensorflow

extern "C" __attribute__((visibility("default"))) int kadril_tensorflow_connect(
    const kadril_functions* table) {
  kadril_tensorflow::functions = table;
  return table->version;
}

#define DTYPES                                                                               \
  "{bool, uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, " \
  "double, complex64, complex128}"
#define NAMED                                  \
  Attr("tensor_name: string = ''")             \
      .Attr("is_counted: bool = false")        \
      .Attr("is_eager: bool = false")          \
      .Attr("ignore_name_scope: bool = false") \
      .Attr("process_set_id: int = 0")
#define ONE "4607182418800017408"  // its bits as a double
#define REDUCTION \
  Attr("reduce_op: int").Attr("prescale_bits: int = " ONE).Attr("postscale_bits: int = " ONE)
// Stateful: otherwise a collective of constants is run while a graph is optimized, and two of the
// same input become one.
#define SINGLE Attr("T: " DTYPES).Input("tensor: T").SetIsStateful()
#define GROUP Attr("T: list(" DTYPES ") >= 1").Input("tensors: T").SetIsStateful()

using namespace kadril_tensorflow;  // NOLINT: the macros below name its classes

REGISTER_OP("HorovodAllreduce").NAMED.REDUCTION.SINGLE.Output("sum: T").SetShapeFn(same_shapes);
REGISTER_OP("HorovodGroupedAllreduce")
    .NAMED.REDUCTION.GROUP.Output("sum: T")
    .SetShapeFn(same_shapes);
REGISTER_OP("HorovodAllgather")
    .NAMED.SINGLE.Output("output: T")
    .Output("rows: int32")
    .SetShapeFn(gathered);
REGISTER_OP("HorovodGroupedAllgather")
    .NAMED.GROUP.Output("output: T")
    .Output("rows: int32")
    .SetShapeFn(gathered);
REGISTER_OP("HorovodBroadcast")
    .Attr("root_rank: int")
    .NAMED.SINGLE.Output("output: T")
    .SetShapeFn(same_shapes);
REGISTER_OP("HorovodGroupedBroadcast")
    .Attr("root_rank: int")
    .NAMED.GROUP.Output("output: T")
    .SetShapeFn(same_shapes);
REGISTER_OP("HorovodAlltoall")
    .Attr("Tsplits: {int32, int64} = DT_INT32")
    .NAMED.SINGLE.Input("splits: Tsplits")
    .Output("output: T")
    .Output("received_splits: int32")
    .SetShapeFn(gathered);
REGISTER_OP("HorovodReducescatter")
    .NAMED.REDUCTION.SINGLE.Output("output: T")
    .SetShapeFn(other_rows);
REGISTER_OP("HorovodGroupedReducescatter")
    .NAMED.REDUCTION.GROUP.Output("output: T")
    .SetShapeFn(other_rows);
REGISTER_OP("HorovodJoin")
    .SetIsStateful()
    .Attr("process_set_id: int = 0")
    .Output("last_joined_rank: int32")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);
REGISTER_OP("HorovodBarrier")
    .NAMED.SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);
REGISTER_OP("HorovodRank")
    .SetIsStateful()
    .Output("rank: int32")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);
REGISTER_OP("HorovodSize")
    .SetIsStateful()
    .Attr("process_set_id: int = 0")
    .Output("size: int32")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);
REGISTER_OP("HorovodLocalRank")
    .SetIsStateful()
    .Output("rank: int32")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);
REGISTER_OP("HorovodLocalSize")
    .SetIsStateful()
    .Output("size: int32")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);
REGISTER_OP("HorovodProcessSetIncluded")
    .SetIsStateful()
    .Attr("process_set_id: int = 0")
    .Output("included: int32")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

#define KERNEL(name, ...) \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU), __VA_ARGS__)

KERNEL("HorovodAllreduce", CollectiveOf<KADRIL_ALLREDUCE, false>);
KERNEL("HorovodGroupedAllreduce", CollectiveOf<KADRIL_ALLREDUCE, true>);
KERNEL("HorovodAllgather", CollectiveOf<KADRIL_ALLGATHER, false>);
KERNEL("HorovodGroupedAllgather", CollectiveOf<KADRIL_ALLGATHER, true>);
KERNEL("HorovodBroadcast", CollectiveOf<KADRIL_BROADCAST, false>);
KERNEL("HorovodGroupedBroadcast", CollectiveOf<KADRIL_BROADCAST, true>);
KERNEL("HorovodAlltoall", CollectiveOf<KADRIL_ALLTOALL, false>);
KERNEL("HorovodReducescatter", CollectiveOf<KADRIL_REDUCESCATTER, false>);
KERNEL("HorovodGroupedReducescatter", CollectiveOf<KADRIL_REDUCESCATTER, true>);
KERNEL("HorovodJoin", CollectiveOf<KADRIL_JOIN, false>);
KERNEL("HorovodBarrier", CollectiveOf<KADRIL_BARRIER, false>);
KERNEL("HorovodRank", FactOp<Fact::rank>);
KERNEL("HorovodSize", FactOp<Fact::size>);
KERNEL("HorovodLocalRank", FactOp<Fact::local_rank>);
KERNEL("HorovodLocalSize", FactOp<Fact::local_size>);
KERNEL("HorovodProcessSetIncluded", FactOp<Fact::included>);
