/* The C interface of kadril: named collectives for programs that are not written in Python.
 *
 *     #include <kadril.h>
 *
 *     static void done(void* context, const kadril_result* result) { ... }
 *
 *     if (kadril_init() != 0) fail(kadril_last_error());
 *     kadril_allreduce_async(values, values, KADRIL_FLOAT32, shape, 1, "values",
 * KADRIL_SUM, 1.0, 1.0, 0, done, &state);
 *
 * Started by `kadril run -np 2 ./program`, torchrun, mpirun or srun. Compile and link with what
 * `python -m kadril.capi --cflags --libs` prints: the library runs Python inside the program for
 * finding the other ranks, and where the transport is not shared memory.
 *
 * Every function may be called from any thread. Those that return int return 0, or a rank, size or
 * number, for success and -1 for failure; kadril_last_error() of the same thread then says why.
 */
#ifndef KADRIL_H
#define KADRIL_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of failure, for programs that act on them; the text is for people. Later versions may add
 * more at the end. */
typedef enum {
  KADRIL_OK,
  KADRIL_FAILED,          /* for a reason of none of the kinds below */
  KADRIL_NOT_INITIALIZED, /* before kadril_init(), or after kadril_shutdown() */
  KADRIL_INVALID,         /* an argument cannot be served, or a name is in use: refused at once */
  KADRIL_NO_SUCH_SET,     /* likewise: there is no process set of that number */
  KADRIL_NOT_A_MEMBER,    /* likewise: this rank is not in the process set */
  KADRIL_SET_EXISTS,      /* likewise: there is a process set of these ranks */
  KADRIL_MISMATCH,        /* ranks asked for different things; the next operation works */
  KADRIL_PEER_LOST,       /* a rank is dead, has left or gave up: the process set cannot go on */
  KADRIL_STALLED,         /* a rank is too late: likewise */
  KADRIL_CLOSED,          /* the world was closed while the operation was under way */
  KADRIL_CANCELLED        /* kadril_cancel() came before all ranks had asked for it */
} kadril_status;

typedef enum {
  KADRIL_BOOL,
  KADRIL_UINT8,
  KADRIL_INT8,
  KADRIL_UINT16,
  KADRIL_INT16,
  KADRIL_UINT32,
  KADRIL_INT32,
  KADRIL_UINT64,
  KADRIL_INT64,
  KADRIL_FLOAT16,
  KADRIL_BFLOAT16,
  KADRIL_FLOAT32,
  KADRIL_FLOAT64,
  KADRIL_COMPLEX64,
  KADRIL_COMPLEX128
} kadril_dtype;

typedef enum {
  KADRIL_AVERAGE,
  KADRIL_SUM,
  KADRIL_ADASUM,
  KADRIL_MIN,
  KADRIL_MAX,
  KADRIL_PRODUCT
} kadril_op;

/* What became of an operation; valid during the callback only. */
typedef struct {
  const char* error;    /* NULL for success */
  const void* data;     /* all-gather, all-to-all, reduce-scatter: the result */
  const int64_t* shape; /* of the result */
  int num_dims;
  const int64_t* splits; /* all-gather, all-to-all: rows that came from each rank */
  int num_splits;
  int last_joined;      /* join: the rank that joined last */
  kadril_status status; /* KADRIL_OK where error is NULL */
} kadril_result;

/* Called once, from a thread of the library, which must not be kept waiting. */
typedef void (*kadril_callback)(void* context, const kadril_result* result);

/* One tensor of a request. */
typedef struct {
  const void* input;
  void* output; /* all-reduce, broadcast: the result, of the same shape; may be the input */
  const int64_t* shape;
  int num_dims;
  kadril_dtype dtype;
} kadril_tensor;

/* Makes the memory of a result whose shape only the other ranks knew: the caller's, who gives it
 * back. NULL where there is none, which ends the process set: the others are on their way. Called
 * from a thread of the library. */
typedef void* (*kadril_allocator)(void* context, int index, const int64_t* shape, int num_dims);

typedef enum {
  KADRIL_ALLREDUCE,
  KADRIL_ALLGATHER,
  KADRIL_BROADCAST,
  KADRIL_ALLTOALL,
  KADRIL_REDUCESCATTER,
  KADRIL_BARRIER,
  KADRIL_JOIN
} kadril_verb;

/* An operation, whole; what it does not need may be zero. */
typedef struct {
  kadril_verb verb;
  const char* name; /* NULL: the n-th of its kind in the set, which meets the n-th of the others */
  const kadril_tensor* tensors; /* all-to-all: one; barrier, join: none */
  int num_tensors;
  bool is_group; /* served all or nothing, under a name apart from those of single tensors */
  kadril_op op;
  double prescale; /* all-reduce, reduce-scatter: 1 for none */
  double postscale;
  int root_rank;         /* broadcast: in the world, also within a set */
  const int64_t* splits; /* all-to-all: rows for each rank; NULL for the same for all */
  int set;
  /* For what is asked for in steps that end with the first failure: a number that all requests of
   * one step have in common on this rank, and no other step has; 0 for none. When one of them is a
   * mismatch or is cancelled, requests of that step on other ranks, also those that are yet to come,
   * are mismatches, and not taken for those of the next step. */
  uint64_t step;
  kadril_callback callback;
  kadril_allocator allocate; /* NULL: results are in kadril_result, until the callback returns */
  void* context;             /* of both */
} kadril_request;

int kadril_init(void);
int kadril_shutdown(void);
bool kadril_is_initialized(void);
/* Why the last call of this thread that returned -1 (or false) did so. */
const char* kadril_last_error(void);
kadril_status kadril_last_status(void);
/* For code that wraps this interface: say why, and return -1. */
int kadril_fail(kadril_status status, const char* why);

int kadril_rank(void);
int kadril_size(void);
int kadril_local_rank(void);
int kadril_local_size(void);
int kadril_cross_rank(void);
int kadril_cross_size(void);
int kadril_is_homogeneous(void); /* 1 where all hosts have the same number of ranks, else 0 */

/* Write what is done when, on all ranks, to one file; all ranks call these alike. */
int kadril_start_timeline(const char* path, bool mark_cycles);
int kadril_stop_timeline(void);

/* Process sets: all ranks call these alike. Set 0 has all ranks. */
int kadril_add_process_set(const int* ranks, int num_ranks); /* the number of the set */
int kadril_remove_process_set(int set);
int kadril_process_set_rank(int set);
int kadril_process_set_size(int set);
int kadril_process_set_included(int set);
int kadril_num_process_sets(void);
int kadril_process_set_ids(int* ids);
int kadril_process_set_ranks(int set, int* ranks);

/* Operations: 0 where it was taken, and the callback follows; -1 where it was not. Memory stays the
 * caller's, and in place, until then. */
int kadril_allreduce_async(const void* input, void* output, kadril_dtype dtype,
                           const int64_t* shape, int num_dims, const char* name, kadril_op op,
                           double prescale, double postscale, int set, kadril_callback callback,
                           void* context);
/* Several tensors under one name, all or nothing; one callback for all of them. */
int kadril_grouped_allreduce_async(int num_tensors, const void* const* inputs, void* const* outputs,
                                   const kadril_dtype* dtypes, const int64_t* const* shapes,
                                   const int* num_dims, const char* name, kadril_op op,
                                   double prescale, double postscale, int set,
                                   kadril_callback callback, void* context);
int kadril_allgather_async(const void* input, kadril_dtype dtype, const int64_t* shape,
                           int num_dims, const char* name, int set, kadril_callback callback,
                           void* context);
int kadril_broadcast_async(const void* input, void* output, kadril_dtype dtype,
                           const int64_t* shape, int num_dims, int root_rank, const char* name,
                           int set, kadril_callback callback, void* context);
int kadril_alltoall_async(const void* input, kadril_dtype dtype, const int64_t* shape, int num_dims,
                          const int64_t* splits, const char* name, int set,
                          kadril_callback callback, void* context);
int kadril_reducescatter_async(const void* input, kadril_dtype dtype, const int64_t* shape,
                               int num_dims, const char* name, kadril_op op, double prescale,
                               double postscale, int set, kadril_callback callback, void* context);
int kadril_barrier_async(int set, kadril_callback callback, void* context);
int kadril_join_async(kadril_callback callback, void* context); /* of all ranks */
int kadril_join_set_async(int set, kadril_callback callback, void* context);

/* The same, of any kind. A ticket for kadril_cancel() where it was taken; -1 where it was not. */
int64_t kadril_submit(const kadril_request* request);
/* Withdraw an operation. Its callback comes as always: with KADRIL_CANCELLED, unless all ranks have
 * asked for it by the time they hear of this. Until then its memory is in use; its name may be used
 * again at once. */
void kadril_cancel(int64_t ticket);

/* What an extension needs that is loaded beside this library rather than linked to it. */
typedef struct {
  int version; /* 1; members are only ever added at the end */
  int64_t (*submit)(const kadril_request* request);
  void (*cancel)(int64_t ticket);
  const char* (*last_error)(void);
  kadril_status (*last_status)(void);
  int (*rank)(void);
  int (*size)(void);
  int (*local_rank)(void);
  int (*local_size)(void);
  int (*process_set_size)(int set);
  int (*process_set_rank)(int set);
  int (*process_set_included)(int set); /* Horovod's code where it fails */
} kadril_functions;
const kadril_functions* kadril_function_table(void);

/* The names that Horovod's library has for the same. What returns the number of a process set, or a
 * rank or size in one, returns one of Horovod's codes where it fails:
 *     -1 not initialized   -3 no such set   -4 not a member   -5 shut down   -6 the set exists
 *     -7 any other reason (which Horovod has no code for)
 *
 * horovod_init(): `ranks` are those of the world, or none; a part of them is refused. Process sets
 * that exist, or are given twice, are passed over, as Horovod does: ask for their numbers. */
bool horovod_init(const int* ranks, int num_ranks, const int* process_set_ranks,
                  const int* process_set_sizes, int num_process_sets);
void horovod_shutdown(void);
bool horovod_is_initialized(void);
int horovod_rank(void);
int horovod_local_rank(void);
int horovod_cross_rank(void);
int horovod_size(void);
int horovod_local_size(void);
int horovod_cross_size(void);
int horovod_is_homogeneous(void);
int horovod_start_timeline(const char* path, bool mark_cycles);
int horovod_stop_timeline(void);
/* What Python's kadril.torch says of the same names. */
int horovod_mpi_threads_supported(void);
bool horovod_mpi_enabled(void);
bool horovod_mpi_built(void);
bool horovod_gloo_enabled(void);
bool horovod_gloo_built(void);
int horovod_nccl_built(void); /* its version as a number, or 0 */
bool horovod_ddl_built(void);
bool horovod_ccl_built(void);
bool horovod_cuda_built(void);
bool horovod_rocm_built(void);
int horovod_reduce_op_average(void);
int horovod_reduce_op_sum(void);
int horovod_reduce_op_adasum(void);
int horovod_reduce_op_min(void);
int horovod_reduce_op_max(void);
int horovod_reduce_op_product(void);
int horovod_add_process_set(const int* ranks, int num_ranks);
int horovod_remove_process_set(int set);
int horovod_process_set_rank(int set);
int horovod_process_set_size(int set);
int horovod_process_set_included(int set);
int horovod_number_of_process_sets(void);
void horovod_process_set_ids(int* ids);
int horovod_process_set_ranks(int set, int* ranks);

#ifdef __cplusplus
}
#endif

#ifdef MPI_VERSION /* <mpi.h> was included before */
#include "kadril_mpi.h"
#endif

#endif
