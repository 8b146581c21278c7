"""DDL's options: `-mode n:4x3 -dump_iter 100`, as a text and as values.

    -mode ALG[:X[xY[xZ[xW]]]]   an algorithm; learners per host x hosts per rack x racks x aisles
    -dump_iter N                print a report after every N all-reduces; 0 prints none
    -rebind_iter N              look for slow learners after every N all-reduces; 0 never looks
    -dev_sync 0|1|2             wait for the accelerator: never, before a call, before and after it
    -dbg_level 0|1|2            say nothing, say what was chosen, say what every call does

A part of the text stands in `init(mode=...)`, another in the variable DDL_OPTIONS; see
`read_options`. Nothing here asks for ranks or hosts.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple

from kadril.errors import ConfigError

__all__ = ["ALGORITHMS", "VARIABLE", "Mode", "Options", "parse_options", "read_options"]

VARIABLE = "DDL_OPTIONS"

# What each letter stood for in DDL, and the way in which it reduces here (see `ways.py`).
ALGORITHMS = {
    "b": ("enhanced NCCL where possible, else rings", "tiers"),
    "n": ("NCCL where possible, else rings", "tiers"),
    "c": ("RCS in every dimension", "tiers"),
    "r": ("rings only", "flat"),
    "m": ("MPI's reduce-scatter and all-gather", "scatter"),
    "p": ("try all, keep the quickest", "explore"),
}
MAX_DIMS = 4
NAMES = ("mode", "dump_iter", "rebind_iter", "dev_sync", "dbg_level")
LEVELS = {"dev_sync", "dbg_level"}  # 0, 1 or 2; the others count


class Mode(NamedTuple):
    """An algorithm, and the sizes of the dimensions of the network.

    Attributes:
        algorithm: one of `ALGORITHMS`.
        dims: learners per host, hosts per rack, racks, ...; empty where they were left out.
    """

    algorithm: str
    dims: tuple[int, ...]

    @property
    def way(self) -> str:
        """Way of reducing: "tiers", "flat", "scatter" or "explore"."""
        return ALGORITHMS[self.algorithm][1]

    @property
    def num_learners(self) -> int:
        """Product of the dimensions."""
        return math.prod(self.dims)

    def __str__(self) -> str:
        return ":".join([self.algorithm, *(["x".join(map(str, self.dims))] if self.dims else [])])


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of one `init()`.

    Attributes:
        mode: None stands for a single ring of all learners, as `r:N`.
        dump_iter: number of all-reduces between reports; 0 for none.
        rebind_iter: number of all-reduces between looks for slow learners; 0 for none.
        dev_sync: whether to wait for the accelerator: 0 never, 1 before, 2 before and after.
        dbg_level: 0, 1 or 2.
    """

    mode: Mode | None = None
    dump_iter: int = 0
    rebind_iter: int = 0
    dev_sync: int = 0
    dbg_level: int = 0

    def __str__(self) -> str:
        given = [(name, getattr(self, name)) for name in NAMES]
        return " ".join(f"-{name} {value}" for name, value in given if value)


def read_options(mode: str | None, environment: Mapping[str, str]) -> tuple[Options, list[str]]:
    """Return the options of `init(mode=...)` and of DDL_OPTIONS together, and notes on them.

    Where both give an option, the argument wins, and a note says so.

    Raises:
        ConfigError: one of the texts cannot be read.
    """
    here = parse_text(mode or "", "mode")
    there = parse_text(environment.get(VARIABLE, ""), VARIABLE)
    remarks = [
        f"-{name} {here[name]} of init() wins over -{name} {value} of {VARIABLE}"
        for name, value in there.items()
        if name in here and here[name] != value
    ]
    return Options(**{**there, **here}), remarks  # type: ignore[arg-type]


def parse_options(text: str) -> Options:
    """Read a text such as "-mode n:4x3 -dump_iter 100".

    Raises:
        ConfigError: an unknown option, or a value that it cannot have.
    """
    return Options(**parse_text(text, "mode"))  # type: ignore[arg-type]


def parse_text(text: str, origin: str) -> dict[str, object]:
    """Return the values of the options that a text names."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{origin}={text!r}: {error}") from None
    values: dict[str, object] = {}
    position = iter(words)
    for word in position:
        name = option_name(word, origin)
        if name in values:
            raise ConfigError(f"{origin}: -{name} is given twice in {text!r}")
        value = next(position, None)
        if value is None or value.startswith("-"):
            raise ConfigError(f"{origin}: -{name} needs a value, as in `{example(name)}`")
        values[name] = (
            parse_mode(value, origin) if name == "mode" else parse_count(name, value, origin)
        )
    return values


def option_name(word: str, origin: str) -> str:
    """Return the name of an option, which may begin with - or with --."""
    name = word.removeprefix("-").removeprefix("-")
    if word.startswith("-") and name in NAMES:
        return name
    if not word.startswith("-"):
        looks_like_mode = re.fullmatch(r"[a-z]?:?\d+(x\d+)*|[bnrmcp]", word)
        hint = f"-mode {word}" if looks_like_mode else f"-{nearest(name)}" if nearest(name) else ""
    else:
        hint = f"-{nearest(name)}" if nearest(name) else ""
    raise ConfigError(
        f"{origin}: {word!r} is not an option of DDL; "
        + (f"did you mean {hint}?" if hint else "options are " + ", ".join(f"-{n}" for n in NAMES))
    )


def nearest(name: str) -> str:
    """Return the option whose name is nearest, or an empty string."""
    plain = name.partition("=")[0].lower().replace("-", "_")
    found = difflib.get_close_matches(plain, NAMES, n=1, cutoff=0.5)
    return found[0] if found else ""


def example(name: str) -> str:
    """Return an option with a value that it can have."""
    return {"mode": "-mode n:4x3", "dump_iter": "-dump_iter 100"}.get(name, f"-{name} 1")


def parse_mode(text: str, origin: str) -> Mode:
    """Read `n:4x3`, `p`."""
    letter, colon, shape = text.partition(":")
    if re.fullmatch(r"\d+(x\d+)*", text):
        raise ConfigError(
            f"{origin}: -mode {text} does not name an algorithm; did you mean -mode n:{text}?"
        )
    if letter not in ALGORITHMS:
        known = ", ".join(f"{key} ({meaning})" for key, (meaning, _) in ALGORITHMS.items())
        lower = letter.lower()
        hint = f" Did you mean -mode {lower}{colon}{shape}?" if lower in ALGORITHMS else ""
        raise ConfigError(
            f"{origin}: -mode {text}: there is no algorithm {letter!r}; they are {known}.{hint}"
        )
    if not colon:
        return Mode(letter, ())
    sizes = shape.split("x")
    is_right = all(re.fullmatch(r"[1-9][0-9]{0,8}", size) for size in sizes)
    if not is_right or len(sizes) > MAX_DIMS:
        raise ConfigError(
            f"{origin}: -mode {text}: after the colon stand one to {MAX_DIMS} whole numbers from 1"
            " with x between them: learners per host x hosts per rack x racks x aisles, as in"
            f" {letter}:4x3"
        )
    return Mode(letter, tuple(int(size) for size in sizes))


def parse_count(name: str, text: str, origin: str) -> int:
    """Read a number of all-reduces, or a level."""
    allowed = "0, 1 or 2" if name in LEVELS else "a whole number from 0"
    if not re.fullmatch(r"[0-2]" if name in LEVELS else r"[0-9]{1,9}", text):
        raise ConfigError(f"{origin}: -{name} must be {allowed}, got {text!r}")
    return int(text)
