"""Transports: move memory between the ranks of one group, in program order.

    base     the protocol that the layers above see
    buffer   what a tensor or an array is to a transport; element types
    checks   what one rank can find wrong with a call by itself
    call     what ranks compare before anything moves
    alone    a world of one
    shm      one host: the native core
    moves    collectives over anything that can carry bytes; carried by
        c10d     torch.distributed: many hosts, every accelerator
        mpi      MPI

Import a transport from its own module: `mpi` needs mpi4py, and none is needed to read this package.
"""
