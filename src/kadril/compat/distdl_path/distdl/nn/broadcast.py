"""Broadcast from a partition to a larger one."""

from __future__ import annotations

from kadril import ops

from .movement import Movement

__all__ = ["Broadcast"]


class Broadcast(Movement):
    """Copies of each block for all workers that its owner stands for; adjoint of `SumReduce`.

        y_s = x_r                                        for all workers s that r stands for

    Args:
        P_x: the smaller partition.
        P_y: the larger one; from the right, each axis has the size of that of `P_x`, or that is 1.
        transpose_src: whether the axes of `P_x` are taken in reverse order.
        transpose_dest: the same, for `P_y`.
        preserve_batch: whether a worker that gets nothing returns a tensor of shape (b, 0) or (0,).

    Raises:
        ValueError: the shapes do not match.
    """

    _mover = ops.Broadcaster
