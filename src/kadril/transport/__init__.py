"""Transports: move memory between the ranks of one group, in program order.

| file | what it holds |
|---|---|
| base.py | the protocol that the layers above see |
| agreement.py | what one rank finds wrong all raise; what all must have alike is compared |
| buffer.py, tensor.py | what an array is to a transport, and a tensor of torch; element types |
| operands.py | what collectives are given: ops, messages, and both after they were checked |
| checks.py | what one rank can find wrong with a call by itself |
| call.py | what ranks compare before anything moves |
| shm.py | one host: the native core |
| segment.py, hub_protocol.py | how ranks of one host come to share a segment; what that needs |
| shared_memory.py | the memory that they share |
| failures.py | failures of the native core as exceptions |
| network_group.py | the life of a group: ranks meet, compare their calls, wake each other |
| ending.py, peer_errors.py | the note that a rank leaves; errors about peers |
| network_transport.py | collectives over anything that carries bytes; the reduction is ours |
| slicing.py | how flat memory is cut into parts |
| recording.py, standpoint.py | flight record of a rank; what a waiting thread tells others |
| alone.py | a world of one |
| c10d.py | carried by gloo |
| store_notes.py, waiter.py, kept_groups.py | its notes to other ranks, its thread, its groups |
| device.py | carried by nccl and the like, on the device |
| tcp.py, tcp_link.py, dialer.py | carried by connections of our own; one of them; who makes them |
| tcp_info.py, send_window.py | what the kernel knows of a connection; how much it may hold |
| keepalive.py, forked_sockets.py | how the end of a connection is noticed, children or not |
| mpi.py, mpi_notices.py | carried by MPI; what groups on one communicator have in common |
| tiers/ | several hosts: one transport inside a host, another between hosts |

Import a transport from its own module: `mpi` needs mpi4py, `c10d` and `device` need torch, and
nobody else does. Inside transports memory is bytes, in arrays of numpy.
"""
