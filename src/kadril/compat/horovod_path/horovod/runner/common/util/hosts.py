"""Hosts and their slots."""

from __future__ import annotations

import dataclasses

from kadril.launch.mapping import hosts as own

__all__ = ["HostInfo", "parse_host_files", "parse_hosts", "parse_hosts_and_slots"]


@dataclasses.dataclass(frozen=True)
class HostInfo:
    """A host and the number of ranks that it may have."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Read NAME:SLOTS."""
        return parse_hosts(host_string)[0]


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Read NAME:SLOTS,NAME:SLOTS."""
    return [HostInfo(*host) for host in own.parse_hosts(hosts_string)]


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """Return the names of hosts in order, and the slots of each."""
    found = own.parse_hosts(hosts)
    return [host.name for host in found], {host.name: host.num_slots for host in found}


def parse_host_files(filename: str) -> str:
    """Return the hosts of a file with lines `NAME slots=N` as NAME:N,NAME:N."""
    return own.describe(own.read_hostfile(filename))
