"""Identity of a process: rank, size and meeting place, from variables that a launcher set.

The first of these that applies, so that the nearest launcher wins: mpirun inside a Slurm allocation
sets the variables of both, and so does torchrun inside an `srun`.

    explicit arguments of init() > kadril run > torchrun > Open MPI > MPICH, Intel MPI > MVAPICH >
    PMIx > horovodrun > Slurm step > Kubernetes indexed job > torch.distributed > alone

horovodrun tells its processes who they are, but not where they could meet without Horovod: it
counts only with MASTER_ADDR and MASTER_PORT beside it.

A process group that the program has made with torch.distributed must agree with the launcher. One
of several ranks wins over a launcher that started this process alone, which then started the
others itself; and a group of one says nothing about others.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping

from kadril.errors import ConfigError
from kadril.world import slurm
from kadril.world.launchers import LAUNCHERS, Launcher, check_alone, find_launcher
from kadril.world.process_group import Member, find_member

__all__ = ["LAUNCHERS", "TORCH", "Identity", "Launcher", "find_identity"]

# The rendezvous at the store of torch.distributed.
TORCH = "torch"


@dataclasses.dataclass(frozen=True)
class Identity:
    """Identity of a process before it has met the others.

    Attributes:
        source: who said so: "kadril run", "torchrun", "Open MPI", ...
        rank: of this process in the world.
        size: number of ranks; None where only MPI itself knows.
        rendezvous: where to meet: "unix:<path>", "tcp:<host>:<port>", "mpi", "torch" for the store
            of torch.distributed, or nothing for a world of one.
        fallback: where to meet if `rendezvous` is "mpi" and mpi4py is not installed, or if the
            launcher names no place.
        job: name of the job, not secret.
        generation: of the first `init()` of this process.
        secret_file: file with the job's secret, or nothing.
        listen_fd: descriptor of the listening socket that was inherited, on rank 0 of `kadril run`.
        is_served: whether a launcher serves the store at the tcp address; otherwise rank 0 does.
        is_own: whether the tcp address is kadril's own rendezvous, if the job has a secret;
            otherwise it is that of a store of torch, which others may want to share.
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
    is_own: bool = False

    def __post_init__(self) -> None:
        if self.size is not None and not 0 <= self.rank < self.size:
            raise ConfigError(
                f"{self.source} says this is rank {self.rank} of {self.size};"
                f" ranks go from 0 to size - 1"
            )
        if self.generation < 0:
            raise ConfigError(f"KADRIL_GENERATION must not be negative, got {self.generation}")


def find_identity(
    environment: Mapping[str, str] | None = None,
    *,
    member: Member | None = None,
    rank: int | None = None,
    size: int | None = None,
    rendezvous: str | None = None,
    job: str | None = None,
    secret_file: str | None = None,
) -> Identity:
    """Find out who this process is; explicit arguments win over every launcher.

    Args:
        environment: variables to look at; where None, those of this process, and the process group
            that it has made with torch.distributed.
        member: place in such a group, where `environment` is given.
        rank: see `kadril.init`, as for all that follow.
        size: number of ranks.
        rendezvous: where they meet.
        job: name of the job.
        secret_file: file with its secret.

    Raises:
        ConfigError: a launcher's variable cannot be read, the arguments do not go together, the
            launcher and torch.distributed contradict each other, or there are signs of other ranks
            and no way to meet them.
    """
    if environment is None:
        environment, member = os.environ, find_member()
    if rank is not None or size is not None:
        return explicit(environment, member, rank, size, rendezvous, job, secret_file)
    if rendezvous == TORCH and job is None:
        return by_torch(environment, member, secret_file)
    if rendezvous is not None or job is not None or secret_file is not None:
        raise ConfigError("rendezvous, job and secret_file go with rank and size; give these too")
    launcher = find_launcher(environment)
    others = member if member is not None and member.size > 1 else None
    if launcher is not None and (others is None or agrees(launcher, environment, others)):
        return identity_by(launcher, environment, fallback="" if others is None else TORCH)
    if member is not None:
        return by_torch(environment, member, None)
    check_alone(environment)
    return Identity("no launcher", 0, 1, job=f"alone-{os.getpid()}")


def agrees(launcher: Launcher, environment: Mapping[str, str], member: Member) -> bool:
    """Whether a launcher and a group of several ranks agree.

    Returns:
        False where the launcher started this process alone: the others were started later.

    Raises:
        ConfigError: they contradict each other.
    """
    rank, size = told_by(launcher, environment)
    if size == 1:
        return False
    if rank != member.rank or size not in (None, member.size):
        number = "an unknown number" if size is None else size
        raise ConfigError(
            f"who is this process? {launcher.name} says rank {rank} of {number}"
            f" ({launcher.rank}={environment[launcher.rank]}), and torch.distributed is initialized"
            f" as rank {member.rank} of {member.size}. Give both the same ranks; or take those of"
            f" torch.distributed by kadril.init(rendezvous='{TORCH}')"
        )
    return True


def told_by(launcher: Launcher, environment: Mapping[str, str]) -> tuple[int, int | None]:
    """Rank and size as a launcher tells them."""
    rank = read_int(environment, launcher.rank)
    if launcher.name == "Slurm":
        return rank, int(slurm.number_of_tasks(environment))
    if launcher.name == "PMIx" and slurm.is_single_task(environment):
        return rank, 1
    return rank, None if launcher.size is None else read_int(environment, launcher.size)


def by_torch(
    environment: Mapping[str, str], member: Member | None, secret_file: str | None
) -> Identity:
    """The identity that the default process group of torch.distributed gives."""
    if member is None:
        raise ConfigError(
            f"rendezvous='{TORCH}' is the store of torch.distributed, which is not initialized."
            " Call torch.distributed.init_process_group() first"
        )
    return Identity(
        "torch.distributed",
        member.rank,
        member.size,
        rendezvous=TORCH if member.size > 1 else "",
        job=TORCH if member.size > 1 else f"alone-{os.getpid()}",
        secret_file=secret_file or environment.get("KADRIL_SECRET_FILE", ""),
    )


def explicit(
    environment: Mapping[str, str],
    member: Member | None,
    rank: int | None,
    size: int | None,
    rendezvous: str | None,
    job: str | None,
    secret_file: str | None,
) -> Identity:
    """The identity that the caller of `init()` spells out."""
    if rank is None or size is None:
        raise ConfigError("rank and size go together: give both, or neither")
    is_own = is_tcp(rendezvous)
    if size > 1 and rendezvous is None:
        is_same = member == Member(rank, size)
        rendezvous = master(environment) or (TORCH if is_same else None)
    if size > 1 and not rendezvous:
        raise ConfigError(
            f"where are the {size} ranks to meet? Give rendezvous='unix:<path>' or"
            " 'tcp:<host>:<port>', or set MASTER_ADDR and MASTER_PORT"
        )
    if rendezvous == TORCH and size > 1 and member != Member(rank, size):
        found = "not initialized" if member is None else f"rank {member.rank} of {member.size}"
        raise ConfigError(
            f"kadril.init(rank={rank}, size={size}, rendezvous='{TORCH}') meets at the store of"
            f" torch.distributed, which is {found}. Leave rank and size out to take them from there"
        )
    return Identity(
        "arguments of init()",
        rank,
        size,
        rendezvous=rendezvous or "" if size > 1 else "",
        job=job or "explicit",
        secret_file=secret_file or environment.get("KADRIL_SECRET_FILE", ""),
        generation=read_int(environment, "KADRIL_GENERATION", 0),
        is_own=is_own,
    )


def is_tcp(rendezvous: str | None) -> bool:
    """Whether a rendezvous is at a port of a host."""
    return rendezvous is not None and rendezvous.startswith("tcp:")


def identity_by(
    launcher: Launcher, environment: Mapping[str, str], *, fallback: str = ""
) -> Identity:
    """The identity that one launcher gives."""
    rank, size = told_by(launcher, environment)
    base = Identity(
        launcher.name,
        rank,
        size,
        fallback=fallback,
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
    """Identity under `kadril run`: it names a unix-domain socket, and rank 0 listens there.

    Across hosts it names a port of rank 0's host.
    """
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
        is_own=is_tcp(environment.get("KADRIL_RENDEZVOUS")),
        job=environment.get("KADRIL_JOB", "kadril"),
        listen_fd=read_int(environment, "KADRIL_LISTEN_FD") if has_listener else None,
    )


def by_torchrun(base: Identity, environment: Mapping[str, str]) -> Identity:
    """Identity under torchrun, or what sets the same variables, which name a store's address."""
    rendezvous = master(environment) or base.fallback
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
    fallback = master(environment) or base.fallback
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
    place = f"tcp:{address[0]}:{address[1]}" if address else base.fallback
    rendezvous = master(environment) or place
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
