"""Transports: move memory between the ranks of one group, in program order.

    base                the protocol that the layers above see
    agreement           what one rank finds wrong all raise; what all must have alike is compared
    buffer              what a tensor or an array is to a transport; element types
    checks              what one rank can find wrong with a call by itself
    call                what ranks compare before anything moves

    shm                 one host: the native core; with segment, shared_memory, hub, failures

    network_group       the life of a group: ranks meet, compare their calls, wake each other when
                        one fails; with ending, peer_errors
    network_transport   collectives over anything that carries bytes; the reduction is ours
    alone               a world of one
    c10d                carried by gloo; with store_notes, waiter, kept_groups
    device              carried by nccl and the like, on the device
    mpi                 carried by MPI; with mpi_notices

Import a transport from its own module: `mpi` needs mpi4py, and nobody else does.
"""
