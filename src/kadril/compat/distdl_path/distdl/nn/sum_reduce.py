"""Sum-reduce from a partition to a smaller one."""

from __future__ import annotations

from kadril import ops

from .movement import Movement

__all__ = ["SumReduce"]


class SumReduce(Movement):
    """Sums of the blocks of all workers that one stands for; adjoint of `Broadcast`.

        y_r = sum of x_s                                 over all workers s that r stands for

    See `Broadcast` for arguments and errors; here `P_x` is the larger partition.
    """

    _mover = ops.SumReducer
