"""Transports: move memory between the ranks of one group, in program order.

    base       the protocol that the layers above see
    buffer     what a tensor or an array is to a transport; element types
    checks     what one rank can find wrong with a call by itself
    call       what ranks compare before anything moves
    shm        one host: the native core; with hubs, failures

    meeting    ranks come together, compare their calls, wake each other in trouble
    moves      collectives over anything that carries bytes; the reduction is ours
    alone      a world of one
    c10d       carried by gloo; with rollcall, waiter, afterlife
    device     carried by nccl and the like, on the device
    mpi        carried by MPI; with notices

Import a transport from its own module: `mpi` needs mpi4py, and nobody else does.
"""
