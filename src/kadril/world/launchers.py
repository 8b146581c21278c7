"""Launchers, the variables by which each tells a process who it is, and signs of other ranks.

A process that no launcher places is a world of one, unless its environment shows that there are
others. Ranks that each believe they are alone would train a model each, unnoticed: a sign that
is not enough to find the others is an error.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from kadril.errors import ConfigError
from kadril.world import slurm

__all__ = ["LAUNCHERS", "Launcher", "check_alone", "find_launcher"]


@dataclasses.dataclass(frozen=True)
class Launcher:
    """The variables by which a launcher tells a process who it is.

    Attributes:
        name: of the launcher.
        rank: variable with the rank.
        size: variable with the number of ranks; None where it tells none.
        needs: other variables without which the ranks could not meet.
        is_mpi: whether the ranks meet by MPI.
        remedy: what to try where some of the variables are missing.
    """

    name: str
    rank: str
    size: str | None
    needs: tuple[str, ...] = ()
    is_mpi: bool = False
    remedy: str = ""

    def is_here(self, environment: Mapping[str, str]) -> bool:
        """Whether this launcher started the process."""
        if self.name == "Slurm":
            return slurm.is_step(environment)
        size = () if self.size is None else (self.size,)
        return all(name in environment for name in (self.rank, *size, *self.needs))

    def shows_others(self, environment: Mapping[str, str]) -> bool:
        """Whether its variables, complete or not, say that there are other ranks."""
        if self.name == "Slurm":
            return slurm.shows_others(environment)
        rank = environment.get(self.rank, "")
        size = environment.get(self.size or "", "")
        if self.name == "Kubernetes" or (size == "1" and rank in ("", "0")):
            return False  # an index alone is that of a batch job; its size is torchrun's variable
        # A value that is not a number belongs to something else.
        return is_count(rank) or is_count(size)

    def variables(self) -> tuple[str, ...]:
        """All variables that are looked at."""
        if self.name == "Slurm":
            return slurm.PLACES
        size = () if self.size is None else (self.size,)
        return (self.rank, *size, *self.needs)


BY_TORCH = "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each rank, as torchrun does"
BY_MPI = "start the ranks with mpirun, and keep the variables that it sets"

LAUNCHERS = (
    Launcher("kadril run", "KADRIL_RANK", "KADRIL_SIZE", remedy="leave them to `kadril run`"),
    Launcher("torchrun", "RANK", "WORLD_SIZE", needs=("MASTER_ADDR",), remedy=BY_TORCH),
    Launcher(
        "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", is_mpi=True, remedy=BY_MPI
    ),
    Launcher("MPICH", "PMI_RANK", "PMI_SIZE", is_mpi=True, remedy=BY_MPI),
    Launcher("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", is_mpi=True, remedy=BY_MPI),
    Launcher("PMIx", "PMIX_RANK", None, is_mpi=True, remedy=BY_MPI),
    Launcher(
        "horovodrun",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        needs=("MASTER_ADDR",),
        remedy="start the ranks with `kadril run`, which takes the flags of horovodrun",
    ),
    Launcher("Slurm", "SLURM_PROCID", None, remedy="start the ranks with srun"),
    Launcher("Kubernetes", "JOB_COMPLETION_INDEX", "WORLD_SIZE", needs=("MASTER_ADDR",)),
)


def find_launcher(environment: Mapping[str, str]) -> Launcher | None:
    """The nearest launcher that started this process, if any did."""
    return next((each for each in LAUNCHERS if each.is_here(environment)), None)


def check_alone(environment: Mapping[str, str]) -> None:
    """Check that a process which no launcher places is alone.

    Raises:
        ConfigError: there are signs of other ranks.
    """
    for launcher in LAUNCHERS:
        if launcher.shows_others(environment):
            refuse(launcher.name, launcher.variables(), launcher.remedy, environment)
    # Lightning and others tell a process its place on the host alone.
    rank, size = (environment.get(name, "") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    if (is_count(rank) and int(rank) > 0) or (is_count(size) and int(size) > 1):
        refuse("torchrun", ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK"), BY_TORCH, environment)


def refuse(
    name: str, variables: tuple[str, ...], remedy: str, environment: Mapping[str, str]
) -> None:
    """Say what is set, what is not, and what to try."""
    texts = [f"{each}={environment[each]}" for each in variables if each in environment]
    missing = [each for each in variables if each not in environment]
    absent = f"; not set: {', '.join(missing)}" if missing else ""
    given = " ".join(each.partition("=")[0] for each in texts)
    raise ConfigError(
        f"the environment shows that there are other ranks, and not how to meet them:"
        f" {', '.join(texts)}{absent} (variables of {name}). To meet them, {remedy}; or call"
        " torch.distributed.init_process_group() before kadril.init(), which takes the ranks from"
        f" there. For a world of one, unset {given}, or call kadril.init(rank=0, size=1)"
    )


def is_count(text: str) -> bool:
    """Whether a variable is a whole number."""
    return re.fullmatch(r"[0-9]{1,10}", text) is not None
