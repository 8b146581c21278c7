"""Every option of kadril, in one typed place.

Each field of `Config` is read from the variable `KADRIL_<FIELD>`; what was not set has the default
written here. An unknown `KADRIL_*` variable is warned about with the nearest name, since a misspelt
option that is silently ignored costs somebody a day.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import warnings
from collections.abc import Mapping
from typing import Any

from kadril.errors import ConfigError

__all__ = ["Config"]

# Set by the launcher for its ranks, or read elsewhere; they are not options.
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
        "KADRIL_SECRET_FILE",
        "KADRIL_BENCH_MPICH",
        "KADRIL_BENCH_OPENMPI",
        "KADRIL_TESTING_MPICH",
        "KADRIL_TESTING_OPENMPI",
    }
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of one world.

    Attributes:
        transport: "auto", "alone", "shm", "c10d", "c10d:<backend>" or "mpi".
        patience: seconds a collective waits for a rank that is alive before it raises `Stalled`.
        stall_warning: seconds after which a waiting collective logs which ranks it waits for.
        connect_timeout: seconds ranks have to find each other in `init()`.
        shared_capacity: bytes of address space reserved per rank for shared memory; memory itself
            is taken only as it is used. 0 means as many bytes as the machine has.
        shared_backing: "memfd", "named" (a file in /dev/shm, for kernels without memfd) or "auto".
        spin: "auto", or how often a waiting rank looks before it sleeps; 0 never spins.
        host_label: ranks with different labels are treated as on different hosts. A label can
            only part ranks, never join them.
        log_level: level of the "kadril" logger.
        fault: fault injection for tests, "point:action".
    """

    transport: str = "auto"
    patience: float = 300.0
    stall_warning: float = 10.0
    connect_timeout: float = 120.0
    shared_capacity: int = 0
    shared_backing: str = "auto"
    spin: str = "auto"
    host_label: str = ""
    log_level: str = "WARNING"
    fault: str = ""

    def __post_init__(self) -> None:
        for name in ("patience", "stall_warning", "connect_timeout"):
            if getattr(self, name) <= 0:
                raise ConfigError(
                    f"{variable(name)} must be more than 0 seconds, got {getattr(self, name)}"
                )
        if self.shared_backing not in ("auto", "memfd", "named"):
            raise ConfigError(
                f"KADRIL_SHARED_BACKING must be auto, memfd or named, got {self.shared_backing!r}"
            )
        if self.transport.partition(":")[0] not in ("auto", "alone", "shm", "c10d", "mpi"):
            raise ConfigError(
                f"KADRIL_TRANSPORT must be auto, alone, shm, c10d, c10d:<backend> or mpi, got"
                f" {self.transport!r}"
            )
        if self.spin != "auto" and not self.spin.isdecimal():
            raise ConfigError(f"KADRIL_SPIN must be auto or a count, got {self.spin!r}")

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, **overrides: object
    ) -> Config:
        """Read the options from variables; an argument that is not None wins over its variable.

        Raises:
            ConfigError: a value cannot be read as the type of its option.
        """
        environment = os.environ if environment is None else environment
        warn_of_unknown(environment)
        values: dict[str, object] = {}
        for field in dataclasses.fields(cls):
            override = overrides.pop(field.name, None)
            if override is not None:
                values[field.name] = override
            elif variable(field.name) in environment:
                values[field.name] = convert(field, environment[variable(field.name)])
        if overrides:
            raise TypeError(f"unknown options: {', '.join(sorted(overrides))}")
        return cls(**values)  # type: ignore[arg-type]


def variable(name: str) -> str:
    """The environment variable of an option."""
    return f"KADRIL_{name.upper()}"


def convert(field: dataclasses.Field[Any], text: str) -> object:
    """Read the text of a variable as the type of its option."""
    kind: type[Any] = type(field.default)
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(
            f"{variable(field.name)} must be of type {kind.__name__}, got {text!r}"
        ) from None


def warn_of_unknown(environment: Mapping[str, str]) -> None:
    """Warn of KADRIL_* variables that nobody reads, with the nearest name that somebody does."""
    known = {variable(field.name) for field in dataclasses.fields(Config)} | IDENTITY_VARIABLES
    for name in sorted(environment):
        if name.startswith("KADRIL_") and name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            warnings.warn(f"{name} is not an option of kadril{hint}", stacklevel=3)
