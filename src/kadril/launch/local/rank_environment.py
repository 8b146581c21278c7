"""The variables that all ranks of a job get."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import NamedTuple

from kadril import compat, horovod_variables
from kadril.config import IDENTITY_VARIABLES, Config, remarks, variable
from kadril.launch.options import RunOptions

__all__ = ["RankEnvironment", "rank_environment"]


class RankEnvironment(NamedTuple):
    """Environment variables of all ranks, and warnings about them."""

    variables: dict[str, str]  # without those that differ from rank to rank
    of_rank: tuple[dict[str, str], ...]  # those, by rank
    warnings: list[str]


def rank_environment(options: RunOptions, environment: Mapping[str, str]) -> RankEnvironment:
    """Return the launcher's variables, those asked for, and defaults for ranks.

    Raises:
        ConfigError: an option of kadril has a value that makes no sense. It is found here, once,
            and not by every rank.
    """
    # A launcher may itself be a rank of another job: who it is there, its ranks must not know.
    others = IDENTITY_VARIABLES.union(horovod_variables.IDENTITY)
    variables = {name: value for name, value in environment.items() if name not in others}
    variables.update(options.environment)
    variables.update({variable(name): text for name, text in options.config.items()})
    if options.transport is not None:
        variables["KADRIL_TRANSPORT"] = options.transport
    if options.patience is not None:
        variables["KADRIL_PATIENCE"] = str(options.patience)
    said = remarks(variables)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are what was just said
        Config.from_environment(variables)
    told = set(said)
    warned = [*options.notices, *said.values()]
    names = compat.compat_names(options.compat)
    added = compat.job_variables(names, variables)
    told.update(added)
    variables.update(added)
    for name in names:
        shadow = compat.shadow(name, options.command)
        if shadow is not None:
            warned.append(
                f"{shadow} lies beside the program, so that the program imports it and not the"
                f" {name} of kadril; move one of them"
            )
    if told:
        variables["KADRIL_TOLD"] = ",".join(sorted(told))
    # Lines should be seen when they are printed, and a crash in native code should say where.
    variables.setdefault("PYTHONUNBUFFERED", "1")
    variables.setdefault("PYTHONFAULTHANDLER", "1")
    variables["KADRIL_PYTHON"] = sys.executable
    everybody = (tuple(range(options.num_ranks)),)
    hosts = everybody if options.placement is None else options.placement.numbers
    of_rank = tuple(
        {
            variable: value
            for name in names
            for variable, value in compat.rank_variables(name, rank, hosts).items()
        }
        for rank in range(options.num_ranks)
    )
    return RankEnvironment(variables, of_rank, warned)
