"""Options of kadril, all of them, in one typed place.

Each field of `Config` is read from the variable `KADRIL_<FIELD>`, or else from Horovod's variable
for the same thing (see `horovod_variables`); what was not set has the default written here. An
unknown `KADRIL_*` variable is warned about with the nearest name, since a misspelt option that is
silently ignored costs somebody a day.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from kadril import horovod_variables
from kadril.errors import ConfigError

__all__ = ["Config"]

# Every transport there is, by name; a ":<backend>" may follow that of c10d, and the name of the
# transport between hosts that of tiered.
TRANSPORTS = ("alone", "shm", "c10d", "mpi", "tcp", "tiered")

# Set by the launcher for its ranks, or for benchmarks and tests; they are not options.
IDENTITY_VARIABLES = frozenset(
    {
        "KADRIL_JOB",
        "KADRIL_RANK",
        "KADRIL_SIZE",
        "KADRIL_LOCAL_RANK",
        "KADRIL_LOCAL_SIZE",
        "KADRIL_GENERATION",
        "KADRIL_RENDEZVOUS",
        "KADRIL_LISTEN_FD",
        "KADRIL_CONTROL_FD",  # by which the launcher of an elastic job talks to a rank
        "KADRIL_SECRET_FILE",
        "KADRIL_RECORD_FILE",  # where a rank writes its flight record
        "KADRIL_TOLD",  # variables that the launcher has warned of, so that its ranks need not
        "KADRIL_PYTHON",  # that a C program starts inside itself
        "KADRIL_BENCH_MPICH",
        "KADRIL_BENCH_OPENMPI",
        "KADRIL_TESTING_MPICH",
        "KADRIL_TESTING_OPENMPI",
    }
)


class OtherVariable(NamedTuple):
    """Variable that users set, and that is no option of a world."""

    default: str
    meaning: str


OTHER_VARIABLES = {
    "KADRIL_SSH": OtherVariable(
        "ssh", "program, with its first arguments, by which `kadril run` reaches other hosts."
    ),
    "KADRIL_TENSORFLOW_OPS": OtherVariable(
        "auto",
        'what carries the collectives of `kadril.tensorflow`: "native" (kernels that are compiled'
        ' once; an error where they cannot be), "python", or "auto", which takes the second where'
        " the first cannot be had.",
    ),
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of one world.

    Attributes:
        transport: "auto", "alone", "shm", "c10d", "c10d:<backend>", "mpi", "tcp",
            "tiered" or "tiered:<transport between hosts>".
        patience: seconds a collective waits for a rank that is alive before it raises `Stalled`.
        stall_warning: seconds after which a waiting collective logs which ranks it waits for.
        connect_timeout: seconds ranks have to find each other in `init()`.
        link_timeout: seconds after which a connection between hosts is given up if the other host
            answers nothing; its rank is `PeerLost` then. Of transport tcp.
        interface: name or address of the network interface to listen on and to connect from, on
            hosts with several; of transport tcp.
        shared_capacity: bytes of address space reserved per rank for shared memory; memory itself
            is taken only as it is used. 0 means as many bytes as the machine has.
        shared_backing: "memfd", "named" (a file in /dev/shm, for kernels without memfd) or "auto".
        spin: "auto", or how often a waiting rank looks before it sleeps; 0 never spins.
        keep_heap: whether glibc's allocator is told to keep what is freed for the next step; left
            alone in any case where MALLOC_* or GLIBC_TUNABLES are set.
        host_label: ranks with different labels are treated as on different hosts. A label can
            only part ranks, never join them.
        tiers: dimensions of the network for transport "tiered": ranks per host, hosts per rack,
            racks, e.g. "4x2x2"; empty where all hosts are alike near to each other.
        wire_dtype: "bf16" or "fp16" sends sums of float32 and float64 between hosts as such, at
            half the volume; empty sends them as they are. See docs/promises.md.
        log_level: level of the "kadril" logger.
        fusion_threshold: bytes up to which requests that are ready together are run as one; 0 runs
            each by itself.
        cache_capacity: how many names of requests are remembered, so that they are compared only
            once; 0 compares at every request.
        timeline: file that gets the timeline of all ranks; "DYNAMIC" waits for `start_timeline()`;
            nothing records none.
        timeline_mark_cycles: whether the timeline shows the rounds of the negotiation.
        stall_check: whether a named request that waits for long is reported, and by the launcher a
            job that does not move.
        allow_pickle: whether object collectives that do not say otherwise take any object; without
            it they take plain data only. `--compat horovod` sets it. See SECURITY.md.
        fault: fault injection for tests, "point:action".
    """

    transport: str = "auto"
    patience: float = 300.0
    stall_warning: float = 10.0
    connect_timeout: float = 120.0
    link_timeout: float = 10.0
    interface: str = ""
    shared_capacity: int = 0
    shared_backing: str = "auto"
    spin: str = "auto"
    keep_heap: bool = True
    host_label: str = ""
    tiers: str = ""
    wire_dtype: str = ""
    log_level: str = "WARNING"
    fusion_threshold: int = 64 << 20
    cache_capacity: int = 65536
    timeline: str = ""
    timeline_mark_cycles: bool = False
    stall_check: bool = True
    allow_pickle: bool = False
    fault: str = ""

    def __post_init__(self) -> None:
        for name in ("patience", "stall_warning", "connect_timeout", "link_timeout"):
            if getattr(self, name) <= 0:
                raise ConfigError(
                    f"{variable(name)} must be more than 0 seconds, got {getattr(self, name)}"
                )
        for name in ("fusion_threshold", "cache_capacity"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{variable(name)} must be 0 or more, got {getattr(self, name)}")
        if self.shared_backing not in ("auto", "memfd", "named"):
            raise ConfigError(
                f"KADRIL_SHARED_BACKING must be auto, memfd or named, got {self.shared_backing!r}"
            )
        if self.transport.partition(":")[0] not in ("auto", *TRANSPORTS):
            raise ConfigError(
                f"KADRIL_TRANSPORT must be auto, {', '.join(TRANSPORTS)} or c10d:<backend>, got"
                f" {self.transport!r}"
            )
        if self.wire_dtype not in ("", "bf16", "fp16"):
            raise ConfigError(
                f"KADRIL_WIRE_DTYPE must be bf16, fp16 or empty, got {self.wire_dtype!r}"
            )
        if self.spin != "auto" and not self.spin.isdecimal():
            raise ConfigError(f"KADRIL_SPIN must be auto or a count, got {self.spin!r}")

    @property
    def asks_for_mpi(self) -> bool:
        """Whether MPI is asked to carry the data."""
        return self.transport == "mpi"

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, **overrides: object
    ) -> Config:
        """Read the options from variables; an argument that is not None wins over its variable.

        Raises:
            ConfigError: a value cannot be read as the type of its option.
        """
        environment = os.environ if environment is None else environment
        told = environment.get("KADRIL_TOLD", "").split(",")
        for name, remark in remarks(environment).items():
            if name not in told:
                warnings.warn(remark, stacklevel=2)
        horovod = horovod_variables.read_options(environment)
        values: dict[str, object] = {}
        origins: dict[str, str] = {}  # of values that came from a variable of Horovod
        for field in dataclasses.fields(cls):
            override = overrides.pop(field.name, None)
            name = variable(field.name)
            if override is not None:
                values[field.name] = override
            elif name in environment:
                values[field.name] = convert(field, environment[name], name)
            elif field.name in horovod:
                origin = horovod[field.name]
                values[field.name] = convert(field, origin.text, origin.variable)
                origins[name] = origin.variable
        if overrides:
            raise TypeError(f"unknown options: {', '.join(sorted(overrides))}")
        try:
            return cls(**values)  # type: ignore[arg-type]
        except ConfigError as error:
            raise ConfigError(name_origin(str(error), origins)) from None


def variable(name: str) -> str:
    """The environment variable of an option."""
    return f"KADRIL_{name.upper()}"


def known_variables() -> set[str]:
    """Return the names of all variables of kadril that somebody reads."""
    options = {variable(field.name) for field in dataclasses.fields(Config)}
    return options | OTHER_VARIABLES.keys() | IDENTITY_VARIABLES


def convert(field: dataclasses.Field[Any], text: str, name: str) -> object:
    """Read the text of a variable as the type of its option."""
    kind: type[Any] = type(field.default)
    try:
        return to_bool(text) if kind is bool else kind(text)
    except ValueError:
        raise ConfigError(f"{name} must be of type {kind.__name__}, got {text!r}") from None


def to_bool(text: str) -> bool:
    """Read 0, 1, true or false, in any case, as well as no, yes, off and on."""
    word = text.strip().lower()
    if word in horovod_variables.TRUE_WORDS:
        return True
    if word and word in horovod_variables.FALSE_WORDS:
        return False
    raise ValueError(text)


def name_origin(message: str, origins: Mapping[str, str]) -> str:
    """A complaint about KADRIL_X, with the variable that was set instead of it."""
    for name, origin in origins.items():
        if message.startswith(f"{name} "):
            return f"{message} (from {origin})"
    return message


def remarks(environment: Mapping[str, str]) -> dict[str, str]:
    """Return notes on variables that have no effect, by name of the variable."""
    known = known_variables()
    said = {}
    for name in sorted(environment):
        if name.startswith("KADRIL_") and name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            said[name] = f"{name} is not an option of kadril{hint}"
    return said | horovod_variables.remarks(environment)
