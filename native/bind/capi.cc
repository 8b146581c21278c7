// The C interface. Finding the other ranks, and everything else that happens once, is Python's
// (kadril.capi); an operation goes straight to the conductor of its set, without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "engine.h"
#include "engine/adasum.h"
#include "engine/conductor.h"
#include "include/kadril.h"

namespace nb = nanobind;

#define KADRIL_EXPORT __attribute__((visibility("default")))

namespace kadril {
namespace {

struct Set {
  std::vector<int> ranks;
  Conductor* conductor = nullptr;  // null where this rank is not a member
};

// What the last question to Python gave.
struct State {
  std::mutex mutex;
  bool is_initialized = false;
  std::vector<int> facts;  // rank, size, local rank, local size, cross rank, cross size
  std::map<int, Set> sets;
  std::map<int, uint64_t> num_barriers;  // by set; they have no names
};

State& state() {
  static State* const forever = new State;  // threads may ask after the end of main()
  return *forever;
}

thread_local std::string last_error;

int fail_with(std::string why) {
  last_error = std::move(why);
  return -1;
}

// The text of the exception that is set.
std::string take_exception() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyObject* text = value ? PyObject_Str(value) : nullptr;
  const char* words = text ? PyUnicode_AsUTF8(text) : nullptr;
  std::string result = words ? words : "an exception without words";
  Py_XDECREF(text);
  Py_XDECREF(trace);
  Py_XDECREF(value);
  Py_XDECREF(type);
  PyErr_Clear();
  return result;
}

// Import this very library as a Python module. Until then nanobind must not be touched.
bool load_module() {
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyObject* module = PyImport_ImportModule("kadril._native");
  if (!module) {
    last_error = take_exception() +
                 "; start the program with `kadril run`, or set KADRIL_PYTHON to the Python that"
                 " kadril is installed for";
  }
  Py_XDECREF(module);
  PyGILState_Release(gil);
  return module != nullptr;
}

void start_python() {
  if (Py_IsInitialized()) return;
  PyConfig config;
  PyConfig_InitPythonConfig(&config);
  config.install_signal_handlers = 0;
  config.parse_argv = 0;
  // The launcher's own Python, so that its environment is found.
  if (const char* python = std::getenv("KADRIL_PYTHON")) {
    PyConfig_SetBytesString(&config, &config.program_name, python);
  }
  const PyStatus status = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  if (PyStatus_Exception(status)) {
    last_error = status.err_msg ? status.err_msg : "Python could not be started";
    return;
  }
  PyEval_SaveThread();
}

// Call a function of kadril.capi, and read the sets anew afterwards.
template <typename Function>
int ask_python(Function function) {
  start_python();
  if (!Py_IsInitialized() || !load_module()) return -1;
  nb::gil_scoped_acquire gil;
  try {
    nb::object module = nb::module_::import_("kadril.capi");
    const int result = function(module);
    nb::tuple now = nb::cast<nb::tuple>(module.attr("describe")());
    const std::lock_guard lock(state().mutex);
    state().is_initialized = nb::cast<bool>(now[0]);
    state().facts = nb::cast<std::vector<int>>(now[1]);
    state().sets.clear();
    for (nb::handle row : nb::cast<nb::list>(now[2])) {
      nb::tuple parts = nb::cast<nb::tuple>(row);
      Set set{nb::cast<std::vector<int>>(parts[1]), nullptr};
      if (!nb::handle(parts[2]).is_none()) set.conductor = &conductor_of(parts[2]);
      state().sets.emplace(nb::cast<int>(parts[0]), std::move(set));
    }
    return result;
  } catch (const std::exception& error) {
    return fail_with(error.what());
  }
}

int fact(size_t index) {
  const std::lock_guard lock(state().mutex);
  if (!state().is_initialized) return fail_with("kadril is not initialized; call kadril_init()");
  return state().facts[index];
}

// Call `use(set)` where there is such a set.
template <typename Function>
int with_set(int id, Function use) {
  const std::lock_guard lock(state().mutex);
  if (!state().is_initialized) return fail_with("kadril is not initialized; call kadril_init()");
  const auto found = state().sets.find(id);
  if (found == state().sets.end()) {
    return fail_with("there is no process set " + std::to_string(id));
  }
  return use(found->second);
}

int member_of(const Set& set, int rank) {
  const auto place = std::find(set.ranks.begin(), set.ranks.end(), rank);
  return place == set.ranks.end() ? -1 : static_cast<int>(place - set.ranks.begin());
}

Piece make_piece(kadril_dtype dtype, const int64_t* shape, int num_dims) {
  Piece piece;
  piece.dtype = static_cast<DType>(dtype);
  for (int i = 0; i < num_dims; ++i) piece.dims.push_back(static_cast<uint64_t>(shape[i]));
  return piece;
}

std::string describe(const Failure& failure) {
  std::string text = failure.detail;
  for (size_t member = 0; member < failure.calls.size(); ++member) {
    text += "\n  member " + std::to_string(member) + ": " + failure.calls[member];
  }
  return text.empty() ? "failed" : text;
}

void answer(Ticket& ticket, kadril_callback callback, void* context) {
  kadril_result result = {};
  std::string error;
  std::vector<int64_t> shape;
  if (ticket.failure()) {
    error = describe(*ticket.failure());
    result.error = error.c_str();
  }
  if (!ticket.outputs.empty()) {
    const Output& output = ticket.outputs.front();
    shape.assign(output.piece.dims.begin(), output.piece.dims.end());
    result.data = output.memory.get();
    result.shape = shape.data();
    result.num_dims = static_cast<int>(shape.size());
  }
  const std::vector<int64_t> splits(ticket.received_splits.begin(), ticket.received_splits.end());
  result.splits = splits.data();
  result.num_splits = static_cast<int>(splits.size());
  result.last_joined = ticket.last_joined;
  callback(context, &result);
}

bool is_supported(const Descriptor& descriptor) {
  if (descriptor.verb != Verb::allreduce && descriptor.verb != Verb::reducescatter) return true;
  const DType dtype = descriptor.pieces.front().dtype;
  return descriptor.reduction == Reduction::adasum ? supports_adasum(dtype)
                                                   : supports(dtype, op_of(descriptor.reduction));
}

int submit(std::unique_ptr<Request> request, int id, kadril_callback callback, void* context) {
  if (!callback) return fail_with("an operation needs a callback");
  if (!is_supported(request->descriptor)) {
    return fail_with(request->descriptor.text() + ": the op makes no sense for this dtype");
  }
  request->ticket = std::make_shared<Ticket>();
  request->ticket->callback = [=](Ticket& ticket) { answer(ticket, callback, context); };
  return with_set(id, [&](Set& set) {
    if (!set.conductor) {
      return fail_with("this rank is not in process set " + std::to_string(id));
    }
    if (auto error = set.conductor->submit(std::move(request))) return fail_with(describe(*error));
    return 0;
  });
}

std::unique_ptr<Request> make_request(Verb verb, const char* name) {
  auto request = std::make_unique<Request>();
  request->descriptor.verb = verb;
  request->descriptor.name = name ? name : "";
  return request;
}

void add_piece(Request& request, const void* input, void* output, kadril_dtype dtype,
               const int64_t* shape, int num_dims) {
  request.descriptor.pieces.push_back(make_piece(dtype, shape, num_dims));
  request.memory.push_back({input, output});
}

int check_rows(const char* operation, int num_dims) {
  return num_dims > 0 ? 0 : fail_with(std::string(operation) + " needs at least one dim");
}

}  // namespace
}  // namespace kadril

using namespace kadril;

extern "C" {

KADRIL_EXPORT int kadril_init(void) {
  return ask_python([](nb::object module) {
    module.attr("init")();
    return 0;
  });
}

KADRIL_EXPORT int kadril_shutdown(void) {
  if (!kadril_is_initialized()) return 0;
  return ask_python([](nb::object module) {
    module.attr("shutdown")();
    return 0;
  });
}

KADRIL_EXPORT bool kadril_is_initialized(void) {
  const std::lock_guard lock(state().mutex);
  return state().is_initialized;
}

KADRIL_EXPORT const char* kadril_last_error(void) { return last_error.c_str(); }

KADRIL_EXPORT int kadril_rank(void) { return fact(0); }
KADRIL_EXPORT int kadril_size(void) { return fact(1); }
KADRIL_EXPORT int kadril_local_rank(void) { return fact(2); }
KADRIL_EXPORT int kadril_local_size(void) { return fact(3); }
KADRIL_EXPORT int kadril_cross_rank(void) { return fact(4); }
KADRIL_EXPORT int kadril_cross_size(void) { return fact(5); }

KADRIL_EXPORT int kadril_add_process_set(const int* ranks, int num_ranks) {
  const std::vector<int> listed(ranks, ranks + num_ranks);
  return ask_python(
      [&](nb::object module) { return nb::cast<int>(module.attr("add_process_set")(listed)); });
}

KADRIL_EXPORT int kadril_remove_process_set(int set) {
  return ask_python([&](nb::object module) {
    module.attr("remove_process_set")(set);
    return 0;
  });
}

KADRIL_EXPORT int kadril_process_set_rank(int set) {
  const int rank = fact(0);
  return with_set(set, [&](const Set& found) {
    const int member = member_of(found, rank);
    return member >= 0 ? member
                       : fail_with("this rank is not in process set " + std::to_string(set));
  });
}

KADRIL_EXPORT int kadril_process_set_size(int set) {
  return with_set(set, [](const Set& found) { return static_cast<int>(found.ranks.size()); });
}

KADRIL_EXPORT int kadril_process_set_included(int set) {
  const int rank = fact(0);
  return with_set(set, [&](const Set& found) { return member_of(found, rank) >= 0 ? 1 : 0; });
}

KADRIL_EXPORT int kadril_num_process_sets(void) {
  const std::lock_guard lock(state().mutex);
  return static_cast<int>(state().sets.size());
}

KADRIL_EXPORT int kadril_process_set_ids(int* ids) {
  const std::lock_guard lock(state().mutex);
  for (const auto& [id, set] : state().sets) *ids++ = id;
  return 0;
}

KADRIL_EXPORT int kadril_process_set_ranks(int set, int* ranks) {
  return with_set(set, [&](const Set& found) {
    std::copy(found.ranks.begin(), found.ranks.end(), ranks);
    return 0;
  });
}

KADRIL_EXPORT int kadril_allreduce_async(const void* input, void* output, kadril_dtype dtype,
                                         const int64_t* shape, int num_dims, const char* name,
                                         kadril_op op, double prescale, double postscale, int set,
                                         kadril_callback callback, void* context) {
  auto request = make_request(Verb::allreduce, name);
  request->descriptor.reduction = static_cast<Reduction>(op);
  request->descriptor.scale = {prescale, postscale};
  add_piece(*request, input, output, dtype, shape, num_dims);
  return submit(std::move(request), set, callback, context);
}

KADRIL_EXPORT int kadril_allgather_async(const void* input, kadril_dtype dtype,
                                         const int64_t* shape, int num_dims, const char* name,
                                         int set, kadril_callback callback, void* context) {
  if (check_rows("an all-gather", num_dims) != 0) return -1;
  auto request = make_request(Verb::allgather, name);
  add_piece(*request, input, nullptr, dtype, shape, num_dims);
  return submit(std::move(request), set, callback, context);
}

KADRIL_EXPORT int kadril_broadcast_async(const void* input, void* output, kadril_dtype dtype,
                                         const int64_t* shape, int num_dims, int root_rank,
                                         const char* name, int set, kadril_callback callback,
                                         void* context) {
  auto request = make_request(Verb::broadcast, name);
  const int root = with_set(set, [&](const Set& found) { return member_of(found, root_rank); });
  if (root < 0) {
    return fail_with("root rank " + std::to_string(root_rank) + " is not in process set " +
                     std::to_string(set));
  }
  request->descriptor.root = root;
  add_piece(*request, input, output, dtype, shape, num_dims);
  return submit(std::move(request), set, callback, context);
}

KADRIL_EXPORT int kadril_alltoall_async(const void* input, kadril_dtype dtype, const int64_t* shape,
                                        int num_dims, const int64_t* splits, const char* name,
                                        int set, kadril_callback callback, void* context) {
  if (check_rows("an all-to-all", num_dims) != 0) return -1;
  auto request = make_request(Verb::alltoall, name);
  const int size = kadril_process_set_size(set);
  if (size < 0) return -1;
  int64_t total = 0;
  for (int member = 0; member < size; ++member) {
    const int64_t rows = splits ? splits[member] : shape[0] / size;
    if (rows < 0) return fail_with("splits must not be negative");
    request->descriptor.splits.push_back(static_cast<uint64_t>(rows));
    total += rows;
  }
  if (total != shape[0]) {
    return fail_with("splits add up to " + std::to_string(total) + " rows, and there are " +
                     std::to_string(shape[0]));
  }
  add_piece(*request, input, nullptr, dtype, shape, num_dims);
  return submit(std::move(request), set, callback, context);
}

KADRIL_EXPORT int kadril_reducescatter_async(const void* input, kadril_dtype dtype,
                                             const int64_t* shape, int num_dims, const char* name,
                                             kadril_op op, double prescale, double postscale,
                                             int set, kadril_callback callback, void* context) {
  if (check_rows("a reduce-scatter", num_dims) != 0) return -1;
  if (op != KADRIL_SUM && op != KADRIL_AVERAGE) {
    return fail_with("a reduce-scatter knows KADRIL_SUM and KADRIL_AVERAGE");
  }
  auto request = make_request(Verb::reducescatter, name);
  request->descriptor.reduction = static_cast<Reduction>(op);
  request->descriptor.scale = {prescale, postscale};
  add_piece(*request, input, nullptr, dtype, shape, num_dims);
  return submit(std::move(request), set, callback, context);
}

KADRIL_EXPORT int kadril_barrier_async(int set, kadril_callback callback, void* context) {
  uint64_t number;
  {
    const std::lock_guard lock(state().mutex);
    number = state().num_barriers[set];
  }
  auto request = make_request(Verb::barrier, ("c." + std::to_string(number)).c_str());
  request->descriptor.is_named = false;
  const int status = submit(std::move(request), set, callback, context);
  if (status == 0) {  // one that was refused must not count: the other ranks know nothing of it
    const std::lock_guard lock(state().mutex);
    state().num_barriers[set] = number + 1;
  }
  return status;
}

KADRIL_EXPORT int kadril_join_async(kadril_callback callback, void* context) {
  return submit(make_request(Verb::join, "join"), 0, callback, context);
}

KADRIL_EXPORT bool horovod_init(const int*, int, const int* process_set_ranks,
                                const int* process_set_sizes, int num_process_sets) {
  if (kadril_init() != 0) return false;
  for (int set = 0; set < num_process_sets; ++set) {
    if (kadril_add_process_set(process_set_ranks, process_set_sizes[set]) < 0) return false;
    process_set_ranks += process_set_sizes[set];
  }
  return true;
}

KADRIL_EXPORT void horovod_shutdown(void) { kadril_shutdown(); }
KADRIL_EXPORT bool horovod_is_initialized(void) { return kadril_is_initialized(); }
KADRIL_EXPORT int horovod_rank(void) { return kadril_rank(); }
KADRIL_EXPORT int horovod_local_rank(void) { return kadril_local_rank(); }
KADRIL_EXPORT int horovod_cross_rank(void) { return kadril_cross_rank(); }
KADRIL_EXPORT int horovod_size(void) { return kadril_size(); }
KADRIL_EXPORT int horovod_local_size(void) { return kadril_local_size(); }
KADRIL_EXPORT int horovod_cross_size(void) { return kadril_cross_size(); }
KADRIL_EXPORT int horovod_reduce_op_average(void) { return KADRIL_AVERAGE; }
KADRIL_EXPORT int horovod_reduce_op_sum(void) { return KADRIL_SUM; }
KADRIL_EXPORT int horovod_reduce_op_adasum(void) { return KADRIL_ADASUM; }
KADRIL_EXPORT int horovod_reduce_op_min(void) { return KADRIL_MIN; }
KADRIL_EXPORT int horovod_reduce_op_max(void) { return KADRIL_MAX; }
KADRIL_EXPORT int horovod_reduce_op_product(void) { return KADRIL_PRODUCT; }
KADRIL_EXPORT int horovod_add_process_set(const int* ranks, int num_ranks) {
  return kadril_add_process_set(ranks, num_ranks);
}
KADRIL_EXPORT int horovod_remove_process_set(int set) { return kadril_remove_process_set(set); }
KADRIL_EXPORT int horovod_process_set_rank(int set) { return kadril_process_set_rank(set); }
KADRIL_EXPORT int horovod_process_set_size(int set) { return kadril_process_set_size(set); }
KADRIL_EXPORT int horovod_process_set_included(int set) { return kadril_process_set_included(set); }
KADRIL_EXPORT int horovod_number_of_process_sets(void) { return kadril_num_process_sets(); }
KADRIL_EXPORT void horovod_process_set_ids(int* ids) { kadril_process_set_ids(ids); }
KADRIL_EXPORT int horovod_process_set_ranks(int set, int* ranks) {
  return kadril_process_set_ranks(set, ranks);
}

}  // extern "C"
