"""The variables that all ranks of a job get."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import NamedTuple

from kadril.config import IDENTITY_VARIABLES, Config
from kadril.launch.options import RunOptions

__all__ = ["RankEnvironment", "rank_environment"]


class RankEnvironment(NamedTuple):
    """What all ranks get, and what there is to say about it."""

    variables: dict[str, str]  # without those that differ from rank to rank
    warnings: list[str]
    notes: list[str]  # what was decided for the user


def rank_environment(options: RunOptions, environment: Mapping[str, str]) -> RankEnvironment:
    """The launcher's own variables, those asked for, and defaults that suit many ranks on one host.

    Raises:
        ConfigError: an option of kadril has a value that makes no sense. It is found here, once,
            and not by every rank.
    """
    # A launcher may itself be a rank of another job: who it is there, its ranks must not know.
    variables = {
        name: value for name, value in environment.items() if name not in IDENTITY_VARIABLES
    }
    variables.update(options.environment)
    if options.transport is not None:
        variables["KADRIL_TRANSPORT"] = options.transport
    if options.patience is not None:
        variables["KADRIL_PATIENCE"] = str(options.patience)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Config.from_environment(variables)
    notes = []
    # Lines should be seen when they are printed, and a crash in native code should say where.
    variables.setdefault("PYTHONUNBUFFERED", "1")
    variables.setdefault("PYTHONFAULTHANDLER", "1")
    if "OMP_NUM_THREADS" not in variables:
        num_cores = len(os.sched_getaffinity(0))
        num_threads = max(1, num_cores // options.num_ranks)
        variables["OMP_NUM_THREADS"] = str(num_threads)
        notes.append(
            f"OMP_NUM_THREADS={num_threads} ({num_cores} cores, {options.num_ranks} ranks); "
            f"set it yourself to choose another"
        )
    return RankEnvironment(variables, [str(warning.message) for warning in caught], notes)
