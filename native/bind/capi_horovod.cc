// The names that Horovod's library has for the functions of the C interface.
#include <cstdint>
#include <string>
#include <vector>

#include "capi_python.h"
#include "capi_state.h"

using namespace kadril;

namespace {

// What callers of Horovod's process set functions compare with.
int horovod_code(int result) {
  if (result >= 0) return result;
  switch (kadril_last_status()) {
    case KADRIL_NOT_INITIALIZED:
      return -1;
    case KADRIL_NO_SUCH_SET:
      return -3;
    case KADRIL_NOT_A_MEMBER:
      return -4;
    case KADRIL_CLOSED:
      return -5;
    case KADRIL_SET_EXISTS:
      return -6;
    default:
      return -7;
  }
}

int ask_feature(const char* name) {
  return ask_python("feature", {Argument::of(std::string(name))});
}

bool has_feature(const char* name) { return ask_feature(name) > 0; }

// The ranks of the sets in one list, and how many each has: what Python cuts into sets.
std::vector<Argument> listed_sets(const int* ranks, const int* sizes, int num_sets) {
  const std::vector<int> counts(sizes, sizes + (num_sets > 0 ? num_sets : 0));
  int total = 0;
  for (const int count : counts) total += count;
  return {Argument::of(std::vector<int>(ranks, ranks + total)), Argument::of(counts)};
}

}  // namespace

extern "C" {

KADRIL_EXPORT bool horovod_init(const int* ranks, int num_ranks, const int* process_set_ranks,
                                const int* process_set_sizes, int num_process_sets) {
  auto arguments = listed_sets(process_set_ranks, process_set_sizes, num_process_sets);
  arguments.insert(arguments.begin(),
                   Argument::of(std::vector<int>(ranks, ranks + (num_ranks > 0 ? num_ranks : 0))));
  return ask_python("init", arguments) == 0;
}

// For callers without a compiler (ctypes): through mpi4py, which knows what a communicator is in
// memory. C and C++ have their own in kadril_mpi.h, which needs no mpi4py.
KADRIL_EXPORT bool horovod_init_multi_comm(const void* communicators, int num_communicators,
                                           const int* process_set_ranks,
                                           const int* process_set_sizes, int num_process_sets) {
  auto arguments = listed_sets(process_set_ranks, process_set_sizes, num_process_sets);
  arguments.insert(arguments.begin(),
                   {Argument::of(static_cast<long long>(reinterpret_cast<intptr_t>(communicators))),
                    Argument::of(static_cast<long long>(num_communicators))});
  return ask_python("init_multi_comm", arguments) == 0;
}

KADRIL_EXPORT void horovod_shutdown(void) { kadril_shutdown(); }
KADRIL_EXPORT bool horovod_is_initialized(void) { return kadril_is_initialized(); }
KADRIL_EXPORT int horovod_rank(void) { return kadril_rank(); }
KADRIL_EXPORT int horovod_local_rank(void) { return kadril_local_rank(); }
KADRIL_EXPORT int horovod_cross_rank(void) { return kadril_cross_rank(); }
KADRIL_EXPORT int horovod_size(void) { return kadril_size(); }
KADRIL_EXPORT int horovod_local_size(void) { return kadril_local_size(); }
KADRIL_EXPORT int horovod_cross_size(void) { return kadril_cross_size(); }
KADRIL_EXPORT int horovod_is_homogeneous(void) { return kadril_is_homogeneous(); }
KADRIL_EXPORT int horovod_start_timeline(const char* path, bool mark_cycles) {
  return kadril_start_timeline(path, mark_cycles);
}
KADRIL_EXPORT int horovod_stop_timeline(void) { return kadril_stop_timeline(); }

KADRIL_EXPORT int horovod_mpi_threads_supported(void) {
  return ask_feature("mpi_threads_supported");
}
KADRIL_EXPORT bool horovod_mpi_enabled(void) { return has_feature("mpi_enabled"); }
KADRIL_EXPORT bool horovod_mpi_built(void) { return has_feature("mpi_built"); }
KADRIL_EXPORT bool horovod_gloo_enabled(void) { return has_feature("gloo_enabled"); }
KADRIL_EXPORT bool horovod_gloo_built(void) { return has_feature("gloo_built"); }
KADRIL_EXPORT int horovod_nccl_built(void) {
  const int version = ask_feature("nccl_built");
  return version > 0 ? version : 0;
}
KADRIL_EXPORT bool horovod_ddl_built(void) { return has_feature("ddl_built"); }
KADRIL_EXPORT bool horovod_ccl_built(void) { return has_feature("ccl_built"); }
KADRIL_EXPORT bool horovod_cuda_built(void) { return has_feature("cuda_built"); }
KADRIL_EXPORT bool horovod_rocm_built(void) { return has_feature("rocm_built"); }

KADRIL_EXPORT int horovod_reduce_op_average(void) { return KADRIL_AVERAGE; }
KADRIL_EXPORT int horovod_reduce_op_sum(void) { return KADRIL_SUM; }
KADRIL_EXPORT int horovod_reduce_op_adasum(void) { return KADRIL_ADASUM; }
KADRIL_EXPORT int horovod_reduce_op_min(void) { return KADRIL_MIN; }
KADRIL_EXPORT int horovod_reduce_op_max(void) { return KADRIL_MAX; }
KADRIL_EXPORT int horovod_reduce_op_product(void) { return KADRIL_PRODUCT; }

KADRIL_EXPORT int horovod_add_process_set(const int* ranks, int num_ranks) {
  return horovod_code(kadril_add_process_set(ranks, num_ranks));
}
KADRIL_EXPORT int horovod_remove_process_set(int set) {
  const int result = kadril_remove_process_set(set);
  return result < 0 ? horovod_code(result) : set;
}
KADRIL_EXPORT int horovod_process_set_rank(int set) {
  return horovod_code(kadril_process_set_rank(set));
}
KADRIL_EXPORT int horovod_process_set_size(int set) {
  return horovod_code(kadril_process_set_size(set));
}
KADRIL_EXPORT int horovod_process_set_included(int set) {
  return horovod_code(kadril_process_set_included(set));
}
KADRIL_EXPORT int horovod_number_of_process_sets(void) {
  return horovod_code(kadril_num_process_sets());
}
KADRIL_EXPORT void horovod_process_set_ids(int* ids) { kadril_process_set_ids(ids); }
KADRIL_EXPORT int horovod_process_set_ranks(int set, int* ranks) {
  return horovod_code(kadril_process_set_ranks(set, ranks));
}

}  // extern "C"
