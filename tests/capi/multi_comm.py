"""Start from communicators of mpi4py through the C function; run by mpirun on two ranks."""

import ctypes
import sys

from mpi4py import MPI

from kadril.compat.horovod_path.horovod.common.basics import HorovodBasics

basics = HorovodBasics()
rank = MPI.COMM_WORLD.rank
second = MPI.COMM_WORLD.Split(0 if rank == 1 else MPI.UNDEFINED)
handle = ctypes.c_int if MPI._sizeof(MPI.Comm) == 4 else ctypes.c_void_p
comms = (handle * 2)(MPI.COMM_WORLD.handle, second.handle)
ranks, sizes = (ctypes.c_int * 1)(0), (ctypes.c_int * 1)(1)
assert basics.MPI_LIB_CTYPES.horovod_init_multi_comm(comms, 2, ranks, sizes, 1)
assert (basics.rank(), basics.size()) == (rank, 2)
assert basics._get_process_set_ids_and_ranks() == {0: [0, 1], 1: [1], 2: [0]}
assert basics._comm_process_set_id(MPI.COMM_WORLD) == 0
if rank == 1:
    assert basics._comm_process_set_id(second) == 1
basics.shutdown()
sys.stdout.write(f"rank {rank}: all well\n")
