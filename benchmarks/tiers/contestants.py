"""Contestants, each with ranks of its own on all hosts, which wait for their turns side by side.

contestant               all-reduce by
tiered                   kadril, transport tiered, as under `kadril run`: connections of our own
tiered, gloo             the same with gloo between hosts, as under torchrun
tiered, round robin      tiered, where rank r is on host r mod H
tiered, bf16             tiered, 16 bits of each float between hosts
flat                     kadril, transport c10d: every rank sends to every rank
gloo                     torch.distributed
gloo, round robin        the same, where rank r is on host r mod H; on the slow link only
Open MPI                 mpi4py, with the collectives that Open MPI takes by itself (HAN)
Open MPI, tuned          the same, without HAN
MPICH                    mpi4py

contestant               training step of the 10M-parameter MLP by
alone                    nobody for anybody: each rank trains by itself, SGD
DistributedOptimizer     kadril.torch over tiered, SGD; "gloo" as above
DDP                      DistributedDataParallel on gloo, SGD
DDP, views               the same, with gradient_as_bucket_view
sharded                  kadril.sharded.POS_Trainer over tiered, Adam; "gloo" as above
DDP + ZeRO               DistributedDataParallel and ZeroRedundancyOptimizer, Adam
DDP + ZeRO, views        the same, with parameters_as_bucket_view
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["SUMS", "TRAININGS", "Contestant"]


@dataclass(frozen=True)
class Contestant:
    """One who is measured.

    Attributes:
        library: "kadril", "gloo", "openmpi" or "mpich".
        options: of `kadril.init`; of mpirun, as MCA parameters, for Open MPI.
        round_robin: whether ranks are dealt out to hosts one by one.
        training: folder and name of the setting of another benchmark that it trains as.
    """

    library: str
    options: Mapping[str, str] = field(default_factory=dict)
    round_robin: bool = False
    training: tuple[str, str] | None = None

    def host_of(self, rank: int, num_hosts: int, num_local: int) -> int:
        """The host that a rank is on."""
        return rank % num_hosts if self.round_robin else rank // num_local


TIERED = {"transport": "tiered:tcp"}
OVER_GLOO = {"transport": "tiered:c10d"}

SUMS = {
    "tiered": Contestant("kadril", TIERED),
    "tiered, gloo": Contestant("kadril", OVER_GLOO),
    "tiered, round robin": Contestant("kadril", TIERED, round_robin=True),
    "tiered, bf16": Contestant("kadril", {**TIERED, "wire_dtype": "bf16"}),
    "flat": Contestant("kadril", {"transport": "c10d"}),
    "gloo": Contestant("gloo"),
    "gloo, round robin": Contestant("gloo", round_robin=True),
    "Open MPI": Contestant("openmpi"),
    "Open MPI, tuned": Contestant("openmpi", {"coll": "^han,adapt"}),
    "MPICH": Contestant("mpich"),
}

TRAININGS = {
    "alone": Contestant("gloo", training=("training", "alone")),
    "DistributedOptimizer": Contestant("kadril", TIERED, training=("training", "kadril")),
    "DistributedOptimizer, gloo": Contestant("kadril", OVER_GLOO, training=("training", "kadril")),
    "DDP": Contestant("gloo", training=("training", "DDP")),
    "DDP, views": Contestant("gloo", training=("training", "DDP views")),
    "sharded": Contestant("kadril", TIERED, training=("sharded", "kadril")),
    "sharded, gloo": Contestant("kadril", OVER_GLOO, training=("sharded", "kadril")),
    "DDP + ZeRO": Contestant("gloo", training=("sharded", "DDP + ZeRO")),
    "DDP + ZeRO, views": Contestant("gloo", training=("sharded", "DDP + ZeRO, views")),
}
