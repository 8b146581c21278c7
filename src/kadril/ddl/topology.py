"""The dimensions of a mode, compared with the hosts that the learners really run on.

    -mode n:4x3    4 learners on a host, 3 hosts: 12 learners

Tiers come from the hosts as they are (`World.layout`), never from `rank // 4`: DDL's own launcher
deals ranks out to hosts in turn. So a wrong product is an error, since somebody counted wrong; and
a right product over other hosts is only told, since it changes no result: a program for twelve
hosts has to run on a laptop.
"""

from __future__ import annotations

import math

from kadril.ddl.options import Mode
from kadril.errors import ConfigError
from kadril.world import Layout

__all__ = ["check_product", "default_mode", "describe_hosts", "find_contradiction", "tiers_of"]


def default_mode(layout: Layout) -> Mode:
    """The mode where none was given: a single ring of all learners."""
    return Mode("r", (layout.size,))


def check_product(mode: Mode, layout: Layout) -> None:
    """Check that the dimensions of a mode have room for all learners, and for no more.

    Raises:
        ConfigError: their product is another number.
    """
    if not mode.dims or mode.num_learners == layout.size:
        return
    factors = " x ".join(map(str, mode.dims))
    product = f"{factors} = {mode.num_learners}" if len(mode.dims) > 1 else factors
    raise ConfigError(
        f"-mode {mode}: {product}, but {layout.size} learners run; try"
        f" {suggest(mode, layout)}, or start {mode.num_learners} learners"
    )


def suggest(mode: Mode, layout: Layout) -> Mode:
    """Return a mode for the learners that run, as much like the given one as can be."""
    for num_kept in range(len(mode.dims) - 1, 0, -1):
        kept = mode.dims[:num_kept]
        if layout.size % math.prod(kept) == 0:
            return Mode(mode.algorithm, (*kept, layout.size // math.prod(kept)))
    if len(layout.hosts) > 1 and layout.is_homogeneous:
        return Mode(mode.algorithm, (len(layout.hosts[0]), len(layout.hosts)))
    return Mode(mode.algorithm, (layout.size,))


def find_contradiction(mode: Mode, layout: Layout) -> str:
    """Return a note on dimensions that are not those of the hosts, or an empty string."""
    if not mode.dims or mode.way == "flat":
        return ""  # a ring goes round all learners, wherever they are
    per_host, num_hosts = mode.dims[0], math.prod(mode.dims[1:])
    if len(layout.hosts) == num_hosts and all(len(host) == per_host for host in layout.hosts):
        return ""
    say = "host" if num_hosts == 1 else "hosts"
    return (
        f"-mode {mode} says {num_hosts} {say} of {per_host}, and the {layout.size} learners run on"
        f" {describe_hosts(layout)}. Tiers are those of the real hosts, results are the same"
    )


def tiers_of(mode: Mode) -> str:
    """Return the option `tiers` of kadril for a mode that names racks, or an empty string.

    Tiers within a host and between hosts need no option.
    """
    dims = list(mode.dims)
    while len(dims) > 2 and dims[-1] == 1:
        dims.pop()
    return "x".join(map(str, dims)) if len(dims) > 2 and mode.way != "flat" else ""


def describe_hosts(layout: Layout) -> str:
    """Describe hosts as `1 host of 12`, `2 hosts of 4`, `3 hosts of 4, 4, 2`."""
    sizes = [len(host) for host in layout.hosts]
    noun = "host" if len(sizes) == 1 else "hosts"
    shown = str(sizes[0]) if layout.is_homogeneous else ", ".join(map(str, sizes))
    return f"{len(sizes)} {noun} of {shown}"
