// Horovod's operations for framework adapters, over kadril.
//
//     #include <horovod/common/operations.h>
//
//     using namespace horovod::common;
//     Status status = EnqueueTensorAllreduce(context, tensor, output, ReadyEventList(), "grad",
//                                            CPU_DEVICE_ID, [](const Status& done) { ... });
//
// Compile and link with what `python -m kadril.capi --cflags --libs` prints. A status that is not
// OK means that the operation was refused, and its callback will not be called; otherwise the
// callback is called once, from a thread of the library. Tensors and contexts stay alive until
// then. Where an event of the list has not happened yet, the operation is submitted when it has,
// and what would be refused is told to the callback.
#ifndef KADRIL_HOROVOD_OPERATIONS_H
#define KADRIL_HOROVOD_OPERATIONS_H

#include "common.h"
#include "enqueue.h"

namespace horovod {
namespace common {

using ::horovod_add_process_set;
using ::horovod_ccl_built;
using ::horovod_cross_rank;
using ::horovod_cross_size;
using ::horovod_cuda_built;
using ::horovod_ddl_built;
using ::horovod_gloo_built;
using ::horovod_gloo_enabled;
using ::horovod_init;
using ::horovod_is_homogeneous;
using ::horovod_is_initialized;
using ::horovod_local_rank;
using ::horovod_local_size;
using ::horovod_mpi_built;
using ::horovod_mpi_enabled;
using ::horovod_mpi_threads_supported;
using ::horovod_nccl_built;
using ::horovod_number_of_process_sets;
using ::horovod_process_set_ids;
using ::horovod_process_set_included;
using ::horovod_process_set_rank;
using ::horovod_process_set_ranks;
using ::horovod_process_set_size;
using ::horovod_rank;
using ::horovod_reduce_op_adasum;
using ::horovod_reduce_op_average;
using ::horovod_reduce_op_max;
using ::horovod_reduce_op_min;
using ::horovod_reduce_op_product;
using ::horovod_reduce_op_sum;
using ::horovod_remove_process_set;
using ::horovod_rocm_built;
using ::horovod_shutdown;
using ::horovod_size;
using ::horovod_start_timeline;
using ::horovod_stop_timeline;
#ifdef KADRIL_MPI_H
using ::horovod_init_multi_comm;
#endif

// An all-reduce of one tensor; in place where `output` has the memory of `tensor`.
inline Status EnqueueTensorAllreduce(std::shared_ptr<OpContext> context,
                                     std::shared_ptr<Tensor> tensor, std::shared_ptr<Tensor> output,
                                     ReadyEventList ready_event_list, std::string name, int device,
                                     StatusCallback callback, ReduceOp reduce_op = ReduceOp::SUM,
                                     double prescale_factor = 1.0, double postscale_factor = 1.0,
                                     int32_t process_set_id = 0) {
  using namespace detail;
  Status status = all_of({check_device(device, name), check_tensor(tensor, "tensor " + name),
                          check_tensor(output, "output " + name)});
  if (status.ok()) status = check_alike(*tensor, *output, name);
  if (!status.ok()) return status;
  auto pending = std::make_shared<Pending>(
      Pending{std::move(context), {tensor, output}, nullptr, {std::move(callback)}});
  return start(
      std::move(ready_event_list), std::move(pending), [=](kadril_callback done, void* argument) {
        const TensorShape shape = tensor->shape();
        return kadril_allreduce_async(
            tensor->data(), writable(*output), type_of(tensor->dtype()).code,
            shape.to_vector().data(), shape.dims(), name.c_str(), static_cast<kadril_op>(reduce_op),
            prescale_factor, postscale_factor, process_set_id, done, argument);
      });
}

// Several tensors all or nothing: either all callbacks are told OK, or all the same error. Each
// rank gives the same names in the same order. The callbacks are as many as the tensors.
inline Status EnqueueTensorAllreduces(
    std::vector<std::shared_ptr<OpContext>>& contexts,
    std::vector<std::shared_ptr<Tensor>>& tensors, std::vector<std::shared_ptr<Tensor>>& outputs,
    std::vector<ReadyEventList>& ready_event_lists, std::vector<std::string>& names, int device,
    std::vector<StatusCallback>& callbacks, ReduceOp reduce_op = ReduceOp::SUM,
    double prescale_factor = 1.0, double postscale_factor = 1.0, int32_t process_set_id = 0) {
  using namespace detail;
  const size_t count = tensors.size();
  if (outputs.size() != count || names.size() != count || callbacks.size() != count) {
    return Status::InvalidArgument("a group needs as many outputs, names and callbacks as tensors");
  }
  auto group = std::make_shared<Group>();
  Status status = group->fill(tensors, outputs, names);
  if (status.ok()) status = check_device(device, group->name);
  if (!status.ok()) return status;
  ReadyEventList events;
  for (const ReadyEventList& each : ready_event_lists) events.AddReadyEvents(each);
  group->contexts = contexts;
  auto pending = std::make_shared<Pending>(Pending{nullptr, tensors, nullptr, callbacks});
  pending->kept.insert(pending->kept.end(), outputs.begin(), outputs.end());
  return start(std::move(events), std::move(pending), [=](kadril_callback done, void* argument) {
    return kadril_grouped_allreduce_async(
        static_cast<int>(count), group->inputs.data(), group->outputs.data(), group->dtypes.data(),
        group->shapes.data(), group->num_dims.data(), group->name.c_str(),
        static_cast<kadril_op>(reduce_op), prescale_factor, postscale_factor, process_set_id, done,
        argument);
  });
}

// The rows of all ranks, one after the other, in an output that the context allocates.
inline Status EnqueueTensorAllgather(std::shared_ptr<OpContext> context,
                                     std::shared_ptr<Tensor> tensor,
                                     ReadyEventList ready_event_list, const std::string& name,
                                     int device, StatusCallback callback,
                                     int32_t process_set_id = 0) {
  using namespace detail;
  const Status status = all_of({check_device(device, name), check_context(context, name),
                                check_tensor(tensor, "tensor " + name)});
  if (!status.ok()) return status;
  const DataType dtype = tensor->dtype();
  auto take = [context, dtype](const kadril_result& result) {
    return take_output(*context, dtype, result);
  };
  auto pending = std::make_shared<Pending>(Pending{context, {tensor}, take, {std::move(callback)}});
  return start(
      std::move(ready_event_list), std::move(pending), [=](kadril_callback done, void* argument) {
        const TensorShape shape = tensor->shape();
        return kadril_allgather_async(tensor->data(), type_of(dtype).code, shape.to_vector().data(),
                                      shape.dims(), name.c_str(), process_set_id, done, argument);
      });
}

// The root's tensor on all ranks. `root_rank` is the rank in the world; the root needs no output.
inline Status EnqueueTensorBroadcast(std::shared_ptr<OpContext> context,
                                     std::shared_ptr<Tensor> tensor, std::shared_ptr<Tensor> output,
                                     int root_rank, ReadyEventList ready_event_list,
                                     const std::string& name, int device, StatusCallback callback,
                                     int32_t process_set_id = 0) {
  using namespace detail;
  if (!output && horovod_rank() == root_rank) output = tensor;
  Status status = all_of({check_device(device, name), check_tensor(tensor, "tensor " + name),
                          check_tensor(output, "output " + name)});
  if (status.ok()) status = check_alike(*tensor, *output, name);
  if (!status.ok()) return status;
  auto pending = std::make_shared<Pending>(
      Pending{std::move(context), {tensor, output}, nullptr, {std::move(callback)}});
  return start(std::move(ready_event_list), std::move(pending),
               [=](kadril_callback done, void* argument) {
                 const TensorShape shape = tensor->shape();
                 return kadril_broadcast_async(tensor->data(), writable(*output),
                                               type_of(tensor->dtype()).code,
                                               shape.to_vector().data(), shape.dims(), root_rank,
                                               name.c_str(), process_set_id, done, argument);
               });
}

// Rows for each rank of the set: `splits` has their numbers, or is missing or empty for as many to
// each. The context allocates the rows that came (output 0) and how many came from each (output 1).
inline Status EnqueueTensorAlltoall(std::shared_ptr<OpContext> context,
                                    std::shared_ptr<Tensor> tensor, std::shared_ptr<Tensor> splits,
                                    ReadyEventList ready_event_list, const std::string& name,
                                    int device, StatusCallback callback,
                                    int32_t process_set_id = 0) {
  using namespace detail;
  Status status = all_of({check_device(device, name), check_context(context, name),
                          check_tensor(tensor, "tensor " + name)});
  std::vector<int64_t> rows;
  if (status.ok() && splits) status = check_tensor(splits, "splits of " + name);
  if (status.ok() && splits) status = read_integers(*splits, "splits of " + name, &rows);
  if (!status.ok()) return status;
  const int size = horovod_process_set_size(process_set_id);
  if (size < 0) return last_status();
  if (!rows.empty() && rows.size() != static_cast<size_t>(size)) {
    return Status::InvalidArgument(name + ": " + std::to_string(rows.size()) +
                                   " splits for a process set of " + std::to_string(size));
  }
  const DataType dtype = tensor->dtype();
  auto take = [context, dtype](const kadril_result& result) {
    const Status taken = take_output(*context, dtype, result);
    return taken.ok() ? take_received_splits(*context, result) : taken;
  };
  auto pending = std::make_shared<Pending>(Pending{context, {tensor}, take, {std::move(callback)}});
  return start(
      std::move(ready_event_list), std::move(pending), [=](kadril_callback done, void* argument) {
        const TensorShape shape = tensor->shape();
        return kadril_alltoall_async(tensor->data(), type_of(dtype).code, shape.to_vector().data(),
                                     shape.dims(), rows.empty() ? nullptr : rows.data(),
                                     name.c_str(), process_set_id, done, argument);
      });
}

// This rank's rows of the sum or average, in an output that the context allocates: the first
// `rows % size` ranks get one more.
inline Status EnqueueTensorReducescatter(std::shared_ptr<OpContext> context,
                                         std::shared_ptr<Tensor> tensor,
                                         ReadyEventList ready_event_list, const std::string& name,
                                         int device, StatusCallback callback,
                                         ReduceOp reduce_op = ReduceOp::SUM,
                                         int32_t process_set_id = 0, double prescale_factor = 1.0,
                                         double postscale_factor = 1.0) {
  using namespace detail;
  const Status status = all_of({check_device(device, name), check_context(context, name),
                                check_tensor(tensor, "tensor " + name)});
  if (!status.ok()) return status;
  const DataType dtype = tensor->dtype();
  auto take = [context, dtype](const kadril_result& result) {
    return take_output(*context, dtype, result);
  };
  auto pending = std::make_shared<Pending>(Pending{context, {tensor}, take, {std::move(callback)}});
  return start(
      std::move(ready_event_list), std::move(pending), [=](kadril_callback done, void* argument) {
        const TensorShape shape = tensor->shape();
        return kadril_reducescatter_async(tensor->data(), type_of(dtype).code,
                                          shape.to_vector().data(), shape.dims(), name.c_str(),
                                          static_cast<kadril_op>(reduce_op), prescale_factor,
                                          postscale_factor, process_set_id, done, argument);
      });
}

// Say that this rank has no more data. When all ranks have, `output_last_joined_rank` (an integer
// of HOROVOD_INT32 or HOROVOD_INT64, or missing) is the rank that was the last. `name` is not used:
// a rank joins a process set once at a time.
inline Status EnqueueJoin(std::shared_ptr<OpContext> context,
                          std::shared_ptr<Tensor> output_last_joined_rank,
                          ReadyEventList ready_event_list, const std::string& name, int device,
                          StatusCallback callback, int32_t process_set_id = 0) {
  using namespace detail;
  Status status = check_device(device, name);
  if (status.ok() && output_last_joined_rank) {
    status = check_rank_output(output_last_joined_rank);
  }
  if (!status.ok()) return status;
  auto take = [output_last_joined_rank](const kadril_result& result) {
    if (output_last_joined_rank) write_rank(*output_last_joined_rank, result.last_joined);
    return Status::OK();
  };
  auto pending = std::make_shared<Pending>(
      Pending{std::move(context), {output_last_joined_rank}, take, {std::move(callback)}});
  return start(std::move(ready_event_list), std::move(pending),
               [=](kadril_callback done, void* argument) {
                 return kadril_join_set_async(process_set_id, done, argument);
               });
}

// The callback is called when every rank of the set has come.
inline Status EnqueueBarrier(StatusCallback callback, int32_t process_set_id = 0) {
  using namespace detail;
  auto pending = std::make_shared<Pending>(Pending{nullptr, {}, nullptr, {std::move(callback)}});
  return start(ReadyEventList(), std::move(pending), [=](kadril_callback done, void* argument) {
    return kadril_barrier_async(process_set_id, done, argument);
  });
}

}  // namespace common
}  // namespace horovod

#endif  // KADRIL_HOROVOD_OPERATIONS_H
