/* Start from communicators of MPI; run by mpirun on two ranks. The header that is included first
 * decides which MPI is meant. */
#include <mpi.h>
/* */
#include <kadril.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, kadril_last_error()); \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)

int main(int argc, char** argv) {
  int provided, rank;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);

  /* One communicator has the second rank alone, the other all ranks in halves. */
  MPI_Comm comms[2] = {MPI_COMM_WORLD, MPI_COMM_NULL}, halves;
  MPI_Comm_split(MPI_COMM_WORLD, rank == 1 ? 0 : MPI_UNDEFINED, 0, &comms[1]);
  MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &halves);
  const int first[1] = {0}, one[1] = {1};
  CHECK(horovod_init_multi_comm(comms, 2, first, one, 1));
  CHECK(kadril_rank() == rank && horovod_size() == 2 && horovod_number_of_process_sets() == 3);
  int members[2];
  CHECK(horovod_process_set_ranks(1, members) == 0 && members[0] == 1);
  CHECK(horovod_process_set_ranks(2, members) == 0 && members[0] == 0);
  CHECK(horovod_process_set_included(1) == rank && horovod_process_set_included(2) == 1 - rank);
  CHECK(horovod_mpi_built());

  /* Called again it changes nothing; and one entry cannot stand for two sets. */
  CHECK(horovod_init_multi_comm(comms, 2, first, one, 1));
  CHECK(horovod_number_of_process_sets() == 3);
  comms[1] = halves;
  CHECK(!horovod_init_multi_comm(comms, 2, NULL, NULL, 0));
  CHECK(kadril_last_status() == KADRIL_INVALID);
  CHECK(strstr(kadril_last_error(), "different communicators"));
  CHECK(!horovod_init_multi_comm(&halves, 1, NULL, NULL, 0));
  CHECK(strstr(kadril_last_error(), "not those of the launcher"));

  horovod_shutdown();
  printf("rank %d: all well\n", rank);
  MPI_Finalize();
  return 0;
}
