"""Options of the launcher."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from kadril.compat import compat_names
from kadril.config import IDENTITY_VARIABLES
from kadril.errors import ConfigError, KadrilError
from kadril.launch.mapping.placement import Placement

__all__ = ["ElasticOptions", "LaunchError", "RunOptions", "SshOptions"]


class LaunchError(KadrilError):
    """The job could not be started.

    Attributes:
        exit_code: what `kadril run` exits with; 127 for a program that is not there, as in shells.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclasses.dataclass(frozen=True)
class SshOptions:
    """Options for reaching other hosts, and for the meeting of the ranks.

    Attributes:
        program: the ssh program, with arguments that come first.
        arguments: further arguments, before the host.
        timeout: seconds a host has to answer.
        interface: name of the network interface that ranks meet and talk on, on all hosts; where it
            is empty, they meet at the address by which ssh reached rank 0's host.
        port: port of the rendezvous on rank 0's host; 0 takes a free one.
    """

    program: tuple[str, ...] = ("ssh",)
    arguments: tuple[str, ...] = ()
    timeout: float = 30.0
    interface: str = ""
    port: int = 0

    def __post_init__(self) -> None:
        if not self.program:
            raise ConfigError("KADRIL_SSH is empty; unset it, or give a program such as ssh")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"--port must be 1 to 65535, got {self.port}")


@dataclasses.dataclass(frozen=True)
class ElasticOptions:
    """Options of a job that outlives its ranks.

    Attributes:
        min_ranks: the job ends where fewer are left, and no more can be had.
        max_ranks: never more than these.
        reset_limit: how many generations may follow the first one; None for any number.
        discovery_script: program that lists hosts and slots; None for a fixed number of slots.
        timeout: seconds that ranks wait for hosts, and for ranks that do not come.
        cooldown: seconds for which a host is set aside after repeated failures, at first and at
            most.
        replaces: whether a rank that failed is replaced; otherwise the job shrinks.
        slots_per_host: slots of a host that the script lists without a number.
        num_spares: processes beyond the ranks that are started when the job has begun to train, and
            wait in `init()` to take the place of one that fails; none where `replaces` is False.
        has_fork_server: whether processes are forked from one that has loaded what ranks load.

    Raises:
        ConfigError: a value makes no sense.
    """

    min_ranks: int
    max_ranks: int
    reset_limit: int | None = None
    discovery_script: str | None = None
    timeout: float = 600.0
    cooldown: tuple[float, float] = (10.0, 300.0)
    replaces: bool = True
    slots_per_host: int = 1
    num_spares: int = 1
    has_fork_server: bool = True

    def __post_init__(self) -> None:
        if not self.replaces:
            object.__setattr__(self, "num_spares", 0)
        if not 1 <= self.min_ranks <= self.max_ranks:
            raise ConfigError(
                f"--min-np must be at least 1 and at most --max-np, got {self.min_ranks} and"
                f" {self.max_ranks}"
            )
        if self.num_spares < 0:
            raise ConfigError(f"--spares must be 0 or more, got {self.num_spares}")
        if self.reset_limit is not None and self.reset_limit < 0:
            raise ConfigError(f"--reset-limit must be 0 or more, got {self.reset_limit}")
        if not 0 < self.timeout < float("inf"):
            raise ConfigError(f"--elastic-timeout must be more than 0 s, got {self.timeout}")
        if not 0 < self.cooldown[0] <= self.cooldown[1] < float("inf"):
            raise ConfigError(
                "--blacklist-cooldown-range takes MIN and MAX seconds, MIN > 0 and MAX not less,"
                f" got {self.cooldown[0]:g} and {self.cooldown[1]:g}"
            )


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """One run of a program on many ranks.

    Attributes:
        command: the program and its arguments. A program that ends in `.py` is run by this Python,
            which also stands for a bare `python` or `python3`.
        num_ranks: how many ranks to start.
        output_dir: directory that gets `rank.N.out` and `rank.N.err`, the exact bytes of each rank.
        output_filename: directory that gets `rank.N/stdout` and `rank.N/stderr`, likewise.
        prefix: whether lines are printed with `[rank] ` before them.
        timestamps: whether lines are printed with the time before them.
        bind: whether each rank is bound to one core, round robin over the allowed ones.
        stdin: whether rank 0 gets the launcher's stdin; otherwise, and elsewhere, it is /dev/null.
        grace: seconds ranks have to leave after an interrupt, before SIGKILL.
        kill_grace: seconds ranks have to leave after another rank failed, before SIGKILL.
        environment: variables to add to those of the launcher.
        transport: value of KADRIL_TRANSPORT for the ranks.
        patience: value of KADRIL_PATIENCE for the ranks.
        config: values of other options of `Config` for the ranks, as text.
        compat: names of packages that the ranks are to find in place of those installed.
        notices: what the user is told before the start.
        verbose: whether the launcher tells what it does.
        placement: the host and the cores of each rank; None is this host.
        ssh: how other hosts are reached.
        elastic: how the job outlives its ranks; None where it ends with the first that fails.

    Raises:
        ConfigError: a value makes no sense.
    """

    command: tuple[str, ...]
    num_ranks: int
    output_dir: str | None = None
    output_filename: str | None = None
    prefix: bool = True
    timestamps: bool = False
    bind: bool = False
    stdin: bool = False
    grace: float = 10.0
    kill_grace: float = 5.0
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    transport: str | None = None
    patience: float | None = None
    config: Mapping[str, str] = dataclasses.field(default_factory=dict)
    compat: str | Sequence[str] | None = None
    notices: tuple[str, ...] = ()
    verbose: bool = False
    placement: Placement | None = None
    ssh: SshOptions = SshOptions()
    elastic: ElasticOptions | None = None

    @property
    def num_places(self) -> int:
        """Number of processes that there may be at one time."""
        if self.elastic is None:
            return self.num_ranks
        # A rank that leaves may have to wait for the one that takes over its state.
        return max(self.elastic.max_ranks + self.elastic.num_spares, 2)

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise ConfigError("no program to run; try: kadril run -np 2 python train.py")
        if self.num_ranks < 1:
            raise ConfigError(f"the number of ranks (-np) must be at least 1, got {self.num_ranks}")
        for name in ("grace", "kill_grace"):
            seconds = getattr(self, name)
            if not 0 <= seconds < float("inf"):
                raise ConfigError(
                    f"--{name.replace('_', '-')} must be 0 or more seconds, got {seconds}"
                )
        if self.placement is not None and self.placement.num_ranks != self.num_ranks:
            raise ConfigError(
                f"{self.num_ranks} ranks are asked for, and {self.placement.num_ranks} have a host"
            )
        if self.placement is not None and self.placement.needs_ssh and self.stdin:
            raise ConfigError(
                "--stdin is for ranks of this host; let rank 0 read a file, which it has at the"
                " same path"
            )
        if self.placement is not None and self.placement.needs_ssh and "," in self.ssh.interface:
            raise ConfigError(f"--network-interface takes one, got {self.ssh.interface!r}")
        if self.elastic is not None:
            self._check_elastic(self.elastic)
        compat_names(self.compat)
        taken = sorted(IDENTITY_VARIABLES.intersection(self.environment))
        if taken:
            raise ConfigError(
                f"{taken[0]} is set by the launcher for each rank; "
                f"it cannot be given with -x: leave it out"
            )

    def _check_elastic(self, elastic: ElasticOptions) -> None:
        if self.placement is not None and self.placement.needs_ssh:
            raise ConfigError(
                "--min-np and --max-np are for ranks of this host; leave other hosts out, or give"
                " -np alone"
            )
        if not elastic.min_ranks <= self.num_ranks <= elastic.max_ranks:
            raise ConfigError(
                f"-np {self.num_ranks} must be from --min-np {elastic.min_ranks} to --max-np"
                f" {elastic.max_ranks}"
            )
        if self.stdin:
            raise ConfigError("--stdin is not for elastic jobs, whose rank 0 may be replaced")
