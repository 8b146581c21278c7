"""Which transport carries a world, and why."""

from __future__ import annotations

from dataclasses import dataclass

from kadril.config import Config
from kadril.errors import ConfigError
from kadril.world.layout import Layout

__all__ = ["Choice", "choose_transport"]


@dataclass(frozen=True)
class Choice:
    """A transport.

    Attributes:
        kind: "alone", "shm", "c10d" or "mpi".
        backend: of c10d.
        reason: for the log.
    """

    kind: str
    backend: str
    reason: str


def choose_transport(config: Config, layout: Layout, bootstrap_kind: str) -> Choice:
    """The transport that `config` names if it can work here, or the best one where it says "auto".

    Args:
        config: of the world.
        layout: which ranks share a host.
        bootstrap_kind: "mpi" where MPI started the ranks and mpi4py speaks to it.

    Raises:
        ConfigError: the transport that was asked for cannot carry this world.
    """
    kind, _, backend = config.transport.partition(":")
    num_hosts = len(layout.hosts)
    if backend and kind != "c10d":
        raise ConfigError(
            f"only c10d has backends to choose from, got transport {config.transport!r}"
        )
    if kind != "auto":
        check(kind, layout, bootstrap_kind)
        return Choice(kind, backend or "gloo", "it was asked for")
    if layout.size == 1:
        return Choice("alone", "", "there is one rank")
    if num_hosts == 1:
        return Choice("shm", "", f"all {layout.size} ranks are on one host")
    if bootstrap_kind == "mpi":
        return Choice("mpi", "", f"MPI started the ranks, on {num_hosts} hosts")
    return Choice("c10d", "gloo", f"the ranks are on {num_hosts} hosts")


def check(kind: str, layout: Layout, bootstrap_kind: str) -> None:
    """Raise `ConfigError` where a transport cannot carry a world of this layout."""
    if kind == "alone" and layout.size > 1:
        raise ConfigError(
            f"transport 'alone' is for one rank, this world has {layout.size}. Use transport 'auto'"
        )
    if kind == "shm" and len(layout.hosts) > 1:
        raise ConfigError(
            "transport 'shm' shares memory within one host, and the ranks are on"
            f" {len(layout.hosts)}: {describe(layout)}. Use transport 'auto' or 'c10d'; where they"
            " do run on one machine, see whether they are in different containers or have"
            " different KADRIL_HOST_LABEL"
        )
    if kind == "mpi" and bootstrap_kind != "mpi":
        raise ConfigError(
            "transport 'mpi' needs ranks that MPI started, with mpi4py installed."
            " Start them with mpirun, or use transport 'auto'"
        )


def describe(layout: Layout, most: int = 4) -> str:
    """Ranks by host as a short text."""
    shown = " | ".join(" ".join(map(str, host[:8])) for host in layout.hosts[:most])
    return f"ranks {shown}" + (" | ..." if len(layout.hosts) > most else "")
