"""Choice of the transport that carries a world, and the reason for it."""

from __future__ import annotations

from dataclasses import dataclass

from kadril.config import Config, variable
from kadril.errors import ConfigError
from kadril.frameworks import is_installed
from kadril.world.layout import Layout

__all__ = ["Choice", "choose_transport"]

# What only tiers do. With one rank on each host another transport would leave it undone in silence.
TIERED_OPTIONS = ("tiers", "wire_dtype")


@dataclass(frozen=True)
class Choice:
    """A transport.

    Attributes:
        kind: "alone", "shm", "c10d", "mpi", "tcp" or "tiered".
        backend: of c10d; of "tiered", the outer transport: the one between hosts.
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
        bootstrap_kind: "mpi" where MPI started the ranks and mpi4py speaks to it; "tcp" where they
            met at kadril's own port.

    Raises:
        ConfigError: the transport that was asked for cannot carry this world.
    """
    kind, _, backend = config.transport.partition(":")
    num_hosts = len(layout.hosts)
    if backend and kind not in ("c10d", "tiered"):
        raise ConfigError(
            "only c10d and tiered have something to choose after a colon, got transport"
            f" {config.transport!r}"
        )
    outer = usual_outer(bootstrap_kind)
    if kind == "tiered":
        outer = backend or outer
        check_outer(outer, bootstrap_kind)
        return Choice(kind, outer, "it was asked for")
    asked = [name for name in TIERED_OPTIONS if getattr(config, name)]
    if kind != "auto":
        check(kind, layout, bootstrap_kind)
        if asked and num_hosts > 1:
            raise ConfigError(
                f"{' and '.join(map(variable, asked))} is for transport 'tiered', and transport"
                f" {config.transport!r} was asked for. Leave one of them out"
            )
        return Choice(kind, backend or "gloo", "it was asked for")
    if layout.size == 1:
        return Choice("alone", "", "there is one rank")
    if num_hosts == 1:
        return Choice("shm", "", f"all {layout.size} ranks are on one host")
    if num_hosts < layout.size or asked:
        reason = f"the {layout.size} ranks are on {num_hosts} hosts, {outer} between them"
        return Choice("tiered", outer, reason)
    if outer == "mpi":
        return Choice("mpi", "", f"MPI started the ranks, on {num_hosts} hosts")
    if outer == "tcp":
        return Choice("tcp", "", f"the ranks are on {num_hosts} hosts, and share a secret")
    return Choice("c10d", "gloo", f"the ranks are on {num_hosts} hosts")


def usual_outer(bootstrap_kind: str) -> str:
    """Return the outer transport, the one between hosts, where none is asked for."""
    if bootstrap_kind in ("mpi", "tcp"):
        return bootstrap_kind  # ranks that met at kadril's own port have its own connections too
    return "c10d" if is_installed("torch") else "tcp"


def check_outer(outer: str, bootstrap_kind: str) -> None:
    """Raise `ConfigError` where a transport cannot be the outer one of tiers."""
    if outer not in ("c10d", "mpi", "tcp"):
        raise ConfigError(
            f"transport 'tiered' goes between hosts by c10d, mpi or tcp, not by {outer!r}; write"
            " tiered, tiered:c10d, tiered:mpi or tiered:tcp"
        )
    if outer == "mpi":
        check_mpi("tiered:mpi", bootstrap_kind)


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
    if kind == "mpi":
        check_mpi(kind, bootstrap_kind)


def check_mpi(transport: str, bootstrap_kind: str) -> None:
    """Raise `ConfigError` where MPI did not start the ranks."""
    if bootstrap_kind != "mpi":
        raise ConfigError(
            f"transport {transport!r} needs ranks that MPI started, with mpi4py installed."
            " Start them with mpirun, or use transport 'auto'"
        )


def describe(layout: Layout, most: int = 4) -> str:
    """Ranks by host as a short text."""
    shown = " | ".join(" ".join(map(str, host[:8])) for host in layout.hosts[:most])
    return f"ranks {shown}" + (" | ..." if len(layout.hosts) > most else "")
