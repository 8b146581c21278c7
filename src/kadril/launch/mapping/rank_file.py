"""Rank files of Open MPI: which host a rank is on, and which cores it is bound to.

    # 2 ranks on each of 2 hosts
    rank 0=host1 slot=0:0-9          cores 0 to 9 of socket 0
    rank 1=host1 slot=1:0-3;0:2      cores 0 to 3 of socket 1, and core 2 of socket 0
    rank 2=host2 slot=0-3            cores 0 to 3 of the host, counted over all its sockets
    rank 3=host2 slot=0,2            cores 0 and 2
    rank 4=host2 slot=1:*            all cores of socket 1

Only text and data: whether a host has such cores is asked in `cpu_topology`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from kadril.errors import ConfigError

__all__ = [
    "PlacedRank",
    "Slot",
    "format_rank_file",
    "format_slots",
    "parse_rank_file",
    "parse_slots",
    "read_rank_file",
]

LINE = re.compile(r"rank\s*(?P<rank>[0-9]{1,9})\s*=\s*(?P<host>\S+)\s+slots?\s*=\s*(?P<slots>.*\S)")
SLOTS_FORM = "0:0-9 (socket:cores), 1:0-3;0:2 (of several sockets), 0-3 or 0,2 (cores of the host)"

# More than any host has: a range beyond it is a slip, and would fill the memory.
MAX_CORE = 99_999


@dataclasses.dataclass(frozen=True)
class Slot:
    """Cores of one socket, or of a host.

    Attributes:
        socket: number of the socket from which the cores are counted; None counts over the host.
        cores: their numbers, as they were given; None is all of them.
    """

    socket: int | None
    cores: tuple[int, ...] | None


@dataclasses.dataclass(frozen=True)
class PlacedRank:
    """One line of a rank file.

    Attributes:
        rank: number of the rank.
        host: name or address of its host.
        slots: the cores that it is bound to.
        line: number of the line, from 1; 0 where there is no file.
    """

    rank: int
    host: str
    slots: tuple[Slot, ...]
    line: int = 0


def read_rank_file(path: str) -> list[PlacedRank]:
    """Read a rank file.

    Raises:
        ConfigError: it cannot be read, or see `parse_rank_file`.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"rank file {path}: {error}") from None
    return parse_rank_file(text, path)


def parse_rank_file(text: str, path: str = "") -> list[PlacedRank]:
    """Return what a rank file says, by rank.

    Raises:
        ConfigError: a line has another form, a rank is there twice, or one is missing. The message
            has the number of the line.
    """
    name = f"rank file {path}" if path else "the rank file"
    placed: dict[int, PlacedRank] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        where = f"{name}, line {number}"
        found = parse_line(words, number, where)
        if found.rank in placed:
            raise ConfigError(
                f"{where}: rank {found.rank} is already in line {placed[found.rank].line};"
                " give each rank one line"
            )
        placed[found.rank] = found
    if not placed:
        raise ConfigError(f"{name} names no rank; a line is `rank 0=host1 slot=0:0-9`")
    last = placed[max(placed)]
    missing = [rank for rank in range(min(last.rank, len(placed))) if rank not in placed]
    if missing:
        raise ConfigError(
            f"{name} has no line for rank {missing[0]}, and rank {last.rank} in line {last.line};"
            f" its {len(placed)} ranks must be 0 to {len(placed) - 1}"
        )
    return [placed[rank] for rank in range(len(placed))]


def parse_line(words: str, number: int, where: str) -> PlacedRank:
    """Read one line that is not empty."""
    match = LINE.fullmatch(words)
    if match is None:
        raise ConfigError(f"{where}: expected `rank N=HOST slot=CORES`, got {words!r}")
    host = match["host"]
    if host.startswith("+"):
        raise ConfigError(
            f"{where}: {host!r} counts hosts of a list that Open MPI has; write the host's name"
        )
    try:
        slots = parse_slots(match["slots"])
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return PlacedRank(int(match["rank"]), host, slots, number)


def parse_slots(text: str) -> tuple[Slot, ...]:
    """Read what follows `slot=`.

    Raises:
        ConfigError: it is no list of cores.
    """
    return tuple(parse_slot(part.strip(), text) for part in text.split(";"))


def parse_slot(part: str, text: str) -> Slot:
    """Read the cores of one socket, or of the host."""
    socket, has_socket, cores = part.rpartition(":")
    if has_socket and not re.fullmatch(r"[0-9]{1,5}", socket):
        raise ConfigError(f"slot={text}: {socket!r} is no number of a socket; forms: {SLOTS_FORM}")
    numbers = None if cores == "*" else parse_numbers(cores, text)
    return Slot(int(socket) if has_socket else None, numbers)


def parse_numbers(words: str, text: str) -> tuple[int, ...]:
    """Read `0-3,5` as the numbers in it."""
    numbers: list[int] = []
    for word in words.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", word)
        if match is None:
            raise ConfigError(f"slot={text}: {word!r} is no core; forms: {SLOTS_FORM}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last > MAX_CORE:
            raise ConfigError(f"slot={text}: {word.strip()!r} is no range of cores, low to high")
        numbers += range(first, last + 1)
    return tuple(numbers)


def format_rank_file(ranks: Iterable[PlacedRank]) -> str:
    """Return the text of a rank file, in the form that Open MPI 4 and 5 read."""
    return "".join(
        f"rank {each.rank}={each.host} slot={format_slots(each.slots)}\n" for each in ranks
    )


def format_slots(slots: Sequence[Slot]) -> str:
    """Return what follows `slot=`; numbers that follow each other become a range."""
    texts = []
    for slot in slots:
        cores = "*" if slot.cores is None else format_numbers(slot.cores)
        texts.append(cores if slot.socket is None else f"{slot.socket}:{cores}")
    return ";".join(texts)


def format_numbers(numbers: Sequence[int]) -> str:
    """Return 0-3,5 for 0, 1, 2, 3, 5."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
