"""Running jobs of this user on this host, found by the variables that their ranks were given."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["FoundRank", "RunningJob", "find_jobs"]


@dataclasses.dataclass(frozen=True)
class FoundRank:
    """A process that `kadril run` has started as a rank.

    Attributes:
        job: name of its job.
        rank: its number.
        size: number of ranks of the job.
        pid: its process.
        record: file of its flight record.
        command: its command line.
    """

    job: str
    rank: int
    size: int
    pid: int
    record: Path
    command: str


@dataclasses.dataclass(frozen=True)
class RunningJob:
    """A job with its ranks on this host, in their order."""

    id: str
    size: int
    ranks: tuple[FoundRank, ...]


def find_jobs() -> list[RunningJob]:
    """Return the jobs of this user that have a rank on this host, by their names."""
    jobs: dict[str, list[FoundRank]] = {}
    for rank in find_ranks():
        jobs.setdefault(rank.job, []).append(rank)
    return [
        RunningJob(job, ranks[0].size, tuple(sorted(ranks, key=lambda rank: rank.rank)))
        for job, ranks in sorted(jobs.items())
    ]


def find_ranks() -> Iterator[FoundRank]:
    """Yield the ranks of this user; not what they have started, which has their variables too."""
    user = os.geteuid()
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        # A process may go at any moment of this, and most are not ours to read.
        with suppress(OSError, ValueError, KeyError):
            if process.stat().st_uid != user or not leads_its_session(process):
                continue
            variables = dict(
                word.split("=", 1)
                for word in read_words(process / "environ")
                if word.startswith("KADRIL_")
            )
            yield FoundRank(
                variables["KADRIL_JOB"],
                int(variables["KADRIL_RANK"]),
                int(variables["KADRIL_SIZE"]),
                int(process.name),
                Path(variables["KADRIL_RECORD_FILE"]),
                " ".join(read_words(process / "cmdline")),
            )


def leads_its_session(process: Path) -> bool:
    """Whether a process leads its session, as ranks do, and does not yet wait to be reaped."""
    fields = (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    state, _, _, session = fields.split()[:4]
    return int(session) == int(process.name) and state not in "ZX"


def read_words(path: Path) -> list[str]:
    """Return the words of a file of /proc that ends each with a zero."""
    return [word.decode(errors="replace") for word in path.read_bytes().split(b"\0") if word]
