"""Who am I: rank, size and meeting place, by what a launcher left in the environment.

The first of these that applies, so that the nearest launcher wins: mpirun inside a Slurm allocation
sets the variables of both, and so does torchrun inside an `srun`.

    explicit arguments of init() > kadril run > torchrun > Open MPI > MPICH, Intel MPI > MVAPICH >
    PMIx > horovodrun > Slurm step > Kubernetes indexed job > alone

horovodrun tells its processes who they are, and not where they could meet without Horovod: it
counts only with MASTER_ADDR and MASTER_PORT beside it.

"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Mapping

from kadril.errors import ConfigError
from kadril.world import slurm

__all__ = ["LAUNCHERS", "Identity", "Launcher", "find_identity"]

logger = logging.getLogger("kadril")


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a process knows of its place before it has met the others.

    Attributes:
        source: who told: "kadril run", "torchrun", "Open MPI", ...
        rank: of this process in the world.
        size: number of ranks; None where only MPI itself knows.
        rendezvous: where to meet: "unix:<path>", "tcp:<host>:<port>", "mpi", or nothing for a world
            of one.
        fallback: where to meet if `rendezvous` is "mpi" and mpi4py is not installed.
        job: name of the job, not secret.
        generation: of the first `init()` of this process.
        secret_file: file with the job's secret, or nothing.
        listen_fd: descriptor of the listening socket that was inherited, on rank 0 of `kadril run`.
        is_served: whether a launcher serves the store at the tcp address; otherwise rank 0 does.
    """

    source: str
    rank: int
    size: int | None
    rendezvous: str = ""
    fallback: str = ""
    job: str = ""
    generation: int = 0
    secret_file: str = ""
    listen_fd: int | None = None
    is_served: bool = False

    def __post_init__(self) -> None:
        if self.size is not None and not 0 <= self.rank < self.size:
            raise ConfigError(
                f"{self.source} says this is rank {self.rank} of {self.size};"
                f" ranks go from 0 to size - 1"
            )
        if self.generation < 0:
            raise ConfigError(f"KADRIL_GENERATION must not be negative, got {self.generation}")


@dataclasses.dataclass(frozen=True)
class Launcher:
    """The variables by which a launcher tells a process who it is."""

    name: str
    rank: str
    size: str | None
    needs: tuple[str, ...] = ()
    is_mpi: bool = False

    def is_here(self, environment: Mapping[str, str]) -> bool:
        """Whether this launcher started the process."""
        size = () if self.size is None else (self.size,)
        return all(name in environment for name in (self.rank, *size, *self.needs))


LAUNCHERS = (
    Launcher("kadril run", "KADRIL_RANK", "KADRIL_SIZE"),
    Launcher("torchrun", "RANK", "WORLD_SIZE", needs=("MASTER_ADDR",)),
    Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", is_mpi=True),
    Launcher("MPICH", "PMI_RANK", "PMI_SIZE", is_mpi=True),
    Launcher("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", is_mpi=True),
    Launcher("PMIx", "PMIX_RANK", None, is_mpi=True),
    Launcher("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", needs=("MASTER_ADDR",)),
    Launcher("Slurm", "SLURM_PROCID", None),
    Launcher("Kubernetes", "JOB_COMPLETION_INDEX", "WORLD_SIZE", needs=("MASTER_ADDR",)),
)


def find_identity(
    environment: Mapping[str, str] | None = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    rendezvous: str | None = None,
    job: str | None = None,
    secret_file: str | None = None,
) -> Identity:
    """Find out who this process is; explicit arguments win over every launcher.

    Raises:
        ConfigError: a launcher's variable cannot be read, or the arguments do not go together.
    """
    environment = os.environ if environment is None else environment
    if rank is not None or size is not None:
        return explicit(environment, rank, size, rendezvous, job, secret_file)
    if rendezvous is not None or job is not None or secret_file is not None:
        raise ConfigError("rendezvous, job and secret_file go with rank and size; give these too")
    for launcher in LAUNCHERS:
        if launcher.name == "Slurm" and not slurm.is_step(environment):
            continue
        if launcher.is_here(environment):
            return identity_by(launcher, environment)
    warn_if_half_told(environment)
    return Identity("no launcher", 0, 1, job=f"alone-{os.getpid()}")


def explicit(
    environment: Mapping[str, str],
    rank: int | None,
    size: int | None,
    rendezvous: str | None,
    job: str | None,
    secret_file: str | None,
) -> Identity:
    """The identity that the caller of `init()` spells out."""
    if rank is None or size is None:
        raise ConfigError("rank and size go together: give both, or neither")
    if size > 1 and rendezvous is None:
        rendezvous = master(environment)
    if size > 1 and not rendezvous:
        raise ConfigError(
            f"where are the {size} ranks to meet? Give rendezvous='unix:<path>' or"
            " 'tcp:<host>:<port>', or set MASTER_ADDR and MASTER_PORT"
        )
    return Identity(
        "arguments of init()",
        rank,
        size,
        rendezvous=rendezvous or "" if size > 1 else "",
        job=job or "explicit",
        secret_file=secret_file or environment.get("KADRIL_SECRET_FILE", ""),
        generation=read_int(environment, "KADRIL_GENERATION", 0),
    )


def identity_by(launcher: Launcher, environment: Mapping[str, str]) -> Identity:
    """The identity that one launcher gives."""
    rank = read_int(environment, launcher.rank)
    size = None if launcher.size is None else read_int(environment, launcher.size)
    base = Identity(
        launcher.name,
        rank,
        size,
        generation=read_int(environment, "KADRIL_GENERATION", 0),
        secret_file=environment.get("KADRIL_SECRET_FILE", ""),
    )
    if launcher.name == "kadril run":
        return by_kadril(base, environment)
    if launcher.is_mpi:
        return by_mpi(base, environment)
    if launcher.name == "Slurm":
        return by_slurm(base, environment)
    return by_torchrun(base, environment)


def by_kadril(base: Identity, environment: Mapping[str, str]) -> Identity:
    """`kadril run` names a unix-domain socket, and hands rank 0 the listening end of it."""
    for name in ("KADRIL_JOB", "KADRIL_RENDEZVOUS", "KADRIL_SECRET_FILE"):
        if name not in environment and base.size != 1:
            raise ConfigError(
                f"KADRIL_RANK and KADRIL_SIZE are set and {name} is not. `kadril run` sets them"
                " together; without it, unset them or give init(rank=..., size=..., rendezvous=...)"
            )
    has_listener = base.rank == 0 and "KADRIL_LISTEN_FD" in environment
    return dataclasses.replace(
        base,
        rendezvous=environment.get("KADRIL_RENDEZVOUS", ""),
        job=environment.get("KADRIL_JOB", "kadril"),
        listen_fd=read_int(environment, "KADRIL_LISTEN_FD") if has_listener else None,
    )


def by_torchrun(base: Identity, environment: Mapping[str, str]) -> Identity:
    """Torchrun, and every launcher that sets the same variables, names the address of a store."""
    rendezvous = master(environment)
    if not rendezvous and base.size != 1:
        raise ConfigError(
            f"{base.source} set MASTER_ADDR and not MASTER_PORT; set it to a free port of rank 0's"
            " host"
        )
    # A restarted rank must not read what its dead predecessor wrote: the attempt is part of every
    # key.
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dataclasses.replace(
        base,
        rendezvous=rendezvous,
        job=key_part(f"{environment.get('TORCHELASTIC_RUN_ID', 'torch')}.{attempt}"),
        is_served=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def by_mpi(base: Identity, environment: Mapping[str, str]) -> Identity:
    """An MPI launcher: MPI itself is the meeting place."""
    fallback = master(environment)
    job = f"mpi-{environment.get('PMIX_NAMESPACE', '')}"
    if slurm.is_step(environment) and read_int(environment, "SLURM_PROCID") == base.rank:
        # srun speaks PMI to its tasks whether or not they use MPI, so Slurm's own word is as good.
        in_slurm = by_slurm(base, environment)
        if base.size in (None, in_slurm.size):
            base = dataclasses.replace(base, size=in_slurm.size)
            fallback, job = fallback or in_slurm.rendezvous, in_slurm.job
    return dataclasses.replace(base, rendezvous="mpi", fallback=fallback, job=key_part(job))


def by_slurm(base: Identity, environment: Mapping[str, str]) -> Identity:
    """A task of `srun`: rank 0's host is the first of the step."""
    address = slurm.store_address(environment)
    rendezvous = master(environment) or (f"tcp:{address[0]}:{address[1]}" if address else "")
    if not rendezvous:
        raise ConfigError(
            "Slurm does not say which hosts this step runs on (SLURM_STEP_NODELIST);"
            " set MASTER_ADDR and MASTER_PORT"
        )
    return dataclasses.replace(
        base,
        size=int(slurm.number_of_tasks(environment)),
        rendezvous=rendezvous,
        job=key_part(slurm.job_name(environment)),
    )


def master(environment: Mapping[str, str]) -> str:
    """The store's address by MASTER_ADDR and MASTER_PORT, or nothing if not both are set."""
    if "MASTER_ADDR" not in environment or "MASTER_PORT" not in environment:
        return ""
    return f"tcp:{environment['MASTER_ADDR']}:{read_int(environment, 'MASTER_PORT')}"


def read_int(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Read a variable as a count."""
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch(r"[0-9]{1,10}", text):
        raise ConfigError(f"{name} must be a whole number, got {text!r}")
    return int(text)


def key_part(text: str) -> str:
    """A name as part of a store's key: no separators, no blanks, no control characters."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:128]


def warn_if_half_told(environment: Mapping[str, str]) -> None:
    """A rank and a size without MASTER_ADDR: somebody meant a world, and would get one rank."""
    for rank, size in (("RANK", "WORLD_SIZE"), ("HOROVOD_RANK", "HOROVOD_SIZE")):
        if rank in environment and environment.get(size, "1") != "1":
            hint = "; start the ranks with `kadril run`" if rank == "HOROVOD_RANK" else ""
            logger.warning(
                "%s=%s and %s=%s are set, MASTER_ADDR is not: this process is taken as alone%s",
                rank,
                environment[rank],
                size,
                environment[size],
                hint,
            )
