"""Variables that kadril reads, and the launcher that this process seems to be started by."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterator, Mapping

from kadril.config import Config, known_variables
from kadril.errors import ConfigError
from kadril.observe.finding import Finding
from kadril.world.identity import find_identity

__all__ = ["find_environment"]

TOPIC = "environment"

# Nobody pastes a report into an issue and thinks of what is in it.
SECRET = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|KEY")


def find_environment(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Options that are set, variables that nobody reads, and who this process would be."""
    known = known_variables()
    num_set = 0
    for name in sorted(environment):
        if not name.startswith("KADRIL_"):
            continue
        num_set += 1
        if name in known:
            yield Finding(TOPIC, name, show(name, environment[name]))
        else:
            nearest = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {nearest[0]}?" if nearest else "`kadril env` lists them"
            yield Finding(TOPIC, name, "not an option of kadril", "note", remedy)
    if not num_set:
        yield Finding(TOPIC, "KADRIL_*", "none set")
    if "OMP_NUM_THREADS" in environment:
        yield Finding(TOPIC, "OMP_NUM_THREADS", environment["OMP_NUM_THREADS"])
    yield from find_misreadings(environment)
    yield find_launcher(environment)


def show(name: str, value: str) -> str:
    """Return the value of a variable, unless it may be secret."""
    return "set, not shown" if SECRET.search(name) else value


def find_misreadings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Options with values that make no sense."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unknown variables were found above
        try:
            Config.from_environment(environment)
        except ConfigError as error:
            yield Finding(TOPIC, "options", str(error), "bad", "see `kadril env`")


def find_launcher(environment: Mapping[str, str]) -> Finding:
    """Return who this process would be by the variables of a launcher."""
    try:
        identity = find_identity(environment)
    except ConfigError as error:
        remedy = "start ranks with: kadril run -np 2 ..."
        return Finding(TOPIC, "launcher", str(error), "bad", remedy)
    if identity.source == "no launcher":
        return Finding(TOPIC, "launcher", "none: kadril.init() gives a world of one here")
    size = "an unknown number of" if identity.size is None else identity.size
    return Finding(TOPIC, "launcher", f"{identity.source}: rank {identity.rank} of {size} ranks")
