"""Primitives: linear operators that move blocks of distributed tensors, with exact adjoints.

primitive            adjoint              what it does
broadcast            sum_reduce           from partition to partition, along axes of size 1
all_sum_reduce       itself               the sum over axes, on each worker
all_gather           reduce_scatter       blocks in line put together, on each worker
scatter              gather               a tensor on one worker, blocks on all
all_to_all           its way back         blocks along one dim become blocks along another
repartition          its way back         any layout into any other
halo_exchange        adds halos back      a block with its surroundings
all_max_reduce       to the owner         the extreme over axes (not linear: its derivative is)
spread               total                of a tensor that all workers hold alike

| file, folder | has |
|---|---|
| `broadcast.py` | broadcast and sum-reduce between partitions |
| `all_sum_reduce.py`, `extremes.py` | the sum over axes; the maximum and minimum |
| `all_gather.py`, `reduce_scatter.py`, `all_to_all.py` | blocks of workers in line |
| `scatter.py`, `gather.py` | between a tensor on one worker and blocks on all |
| `repartition.py`, `halo.py` | between layouts; blocks with their surroundings |
| `replicated.py` | `spread` and `total`, of tensors that all workers hold alike |
| `zero_volume.py` | the tensors of ranks that hold nothing |
| `box_gather.py` | the box of a tensor that each worker needs |
| `box_plan.py`, `edges.py` | its plan; what is beyond the ends of a dim |
| `structure.py` | what each worker holds of a tensor; plans that follow from it |
| `moves/` | moves of boxes between workers: plans, and what runs them |
| `linear_operator.py` | linear operators, as autograd knows them |
| `composed.py`, `calling.py` | gradients of gradients; every rank in the graph |
"""

from __future__ import annotations

import kadril.needs_torch  # noqa: F401 - says what to install
from kadril.ops.all_gather import all_gather
from kadril.ops.all_sum_reduce import all_sum_reduce
from kadril.ops.all_to_all import all_to_all
from kadril.ops.broadcast import Broadcaster, SumReducer, broadcast, sum_reduce
from kadril.ops.extremes import all_max_reduce, all_min_reduce
from kadril.ops.gather import Gatherer, gather
from kadril.ops.halo import HaloExchanger, halo_exchange
from kadril.ops.reduce_scatter import reduce_scatter
from kadril.ops.repartition import Repartitioner, repartition
from kadril.ops.replicated import spread, total
from kadril.ops.scatter import Scatterer, scatter
from kadril.ops.zero_volume import correct_zero_volume, zero_volume_tensor

__all__ = [
    "Broadcaster",
    "Gatherer",
    "HaloExchanger",
    "Repartitioner",
    "Scatterer",
    "SumReducer",
    "all_gather",
    "all_max_reduce",
    "all_min_reduce",
    "all_sum_reduce",
    "all_to_all",
    "broadcast",
    "correct_zero_volume",
    "gather",
    "halo_exchange",
    "reduce_scatter",
    "repartition",
    "scatter",
    "spread",
    "sum_reduce",
    "total",
    "zero_volume_tensor",
]
