"""Flags of `kadril run` about jobs that outlive their ranks."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from kadril.errors import ConfigError
from kadril.launch.mapping.placement import Placement
from kadril.launch.options import ElasticOptions

__all__ = ["describe_unused", "first_number", "is_elastic", "to_elastic_options"]

# Any of these makes a job elastic.
FLAGS = ("min_np", "max_np", "reset_limit", "host_discovery_script", "no_replace", "spares")

# These have no effect in other jobs.
IDLE_FLAGS = ("slots_per_host", "elastic_timeout", "blacklist_cooldown_range", "no_fork_server")


def is_elastic(words: argparse.Namespace) -> bool:
    """Whether the words ask for a job that outlives its ranks."""
    return any(getattr(words, name) not in (None, False) for name in FLAGS)


def describe_unused(words: argparse.Namespace) -> list[str]:
    """Return what to say of flags that have no effect, where the number of ranks is fixed."""
    if is_elastic(words):
        return []
    return [
        f"--{name.replace('_', '-')} has no effect: without --min-np or --max-np the job ends with"
        " the first rank that fails"
        for name in IDLE_FLAGS
        if getattr(words, name) not in (None, False)
    ]


def first_number(words: argparse.Namespace, placement: Placement | None) -> int:
    """Return how many ranks an elastic job starts with.

    Raises:
        ConfigError: the words do not say, or contradict each other.
    """
    if words.rank_file is not None:
        raise ConfigError("--rankfile fixes the ranks of a job; leave it out with --min-np")
    if words.host_discovery_script is not None and placement is not None:
        raise ConfigError("--hosts and --host-discovery-script say the same; give one of them")
    if words.dry_run:
        raise ConfigError(
            "--dry-run shows a fixed number of ranks; leave out --min-np and --max-np"
        )
    slots = None if placement is None else placement.num_ranks
    wanted = words.num_ranks or slots or words.max_np or words.min_np
    if wanted is None:
        raise ConfigError("how many ranks? give -np, --max-np or --min-np")
    return int(wanted if words.max_np is None else min(wanted, words.max_np))


def to_elastic_options(words: argparse.Namespace, num_ranks: int) -> ElasticOptions:
    """Return how the job outlives its ranks.

    Raises:
        ConfigError: a value makes no sense.
    """
    script = words.host_discovery_script
    if script is not None and "/" not in script and Path(script).exists():
        script = os.path.join(os.curdir, script)  # noqa: PTH118 - Path would drop the dot
    given = {
        "timeout": words.elastic_timeout,
        "cooldown": words.blacklist_cooldown_range and tuple(words.blacklist_cooldown_range),
        "slots_per_host": words.slots_per_host,
        "num_spares": words.spares,
    }
    return ElasticOptions(
        min_ranks=num_ranks if words.min_np is None else words.min_np,
        max_ranks=num_ranks if words.max_np is None else words.max_np,
        reset_limit=words.reset_limit,
        discovery_script=script,
        replaces=not words.no_replace,
        has_fork_server=not words.no_fork_server,
        **{name: value for name, value in given.items() if value is not None},
    )
