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
  int last_joined; /* join: the rank that joined last */
} kadril_result;

/* Called once, from a thread of the library, which must not be kept waiting. */
typedef void (*kadril_callback)(void* context, const kadril_result* result);

int kadril_init(void);
int kadril_shutdown(void);
bool kadril_is_initialized(void);
const char* kadril_last_error(void);

int kadril_rank(void);
int kadril_size(void);
int kadril_local_rank(void);
int kadril_local_size(void);
int kadril_cross_rank(void);
int kadril_cross_size(void);

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
int kadril_join_async(kadril_callback callback, void* context);

/* The names that Horovod's library has for the same. */
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

#endif
