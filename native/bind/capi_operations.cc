// The operations of the C interface.
#include <memory>
#include <string>
#include <vector>

#include "capi_state.h"
#include "engine.h"

namespace kadril {
namespace {

kadril_status status_of(Reason reason) {
  switch (reason) {
    case Reason::mismatch:
      return KADRIL_MISMATCH;
    case Reason::peer_lost:
    case Reason::peer_left:
    case Reason::revoked:
      return KADRIL_PEER_LOST;
    case Reason::stalled:
      return KADRIL_STALLED;
    case Reason::closed:
      return KADRIL_CLOSED;
    case Reason::unsupported:
    case Reason::invalid:
      return KADRIL_INVALID;
    case Reason::interrupted:
    case Reason::forked:
    case Reason::no_room:
    case Reason::foreign:
      break;
  }
  return KADRIL_FAILED;
}

const char* words_for(Reason reason) {
  switch (reason) {
    case Reason::peer_lost:
      return "a rank is dead";
    case Reason::peer_left:
      return "a rank has left";
    case Reason::stalled:
      return "a rank is too late";
    case Reason::revoked:
      return "a rank gave up";
    case Reason::forked:
      return "called in a child made by fork()";
    case Reason::closed:
      return "kadril was shut down";
    default:
      return "failed";
  }
}

std::string describe(const Failure& failure, const std::vector<int>& ranks) {
  std::string text = failure.detail;
  for (size_t member = 0; member < failure.calls.size(); ++member) {
    text += "\n  rank " + std::to_string(ranks[member]) + ": " + failure.calls[member];
  }
  if (failure.calls.empty() && (text.empty() || failure.member >= 0)) {
    if (!text.empty()) text += ": ";
    text += words_for(failure.reason);
    if (failure.member >= 0) {
      text += " (rank " + std::to_string(ranks[static_cast<size_t>(failure.member)]) + ")";
    }
  }
  return text;
}

// Whoever asked, and in which set: what a completion that is done needs to be answered.
struct Caller {
  kadril_callback callback;
  void* context;
  int set;
  std::vector<int> ranks;  // of the set
};

void answer(const Completion& completion, const Caller& caller) {
  kadril_result result = {};
  std::string error;
  std::vector<int64_t> shape;
  if (const Failure* failure = completion.failure()) {
    error = describe(*failure, caller.ranks);
    result.error = error.c_str();
    result.status = status_of(failure->reason);
  }
  if (!completion.outputs.empty()) {
    const Output& output = completion.outputs.front();
    shape.assign(output.piece.dims.begin(), output.piece.dims.end());
    result.data = output.memory.get();
    result.shape = shape.data();
    result.num_dims = static_cast<int>(shape.size());
  }
  const std::vector<int64_t> splits(completion.received_splits.begin(),
                                    completion.received_splits.end());
  result.splits = splits.data();
  result.num_splits = static_cast<int>(splits.size());
  const int last = completion.last_joined;
  result.last_joined = last < 0 ? last : caller.ranks[static_cast<size_t>(last)];
  if (last >= 0) {
    const std::lock_guard lock(state().mutex);
    BarrierCount& count = state().barriers[caller.set];
    count = {count.num_joins + 1, 0};
  }
  caller.callback(caller.context, &result);
}

int check_pieces(const Descriptor& descriptor) {
  for (const Piece& piece : descriptor.pieces) {
    if (!is_supported(descriptor, piece)) {
      return fail_with(KADRIL_INVALID,
                       descriptor.text() + ": the op makes no sense for this dtype");
    }
  }
  return 0;
}

// With the state locked.
int submit_to(Set& set, int id, std::unique_ptr<Request> request, kadril_callback callback,
              void* context) {
  if (!set.conductor) return fail_not_a_member(id);
  request->completion = std::make_shared<Completion>();
  request->completion->callback = [caller = Caller{callback, context, id, set.ranks}](
                                      Completion& completion) { answer(completion, caller); };
  if (auto error = set.conductor->submit(std::move(request))) {
    return fail_with(status_of(error->reason), describe(*error, set.ranks));
  }
  return 0;
}

// A request being put together; null, with the reason told, where an argument makes no sense.
using Draft = std::unique_ptr<Request>;

Draft refuse(std::string why) {
  fail_with(KADRIL_INVALID, std::move(why));
  return nullptr;
}

int submit(Draft request, int id, kadril_callback callback, void* context) {
  if (!request || check_pieces(request->descriptor) != 0) return -1;
  if (!callback) return fail_with(KADRIL_INVALID, "an operation needs a callback");
  return with_set(
      id, [&](Set& set) { return submit_to(set, id, std::move(request), callback, context); });
}

Draft draft(Verb verb, const char* name) {
  auto request = std::make_unique<Request>();
  request->descriptor.verb = verb;
  request->descriptor.name = name ? name : "";
  return request;
}

Draft with_reduction(Draft request, kadril_op op, double prescale, double postscale) {
  if (!request) return request;
  if (op < KADRIL_AVERAGE || op > KADRIL_PRODUCT) {
    return refuse("there is no op " + std::to_string(static_cast<int>(op)));
  }
  request->descriptor.reduction = static_cast<Reduction>(op);
  request->descriptor.scale = {prescale, postscale};
  return request;
}

Draft with_piece(Draft request, const void* input, void* output, kadril_dtype dtype,
                 const int64_t* shape, int num_dims) {
  if (!request) return request;
  if (static_cast<int>(dtype) < 0 || static_cast<int>(dtype) >= num_dtypes) {
    return refuse("there is no dtype " + std::to_string(static_cast<int>(dtype)));
  }
  if (num_dims < 0 || (num_dims > 0 && !shape)) {
    return refuse("a shape of " + std::to_string(num_dims) + " dims");
  }
  Piece piece;
  piece.dtype = static_cast<DType>(dtype);
  for (int i = 0; i < num_dims; ++i) {
    if (shape[i] < 0) return refuse("dim " + std::to_string(i) + " of the shape is negative");
    piece.dims.push_back(static_cast<uint64_t>(shape[i]));
  }
  const Verb verb = request->descriptor.verb;
  if (num_dims == 0 && verb != Verb::allreduce && verb != Verb::broadcast) {
    return refuse(std::string(name_of(verb)) + " works on rows, and needs at least one dim");
  }
  request->descriptor.pieces.push_back(std::move(piece));
  request->memory.push_back({input, output});
  return request;
}

// Rows for each member: as given, or the same for all.
Draft with_splits(Draft request, const int64_t* splits, int size, int64_t num_rows) {
  if (!request) return request;
  if (!splits && num_rows % size != 0) {
    return refuse(std::to_string(num_rows) + " rows cannot be dealt evenly to " +
                  std::to_string(size) + " ranks; give splits");
  }
  int64_t total = 0;
  for (int member = 0; member < size; ++member) {
    const int64_t rows = splits ? splits[member] : num_rows / size;
    if (rows < 0) return refuse("splits must not be negative");
    request->descriptor.splits.push_back(static_cast<uint64_t>(rows));
    total += rows;
  }
  if (total != num_rows) {
    return refuse("splits add up to " + std::to_string(total) + " rows, and there are " +
                  std::to_string(num_rows));
  }
  return request;
}

}  // namespace
}  // namespace kadril

using namespace kadril;

extern "C" {

KADRIL_EXPORT int kadril_allreduce_async(const void* input, void* output, kadril_dtype dtype,
                                         const int64_t* shape, int num_dims, const char* name,
                                         kadril_op op, double prescale, double postscale, int set,
                                         kadril_callback callback, void* context) {
  Draft request = with_piece(draft(Verb::allreduce, name), input, output, dtype, shape, num_dims);
  return submit(with_reduction(std::move(request), op, prescale, postscale), set, callback,
                context);
}

KADRIL_EXPORT int kadril_grouped_allreduce_async(int num_tensors, const void* const* inputs,
                                                 void* const* outputs, const kadril_dtype* dtypes,
                                                 const int64_t* const* shapes, const int* num_dims,
                                                 const char* name, kadril_op op, double prescale,
                                                 double postscale, int set,
                                                 kadril_callback callback, void* context) {
  if (num_tensors < 1) return fail_with(KADRIL_INVALID, "a group needs at least one tensor");
  Draft request = draft(Verb::allreduce, name);
  request->descriptor.is_group = true;
  for (int i = 0; i < num_tensors; ++i) {
    request =
        with_piece(std::move(request), inputs[i], outputs[i], dtypes[i], shapes[i], num_dims[i]);
  }
  return submit(with_reduction(std::move(request), op, prescale, postscale), set, callback,
                context);
}

KADRIL_EXPORT int kadril_allgather_async(const void* input, kadril_dtype dtype,
                                         const int64_t* shape, int num_dims, const char* name,
                                         int set, kadril_callback callback, void* context) {
  return submit(with_piece(draft(Verb::allgather, name), input, nullptr, dtype, shape, num_dims),
                set, callback, context);
}

KADRIL_EXPORT int kadril_broadcast_async(const void* input, void* output, kadril_dtype dtype,
                                         const int64_t* shape, int num_dims, int root_rank,
                                         const char* name, int set, kadril_callback callback,
                                         void* context) {
  int root = -1;
  if (with_set(set, [&](const Set& found) { return root = member_of(found, root_rank), 0; }) != 0) {
    return -1;
  }
  if (root < 0) {
    return fail_with(KADRIL_INVALID, "root rank " + std::to_string(root_rank) +
                                         " is not in process set " + std::to_string(set));
  }
  Draft request = with_piece(draft(Verb::broadcast, name), input, output, dtype, shape, num_dims);
  if (request) request->descriptor.root = root;
  return submit(std::move(request), set, callback, context);
}

KADRIL_EXPORT int kadril_alltoall_async(const void* input, kadril_dtype dtype, const int64_t* shape,
                                        int num_dims, const int64_t* splits, const char* name,
                                        int set, kadril_callback callback, void* context) {
  const int size = kadril_process_set_size(set);
  if (size < 0) return -1;
  Draft request = with_piece(draft(Verb::alltoall, name), input, nullptr, dtype, shape, num_dims);
  if (!request) return -1;
  return submit(with_splits(std::move(request), splits, size, shape[0]), set, callback, context);
}

KADRIL_EXPORT int kadril_reducescatter_async(const void* input, kadril_dtype dtype,
                                             const int64_t* shape, int num_dims, const char* name,
                                             kadril_op op, double prescale, double postscale,
                                             int set, kadril_callback callback, void* context) {
  if (op != KADRIL_SUM && op != KADRIL_AVERAGE) {
    return fail_with(KADRIL_INVALID, "a reduce-scatter knows KADRIL_SUM and KADRIL_AVERAGE");
  }
  Draft request =
      with_piece(draft(Verb::reducescatter, name), input, nullptr, dtype, shape, num_dims);
  return submit(with_reduction(std::move(request), op, prescale, postscale), set, callback,
                context);
}

KADRIL_EXPORT int kadril_barrier_async(int set, kadril_callback callback, void* context) {
  if (!callback) return fail_with(KADRIL_INVALID, "an operation needs a callback");
  return with_set(set, [&](Set& found) {
    BarrierCount& count = state().barriers[set];
    const std::string name =
        "c." + std::to_string(count.num_joins) + "." + std::to_string(count.num_barriers);
    Draft request = draft(Verb::barrier, name.c_str());
    request->descriptor.is_named = false;
    const int status = submit_to(found, set, std::move(request), callback, context);
    // One that was refused must not count: the other ranks know nothing of it.
    if (status == 0) ++count.num_barriers;
    return status;
  });
}

KADRIL_EXPORT int kadril_join_set_async(int set, kadril_callback callback, void* context) {
  return submit(draft(Verb::join, "join"), set, callback, context);
}

KADRIL_EXPORT int kadril_join_async(kadril_callback callback, void* context) {
  return kadril_join_set_async(0, callback, context);
}

}  // extern "C"
