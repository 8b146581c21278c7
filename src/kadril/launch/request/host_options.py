"""Flags of `kadril run` about hosts: which there are, how they are reached, where ranks meet."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Mapping

from kadril.errors import ConfigError
from kadril.launch.mapping import hosts
from kadril.launch.mapping.placement import Placement, place_on_hosts, place_with_file
from kadril.launch.mapping.rank_file import read_rank_file
from kadril.launch.options import SshOptions

__all__ = ["SSH", "add_host_options", "describe_idle", "to_placement", "to_ssh_options"]

# The ssh program and its first arguments.
SSH = "KADRIL_SSH"


def add_host_options(parser: argparse.ArgumentParser, add_option: Callable[..., None]) -> None:
    """Add the flags in a group of their own.

    Args:
        parser: where they are added.
        add_option: how, as `argparse.ArgumentParser.add_argument` with the group first.
    """
    group = parser.add_argument_group(
        "hosts",
        "Other hosts are reached by ssh, without a password. The program and this Python are at the"
        " same path there; nothing else is shared. See docs/guides/hosts.md.",
    )
    add_option(group, "-H", "--hosts", metavar="NAME:SLOTS,...", help="hosts, and ranks on each")
    add_option(
        group, "-hostfile", "--hostfile", metavar="FILE", help="the same from a file: NAME slots=N"
    )
    add_option(
        group,
        "-rf",
        "-rankfile",
        "--rankfile",
        dest="rank_file",
        metavar="FILE",
        help="host and cores of each rank, as Open MPI's rank files; `kadril rankfile` writes them",
    )
    add_option(
        group,
        "--network-interface",
        "--network-interfaces",
        dest="network_interface",
        metavar="NAME",
        help="network interface that hosts meet on, by the name that all of them have for it",
    )
    add_option(group, "--port", type=int, metavar="N", help="port of rank 0's host (default: free)")
    add_option(group, "--ssh-args", metavar="TEXT", help="further arguments of ssh: =-4, '-F file'")
    add_option(group, "-p", "--ssh-port", type=int, metavar="N", help="port of sshd")
    add_option(group, "-i", "--ssh-identity-file", metavar="FILE", help="private key")
    add_option(
        group,
        "--dry-run",
        action="store_true",
        help="print what would be run on each host, and start nothing",
    )


def to_placement(words: argparse.Namespace) -> Placement | None:
    """Return the host of each rank, as the words say; None where they say nothing.

    Raises:
        ConfigError: a list or a file cannot be read, or they contradict each other.
    """
    if words.hosts is not None and words.hostfile is not None:
        raise ConfigError("--hosts and --hostfile say the same; give one of them")
    named = None
    if words.hosts is not None:
        named = hosts.parse_hosts(words.hosts)
    elif words.hostfile is not None:
        named = hosts.read_hostfile(words.hostfile)
    if words.rank_file is not None:
        ranks = read_rank_file(words.rank_file)
        return place_with_file(ranks, words.rank_file, words.num_ranks, named)
    return None if named is None else place_on_hosts(named, words.num_ranks)


def to_ssh_options(
    words: argparse.Namespace,
    timeout: float | None = None,
    environment: Mapping[str, str] = os.environ,
) -> SshOptions:
    """Return how other hosts are reached.

    Raises:
        ConfigError: a text has a quote that does not end, or a value makes no sense.
    """
    arguments = split_words("--ssh-args", words.ssh_args or "")
    if words.ssh_port is not None:
        arguments += ["-p", str(words.ssh_port)]
    if words.ssh_identity_file is not None:
        arguments += ["-i", words.ssh_identity_file]
    return SshOptions(
        program=tuple(split_words(SSH, environment.get(SSH, "ssh"))),
        arguments=tuple(arguments),
        timeout=SshOptions.timeout if timeout is None else timeout,
        interface=words.network_interface or "",
        port=words.port or 0,
    )


def describe_idle(words: argparse.Namespace, placement: Placement | None) -> list[str]:
    """Return what to say of flags that have no effect, where all ranks are on this host."""
    if placement is not None and placement.needs_ssh:
        return []
    return [
        f"--{name.replace('_', '-')} has no effect: all ranks are on this host"
        for name in ("network_interface", "port", "ssh_args", "ssh_port", "ssh_identity_file")
        if getattr(words, name) is not None and not words.dry_run
    ]


def split_words(name: str, text: str) -> list[str]:
    """Split a text into words as a shell does."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error} in {text!r}") from None
