"""Primitives: linear operators that move blocks of distributed tensors, with exact adjoints."""

from __future__ import annotations

from kadril.ops.all_sum_reduce import all_sum_reduce
from kadril.ops.broadcast import Broadcaster, SumReducer, broadcast, sum_reduce
from kadril.ops.halo import HaloExchanger, halo_exchange
from kadril.ops.repartition import Repartitioner, repartition
from kadril.ops.replicated import spread, total
from kadril.ops.zero_volume import correct_zero_volume, zero_volume_tensor

__all__ = [
    "Broadcaster",
    "HaloExchanger",
    "Repartitioner",
    "SumReducer",
    "all_sum_reduce",
    "broadcast",
    "correct_zero_volume",
    "halo_exchange",
    "repartition",
    "spread",
    "sum_reduce",
    "total",
    "zero_volume_tensor",
]
