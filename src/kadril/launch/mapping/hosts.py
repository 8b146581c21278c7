"""`--hosts` and `--hostfile`: which hosts, and how many ranks each may have.

    --hosts a:2,b:4          2 slots on host a, 4 on host b
    --hostfile FILE          a line `a slots=2` for each host; `#` begins a comment

Ranks fill the slots of the first host, then those of the second. A host that is not this one, by
whatever name, is reached by ssh.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kadril.errors import ConfigError
from kadril.launch.mapping.host_lookup import look_up

__all__ = ["Host", "check_slots", "is_this_host", "parse_hosts", "read_hostfile"]


class Host(NamedTuple):
    """A host and the number of ranks that it may have."""

    name: str
    num_slots: int


def parse_hosts(text: str) -> list[Host]:
    """Read the value of `--hosts`.

    Raises:
        ConfigError: it is not a list of NAME:SLOTS.
    """
    return [parse_host(word) for word in text.split(",")]


def parse_host(word: str) -> Host:
    """Read NAME:SLOTS; a name alone has one slot."""
    match = re.fullmatch(r"\s*([^\s:]+|\[[0-9A-Fa-f:.]+\])(?::([1-9][0-9]{0,8}))?\s*", word)
    if match is None:
        raise ConfigError(f"--hosts takes NAME:SLOTS,NAME:SLOTS, ..., got {word!r}")
    return Host(match[1].strip("[]"), int(match[2] or 1))


def read_hostfile(path: str) -> list[Host]:
    """Read the file that `--hostfile` names.

    Raises:
        ConfigError: it cannot be read, or a line of it has another form.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--hostfile {path}: {error}") from None
    hosts = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = re.fullmatch(r"(\S+)(?:\s+slots\s*=\s*([1-9][0-9]{0,8}))?", text)
        if match is None:
            raise ConfigError(
                f"--hostfile {path}, line {number}: expected `NAME slots=N`, got {text!r}"
            )
        hosts.append(Host(match[1], int(match[2] or 1)))
    if not hosts:
        raise ConfigError(f"--hostfile {path} names no host")
    return hosts


def check_slots(hosts: Sequence[Host], num_ranks: int) -> None:
    """Make sure that so many ranks can be started on these hosts.

    Raises:
        ConfigError: there are too few slots.
    """
    num_slots = sum(host.num_slots for host in hosts)
    if num_ranks > num_slots:
        raise ConfigError(
            f"-np {num_ranks} is more than the {num_slots} slots of {describe(hosts)};"
            f" give more slots, or none: without --hosts and --hostfile any -np will do"
        )


def is_this_host(name: str) -> bool:
    """Whether a name or an address leads to this machine, as far as the resolver knows."""
    return look_up(name) is True


def describe(hosts: Sequence[Host]) -> str:
    """Hosts as `--hosts` takes them."""
    return ",".join(f"{host.name}:{host.num_slots}" for host in hosts)
