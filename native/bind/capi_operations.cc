// The operations of the C interface.
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
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
    case Reason::cancelled:
      return KADRIL_CANCELLED;
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
    UnnamedCount& count = state().unnamed[caller.set];
    count = {count.num_joins + 1, count.num_deadlocks, {}};
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

// Submits a request to a set; the caller has locked the state.
int submit_to(Set& set, int id, std::unique_ptr<Request> request, kadril_callback callback,
              void* context) {
  if (!set.conductor) return fail_not_a_member(id);
  if (!request->completion) request->completion = std::make_shared<Completion>();
  request->completion->callback = [caller = Caller{callback, context, id, set.ranks}](
                                      Completion& completion) { answer(completion, caller); };
  if (auto error = set.conductor->submit(std::move(request))) {
    return fail_with(status_of(error->reason), describe(*error, set.ranks));
  }
  return 0;
}

// The n-th un-named one of its kind in the set. With the state locked.
int submit_unnamed(Set& set, int id, std::unique_ptr<Request> request, kadril_callback callback,
                   void* context) {
  if (!set.conductor) return fail_not_a_member(id);
  UnnamedCount& count = state().unnamed[id];
  const uint64_t num_deadlocks = set.conductor->num_deadlocks();
  if (num_deadlocks != count.num_deadlocks) count = {count.num_joins, num_deadlocks, {}};
  uint64_t& number = count.numbers[static_cast<size_t>(request->descriptor.verb)];
  request->descriptor.name =
      "c." + std::to_string(count.num_joins + num_deadlocks) + "." + std::to_string(number);
  request->descriptor.is_named = false;
  const int status = submit_to(set, id, std::move(request), callback, context);
  // One that was refused must not count: the other ranks know nothing of it.
  if (status == 0) ++number;
  return status;
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

// The root by its rank in the world.
Draft with_root(Draft request, int root_rank, int set) {
  if (!request) return request;
  int root = -1;
  if (with_set(set, [&](const Set& found) { return root = member_of(found, root_rank), 0; }) != 0) {
    return nullptr;
  }
  if (root < 0) {
    return refuse("root rank " + std::to_string(root_rank) + " is not in process set " +
                  std::to_string(set));
  }
  request->descriptor.root = root;
  return request;
}

Draft with_tensors(Draft request, const kadril_request& asked) {
  const bool has_data = asked.verb != KADRIL_BARRIER && asked.verb != KADRIL_JOIN;
  if (has_data ? asked.num_tensors < 1 || !asked.tensors : asked.num_tensors != 0) {
    return refuse("an operation that does not take " + std::to_string(asked.num_tensors) +
                  " tensors");
  }
  if (asked.verb == KADRIL_ALLTOALL && asked.num_tensors > 1) {
    return refuse("an all-to-all takes one tensor at a time");
  }
  request->descriptor.is_group = asked.is_group;
  for (int i = 0; i < asked.num_tensors; ++i) {
    const kadril_tensor& each = asked.tensors[i];
    request = with_piece(std::move(request), each.input, each.output, each.dtype, each.shape,
                         each.num_dims);
  }
  return request;
}

// What is particular to the verb.
Draft with_arguments(Draft request, const kadril_request& asked) {
  if (!request) return request;
  const int size = kadril_process_set_size(asked.set);
  if (size < 0) return nullptr;
  switch (asked.verb) {
    case KADRIL_REDUCESCATTER:
      if (asked.op != KADRIL_SUM && asked.op != KADRIL_AVERAGE) {
        return refuse("a reduce-scatter knows KADRIL_SUM and KADRIL_AVERAGE");
      }
      [[fallthrough]];
    case KADRIL_ALLREDUCE:
      return with_reduction(std::move(request), asked.op, asked.prescale, asked.postscale);
    case KADRIL_BROADCAST:
      return with_root(std::move(request), asked.root_rank, asked.set);
    case KADRIL_ALLTOALL:
      return with_splits(std::move(request), asked.splits, size, asked.tensors[0].shape[0]);
    default:
      return request;
  }
}

// Results go where the caller wants them.
void use_allocator(Request& request, const kadril_request& asked) {
  if (!asked.allocate) return;
  request.completion->allocate = [allocate = asked.allocate, context = asked.context](
                                     size_t index, const Piece& piece) {
    const std::vector<int64_t> shape(piece.dims.begin(), piece.dims.end());
    void* memory =
        allocate(context, static_cast<int>(index), shape.data(), static_cast<int>(shape.size()));
    return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), [](std::byte*) {});
  };
}

// Requests that can be cancelled: by ticket, the set and the completion.
struct Tickets {
  std::mutex mutex;
  int64_t next = 1;
  std::map<int64_t, std::pair<int, std::weak_ptr<Completion>>> open;
};

Tickets& tickets() {
  static Tickets* const forever = new Tickets;
  return *forever;
}

// Who is called when an operation with a ticket is done.
struct TicketHolder {
  int64_t ticket;
  kadril_callback callback;
  void* context;
};

void on_ticket_done(void* context, const kadril_result* result) {
  const std::unique_ptr<TicketHolder> holder(static_cast<TicketHolder*>(context));
  {
    const std::lock_guard lock(tickets().mutex);
    tickets().open.erase(holder->ticket);
  }
  holder->callback(holder->context, result);
}

}  // namespace
}  // namespace kadril

using namespace kadril;

extern "C" {

KADRIL_EXPORT int64_t kadril_submit(const kadril_request* asked) {
  if (!asked || !asked->callback) {
    return fail_with(KADRIL_INVALID, "an operation needs a callback");
  }
  const auto verb = static_cast<int>(asked->verb);
  if (verb < 0 || verb >= num_verbs) {
    return fail_with(KADRIL_INVALID, "there is no verb " + std::to_string(verb));
  }
  const bool is_join = asked->verb == KADRIL_JOIN;
  const char* name = is_join ? "join" : asked->name;
  Draft request =
      with_arguments(with_tensors(draft(static_cast<Verb>(verb), name), *asked), *asked);
  if (!request || check_pieces(request->descriptor) != 0) return -1;
  request->completion = std::make_shared<Completion>();
  use_allocator(*request, *asked);
  const std::weak_ptr<Completion> completion = request->completion;
  auto holder = std::make_unique<TicketHolder>(TicketHolder{0, asked->callback, asked->context});
  {
    const std::lock_guard lock(tickets().mutex);
    holder->ticket = tickets().next++;
    tickets().open.emplace(holder->ticket, std::pair(asked->set, completion));
  }
  const int64_t ticket = holder->ticket;
  const int status = with_set(asked->set, [&](Set& set) {
    // Who has joined asks for nothing in particular: a join meets whatever the others' steps do.
    const uint64_t step = is_join ? 0 : asked->step;
    if (set.conductor) request->descriptor.stamp = set.conductor->stamp_of(step);
    const auto put = name ? submit_to : submit_unnamed;
    return put(set, asked->set, std::move(request), on_ticket_done, holder.get());
  });
  if (status == 0) {
    static_cast<void>(holder.release());  // the callback's now
    return ticket;
  }
  const std::lock_guard lock(tickets().mutex);
  tickets().open.erase(ticket);
  return -1;
}

KADRIL_EXPORT void kadril_cancel(int64_t ticket) {
  std::pair<int, std::weak_ptr<Completion>> found;
  {
    const std::lock_guard lock(tickets().mutex);
    const auto place = tickets().open.find(ticket);
    if (place == tickets().open.end()) return;  // it is done
    found = place->second;
  }
  const auto completion = found.second.lock();
  if (!completion) return;
  const std::lock_guard lock(state().mutex);
  const auto set = state().sets.find(found.first);
  if (set != state().sets.end() && set->second.conductor) set->second.conductor->cancel(completion);
}

KADRIL_EXPORT const kadril_functions* kadril_function_table(void) {
  static const kadril_functions table = {1,
                                         kadril_submit,
                                         kadril_cancel,
                                         kadril_last_error,
                                         kadril_last_status,
                                         kadril_rank,
                                         kadril_size,
                                         kadril_local_rank,
                                         kadril_local_size,
                                         kadril_process_set_size,
                                         kadril_process_set_rank,
                                         horovod_process_set_included};
  return &table;
}

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
  Draft request = with_piece(draft(Verb::broadcast, name), input, output, dtype, shape, num_dims);
  return submit(with_root(std::move(request), root_rank, set), set, callback, context);
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
    return submit_unnamed(found, set, draft(Verb::barrier, ""), callback, context);
  });
}

KADRIL_EXPORT int kadril_join_set_async(int set, kadril_callback callback, void* context) {
  return submit(draft(Verb::join, "join"), set, callback, context);
}

KADRIL_EXPORT int kadril_join_async(kadril_callback callback, void* context) {
  return kadril_join_set_async(0, callback, context);
}

}  // extern "C"
