/* Every operation of the C interface once, checked exactly; run on two or three ranks. */
#include <kadril.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

typedef struct {
  int is_done;
  char error[512];
  double values[64];
  int64_t shape[4];
  int64_t splits[8];
  int last_joined;
} outcome;

static void on_done(void* context, const kadril_result* result) {
  outcome* out = context;
  pthread_mutex_lock(&mutex);
  if (result->error) snprintf(out->error, sizeof out->error, "%s", result->error);
  int64_t count = result->num_dims > 0 ? 1 : 0;
  for (int i = 0; i < result->num_dims; ++i) {
    out->shape[i] = result->shape[i];
    count *= result->shape[i];
  }
  if (result->data) memcpy(out->values, result->data, (size_t)count * sizeof(double));
  for (int i = 0; i < result->num_splits; ++i) out->splits[i] = result->splits[i];
  out->last_joined = result->last_joined;
  out->is_done = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

static void await(outcome* out) {
  pthread_mutex_lock(&mutex);
  while (!out->is_done) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
}

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, kadril_last_error()); \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)

int main(void) {
  CHECK(kadril_rank() == -1);
  CHECK(strstr(kadril_last_error(), "not initialized"));
  CHECK(horovod_init(NULL, 0, NULL, NULL, 0));
  CHECK(kadril_is_initialized());
  const int rank = kadril_rank(), size = horovod_size();
  CHECK(kadril_local_size() == size && kadril_cross_size() == 1);
  const double sum_of_ranks = size * (size + 1) / 2.0;

  double values[3] = {rank + 1, 10.0 * (rank + 1), 0};
  const int64_t three[1] = {3};
  outcome reduced = {0};
  CHECK(kadril_allreduce_async(values, values, KADRIL_FLOAT64, three, 1, "values",
                               horovod_reduce_op_sum(), 1.0, 1.0, 0, on_done, &reduced) == 0);
  await(&reduced);
  CHECK(!reduced.error[0] && values[0] == sum_of_ranks && values[1] == 10 * sum_of_ranks);

  double rows[8] = {rank, rank, rank, rank, rank, rank, rank, rank};
  const int64_t uneven[2] = {rank + 1, 2};
  outcome gathered = {0};
  CHECK(kadril_allgather_async(rows, KADRIL_FLOAT64, uneven, 2, "rows", 0, on_done, &gathered) ==
        0);
  await(&gathered);
  CHECK(gathered.shape[0] == (int64_t)sum_of_ranks && gathered.shape[1] == 2);
  CHECK(gathered.splits[size - 1] == size && gathered.values[2] == 1);

  double word = rank;
  outcome told = {0};
  CHECK(kadril_broadcast_async(&word, &word, KADRIL_FLOAT64, NULL, 0, 1, "word", 0, on_done,
                               &told) == 0);
  await(&told);
  CHECK(word == 1);

  double parts[8];
  const int64_t one_each[1] = {size};
  for (int i = 0; i < size; ++i) parts[i] = 10 * rank + i;
  outcome dealt = {0};
  CHECK(kadril_alltoall_async(parts, KADRIL_FLOAT64, one_each, 1, NULL, "parts", 0, on_done,
                              &dealt) == 0);
  await(&dealt);
  for (int i = 0; i < size; ++i) CHECK(dealt.values[i] == 10 * i + rank);

  outcome scattered = {0};
  CHECK(kadril_reducescatter_async(parts, KADRIL_FLOAT64, one_each, 1, "sums", KADRIL_SUM, 1.0, 1.0,
                                   0, on_done, &scattered) == 0);
  await(&scattered);
  CHECK(scattered.values[0] == 10 * (sum_of_ranks - size) + size * rank);

  /* A mismatch is an error of the operation, and the next one works. */
  const int64_t own_shape[1] = {rank + 1};
  outcome refused = {0};
  CHECK(kadril_allreduce_async(rows, rows, KADRIL_FLOAT64, own_shape, 1, "refused", KADRIL_SUM, 1.0,
                               1.0, 0, on_done, &refused) == 0);
  await(&refused);
  CHECK(strstr(refused.error, "shape differs"));

  /* All ranks but the first. */
  int later[8];
  for (int i = 1; i < size; ++i) later[i - 1] = i;
  const int set = kadril_add_process_set(later, size - 1);
  CHECK(set == 1 && horovod_number_of_process_sets() == 2);
  int members[8];
  CHECK(kadril_process_set_ranks(set, members) == 0 && members[0] == 1);
  CHECK(kadril_process_set_included(set) == (rank > 0));
  if (rank > 0) {
    CHECK(kadril_process_set_rank(set) == rank - 1);
    double value = 1;
    outcome in_set = {0};
    CHECK(kadril_allreduce_async(&value, &value, KADRIL_FLOAT64, NULL, 0, "in set", KADRIL_SUM, 1.0,
                                 1.0, set, on_done, &in_set) == 0);
    await(&in_set);
    CHECK(value == size - 1);
  } else {
    CHECK(kadril_barrier_async(set, on_done, NULL) == -1);
    CHECK(strstr(kadril_last_error(), "not in process set"));
  }
  CHECK(kadril_remove_process_set(set) == 0);

  outcome met = {0}, joined = {0};
  CHECK(kadril_barrier_async(0, on_done, &met) == 0);
  await(&met);
  CHECK(kadril_join_async(on_done, &joined) == 0);
  await(&joined);
  CHECK(!joined.error[0] && joined.last_joined >= 0 && joined.last_joined < size);
  horovod_shutdown();
  CHECK(!kadril_is_initialized());
  printf("rank %d of %d: all well\n", rank, size);
  return 0;
}
