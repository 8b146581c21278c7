/* Whole requests: groups, memory of the caller's, kinds of failure, cancelling; on two ranks. */
#include <kadril.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

typedef struct {
  int is_done;
  kadril_status status;
  int64_t splits[8];
  double memory[2][16]; /* what `allocate` gives, by the tensor's index */
  int64_t rows[2];
} outcome;

static void on_done(void* context, const kadril_result* result) {
  outcome* out = context;
  pthread_mutex_lock(&mutex);
  out->status = result->status;
  for (int i = 0; i < result->num_splits; ++i) out->splits[i] = result->splits[i];
  out->is_done = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

static void* allocate(void* context, int index, const int64_t* shape, int num_dims) {
  outcome* out = context;
  if (index > 1 || num_dims != 1 || shape[0] > 16) return NULL;
  out->rows[index] = shape[0];
  return out->memory[index];
}

static kadril_status await(outcome* out) {
  pthread_mutex_lock(&mutex);
  while (!out->is_done) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
  return out->status;
}

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, kadril_last_error()); \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)

static kadril_request request_of(kadril_verb verb, const char* name, const kadril_tensor* tensors,
                                 int num_tensors, outcome* out) {
  const kadril_request request = {.verb = verb,
                                  .name = name,
                                  .tensors = tensors,
                                  .num_tensors = num_tensors,
                                  .op = KADRIL_SUM,
                                  .prescale = 1.0,
                                  .postscale = 1.0,
                                  .callback = on_done,
                                  .context = out};
  return request;
}

/* The sum of 1 over all ranks, or what became of it. */
static kadril_status sum_of_ones(const char* name, double* value) {
  outcome out = {0};
  *value = 1;
  const kadril_tensor one = {value, value, NULL, 0, KADRIL_FLOAT64};
  const kadril_request request = request_of(KADRIL_ALLREDUCE, name, &one, 1, &out);
  CHECK(kadril_submit(&request) >= 0);
  return await(&out);
}

static void meet(void) {
  outcome out = {0};
  CHECK(kadril_barrier_async(0, on_done, &out) == 0);
  CHECK(await(&out) == KADRIL_OK);
}

static void check_groups(int rank, int size) {
  double a[2] = {rank, 1}, b[3] = {2, 3, rank};
  const int64_t two[1] = {2}, three[1] = {3};
  const kadril_tensor both[2] = {{a, a, two, 1, KADRIL_FLOAT64}, {b, b, three, 1, KADRIL_FLOAT64}};
  outcome out = {0};
  kadril_request request = request_of(KADRIL_ALLREDUCE, "both", both, 2, &out);
  request.is_group = true;
  request.postscale = 0.5;
  CHECK(kadril_submit(&request) >= 0);
  CHECK(await(&out) == KADRIL_OK);
  CHECK(a[0] == 0.5 * (size - 1) && a[1] == 0.5 * size && b[0] == size && b[1] == 1.5 * size);

  /* One tensor of the group differs: the other one is not reduced either, on any rank. */
  double c[3] = {1, 1, 1}, d[3] = {1, 1, 1};
  const int64_t own[1] = {rank == 0 ? 3 : 2};
  const kadril_tensor uneven[2] = {{c, c, three, 1, KADRIL_FLOAT64},
                                   {d, d, own, 1, KADRIL_FLOAT64}};
  outcome refused = {0};
  request = request_of(KADRIL_ALLREDUCE, "uneven", uneven, 2, &refused);
  request.is_group = true;
  CHECK(kadril_submit(&request) >= 0);
  CHECK(await(&refused) == KADRIL_MISMATCH);
  CHECK(c[0] == 1 && d[0] == 1);
}

/* A gather of a group, into memory of the caller's. */
static void check_allocator(int rank, int size) {
  double mine[4] = {rank, rank, rank, rank};
  const int64_t rows[1] = {rank + 1}, one[1] = {1};
  const kadril_tensor both[2] = {{mine, NULL, rows, 1, KADRIL_FLOAT64},
                                 {mine, NULL, one, 1, KADRIL_FLOAT64}};
  outcome out = {0};
  kadril_request request = request_of(KADRIL_ALLGATHER, "gathered", both, 2, &out);
  request.is_group = true;
  request.allocate = allocate;
  CHECK(kadril_submit(&request) >= 0);
  CHECK(await(&out) == KADRIL_OK);
  CHECK(out.rows[0] == size * (size + 1) / 2 && out.rows[1] == size);
  CHECK(out.memory[0][0] == 0 && out.memory[0][1] == 1 && out.memory[1][size - 1] == size - 1);
}

static void check_cancelling(int rank) {
  double value = 1;
  /* Of rank 0 only, withdrawn: it ends, and its name may be used again. */
  if (rank == 0) {
    outcome out = {0};
    const kadril_tensor one = {&value, &value, NULL, 0, KADRIL_FLOAT64};
    const kadril_request request = request_of(KADRIL_ALLREDUCE, "withdrawn", &one, 1, &out);
    const int64_t ticket = kadril_submit(&request);
    CHECK(ticket >= 0);
    kadril_cancel(ticket);
    CHECK(await(&out) == KADRIL_CANCELLED);
    kadril_cancel(ticket); /* of one that has ended: nothing happens */
  }
  meet();
  CHECK(sum_of_ones("withdrawn", &value) == KADRIL_OK);
  CHECK(value == kadril_size());
}

static kadril_status sum_in_step(const char* name, uint64_t step, double* value,
                                 bool is_cancelled) {
  outcome out = {0};
  *value = 1;
  const kadril_tensor one = {value, value, NULL, 0, KADRIL_FLOAT64};
  kadril_request request = request_of(KADRIL_ALLREDUCE, name, &one, 1, &out);
  request.step = step;
  const int64_t ticket = kadril_submit(&request);
  CHECK(ticket >= 0);
  if (is_cancelled) kadril_cancel(ticket);
  return await(&out);
}

/* Rank 0 gives a step up, and rank 1 comes to it late: it is not served with the next step. */
static void check_steps(int rank) {
  double value;
  CHECK(sum_in_step("begin", 5, &value, false) == KADRIL_OK);
  if (rank == 0) CHECK(sum_in_step("late", 5, &value, true) == KADRIL_CANCELLED);
  meet();
  if (rank == 1) CHECK(sum_in_step("late", 5, &value, false) == KADRIL_MISMATCH);
  CHECK(sum_in_step("late", 6, &value, false) == KADRIL_OK && value == kadril_size());
}

static void check_refusals(int rank) {
  double value = 1;
  const kadril_tensor one = {&value, &value, NULL, 0, KADRIL_FLOAT64};
  kadril_request request = request_of(KADRIL_ALLREDUCE, "refused", &one, 1, NULL);
  request.set = 7;
  CHECK(kadril_submit(&request) == -1 && kadril_last_status() == KADRIL_NO_SUCH_SET);
  request.set = 0;
  request.verb = KADRIL_BROADCAST;
  request.root_rank = 9;
  CHECK(kadril_submit(&request) == -1 && kadril_last_status() == KADRIL_INVALID);
  const int first[1] = {0};
  const int set = kadril_add_process_set(first, 1);
  CHECK(set > 0);
  CHECK(kadril_add_process_set(first, 1) == -1 && kadril_last_status() == KADRIL_SET_EXISTS);
  if (rank > 0) {
    request.verb = KADRIL_ALLREDUCE;
    request.set = set;
    CHECK(kadril_submit(&request) == -1 && kadril_last_status() == KADRIL_NOT_A_MEMBER);
  }
  CHECK(kadril_remove_process_set(set) == 0);
  CHECK(kadril_fail(KADRIL_INVALID, "as a wrapper says it") == -1);
  CHECK(kadril_last_status() == KADRIL_INVALID);
  CHECK(strcmp(kadril_last_error(), "as a wrapper says it") == 0);
}

int main(void) {
  const kadril_functions* table = kadril_function_table();
  CHECK(table->version == 1 && table->rank() == -1);
  CHECK(table->last_status() == KADRIL_NOT_INITIALIZED);
  CHECK(kadril_init() == 0);
  const int rank = table->rank(), size = table->size();
  CHECK(rank == kadril_rank() && size == kadril_size() && table->process_set_size(0) == size);
  double value;
  check_groups(rank, size);
  CHECK(sum_of_ones("after a mismatch", &value) == KADRIL_OK && value == size);
  check_allocator(rank, size);
  check_cancelling(rank);
  check_steps(rank);
  check_refusals(rank);
  CHECK(sum_of_ones(NULL, &value) == KADRIL_OK && value == size);
  meet();
  CHECK(kadril_shutdown() == 0);
  CHECK(table->submit(&(kadril_request){.verb = KADRIL_BARRIER, .callback = on_done}) == -1);
  CHECK(table->last_status() == KADRIL_NOT_INITIALIZED);
  printf("rank %d of %d: all well\n", rank, size);
  return 0;
}
