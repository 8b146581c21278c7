/* Starting from MPI communicators; included by kadril.h where <mpi.h> was included before it.
 *
 * What a communicator is in memory differs between MPI libraries, so these functions are compiled
 * with the program, against its own MPI; the library of kadril needs none. They use only
 * collectives on the communicators that they are given.
 */
#ifndef KADRIL_MPI_H
#define KADRIL_MPI_H

#include <stdlib.h>

#include "kadril.h"

/* World ranks of the members of `comm`, also on ranks where it is MPI_COMM_NULL; collective over
 * `world`. Their number, or -1 where ranks gave different communicators. */
static inline int kadril_mpi_members(MPI_Comm comm, MPI_Comm world, int* ranks) {
  int rank, size, leader = -1, common = -1, num_members = 0;
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &size);
  if (comm != MPI_COMM_NULL) {
    leader = rank;
    MPI_Bcast(&leader, 1, MPI_INT, 0, comm);
  }
  int* leaders = (int*)malloc(sizeof(int) * (size_t)size);
  if (!leaders) return kadril_fail(KADRIL_FAILED, "out of memory");
  MPI_Allgather(&leader, 1, MPI_INT, leaders, 1, MPI_INT, world);
  for (int i = 0; i < size; ++i) {
    if (leaders[i] < 0) continue;
    if (common < 0) common = leaders[i];
    if (leaders[i] != common) num_members = -1;
    if (num_members >= 0) ranks[num_members++] = i;
  }
  free(leaders);
  if (num_members < 0) {
    return kadril_fail(KADRIL_INVALID,
                       "ranks gave different communicators for one process set; give each set an"
                       " entry of its own, with MPI_COMM_NULL on ranks that are not in it");
  }
  return num_members;
}

/* Start kadril on the ranks of comm[0], which is MPI_COMM_WORLD or has its ranks in the same order.
 * Each other communicator becomes a process set, and is MPI_COMM_NULL on ranks that are not in it;
 * then follow the sets that are given by their ranks. Collective over comm[0], after MPI_Init(). */
static inline bool horovod_init_multi_comm(MPI_Comm* comm, int ncomms,
                                           const int* process_set_ranks_via_ranks,
                                           const int* process_set_sizes_via_ranks,
                                           int num_process_sets_via_ranks) {
  int rank, size;
  bool is_well = true;
  if (ncomms < 1) {
    kadril_fail(KADRIL_INVALID, "horovod_init_multi_comm() needs a communicator of the world");
    return false;
  }
  if (!horovod_init(NULL, 0, NULL, NULL, 0)) return false;
  MPI_Comm_rank(comm[0], &rank);
  MPI_Comm_size(comm[0], &size);
  if (rank != kadril_rank() || size != kadril_size()) {
    kadril_fail(KADRIL_INVALID,
                "the ranks of the communicator are not those of the launcher; give MPI_COMM_WORLD,"
                " and process sets for parts of it");
    return false;
  }
  int* members = (int*)malloc(sizeof(int) * (size_t)size);
  if (!members) {
    kadril_fail(KADRIL_FAILED, "out of memory");
    return false;
  }
  for (int i = 1; i < ncomms && is_well; ++i) {
    const int num_members = kadril_mpi_members(comm[i], comm[0], members);
    is_well = num_members >= 0 && horovod_init(NULL, 0, members, &num_members, 1);
  }
  free(members);
  return is_well && horovod_init(NULL, 0, process_set_ranks_via_ranks, process_set_sizes_via_ranks,
                                 num_process_sets_via_ranks);
}

#endif
