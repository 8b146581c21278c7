"""Running jobs of this user on this host.

Ranks of `kadril run` are found by the variables that they were given, and bear the name of their
job. Ranks of other launchers are found by the flight records in their memory, and grouped by the
process that started them:

    bash 70 -+- mpirun 80 -+- rank 0        job mpirun-80
             |             `- rank 1
             `- mpirun 90 --- sh 91 --- rank 0 of 2       job sh-91: no other rank is here
"""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from kadril.observe.flight_record import FlightRecord, RecordError, read_record
from kadril.observe.process_tree import ProcessTree, command_name, read_words
from kadril.world.membership import CONTROL_FD

__all__ = ["FoundRank", "RunningJob", "find_jobs", "find_ranks_below"]

# As the kernel shows what `kadril.transport.recording` makes; a test compares them.
MEMORY_RECORD = "/memfd:kadril-record (deleted)"

# What an mpirun starts, to start the ranks of its host.
DAEMONS = ("hydra_pmi_proxy",)


@dataclasses.dataclass(frozen=True)
class FoundRank:
    """A process that is a rank.

    Attributes:
        job: name of its job.
        rank: number of the rank.
        size: number of ranks of the job.
        pid: its process id.
        record: file of its flight record.
        command: its command line.
        variables: those that it was started with.
    """

    job: str
    rank: int
    size: int
    pid: int
    record: Path
    command: str
    variables: Mapping[str, str]

    @property
    def is_elastic(self) -> bool:
        """Whether its job replaces ranks."""
        return CONTROL_FD in self.variables


@dataclasses.dataclass(frozen=True)
class RunningJob:
    """A job with its ranks on this host, in their order; `size` is that of its start."""

    id: str
    size: int
    ranks: tuple[FoundRank, ...]


def find_jobs() -> list[RunningJob]:
    """Return the jobs of this user that have a rank on this host, by their names."""
    jobs: dict[str, list[FoundRank]] = defaultdict(list)
    tree = ProcessTree()
    for rank in (*find_started_ranks(tree.parents), *find_other_ranks(tree, tree.parents)):
        jobs[rank.job].append(rank)
    return [
        RunningJob(job, ranks[0].size, tuple(sorted(ranks, key=lambda rank: (rank.rank, rank.pid))))
        for job, ranks in sorted(jobs.items())
    ]


def find_ranks_below(root: int) -> list[FoundRank]:
    """Return the ranks that descend from a process, but for those of `kadril run`."""
    tree = ProcessTree()
    return find_other_ranks(tree, tree.descendants(root))


def find_started_ranks(pids: Iterable[int]) -> Iterator[FoundRank]:
    """Yield ranks of `kadril run`; not what they have started, which has their variables too."""
    for process in own_processes(pids):
        # A process may go at any moment of this, and most have no such variables.
        with suppress(OSError, ValueError, KeyError):
            if not leads_its_session(process):
                continue
            variables = own_variables(process)
            yield FoundRank(
                variables["KADRIL_JOB"],
                int(variables["KADRIL_RANK"]),
                int(variables["KADRIL_SIZE"]),
                int(process.name),
                Path(variables["KADRIL_RECORD_FILE"]),
                " ".join(read_words(process / "cmdline")),
                variables,
            )


def find_other_ranks(tree: ProcessTree, pids: Iterable[int]) -> list[FoundRank]:
    """Return the ranks among these processes that have their record in memory."""
    records: dict[int, tuple[Path, FlightRecord]] = {}
    for process in own_processes(pids):
        found = find_memory_record(process)
        if found is not None:
            records[int(process.name)] = found
    launchers = find_launchers(tree, {pid: record for pid, (_, record) in records.items()})
    ranks = []
    for pid, (path, record) in records.items():
        process = Path(f"/proc/{pid}")
        with suppress(OSError):
            command = " ".join(read_words(process / "cmdline"))
            job = f"{command_name(launchers[pid])}-{launchers[pid]}"
            variables = own_variables(process)
            ranks.append(FoundRank(job, record.rank, record.size, pid, path, command, variables))
    return ranks


def find_memory_record(process: Path) -> tuple[Path, FlightRecord] | None:
    """Return the record that a process has in its memory, and the file that shows it."""
    with suppress(OSError):
        for link in (process / "fd").iterdir():
            with suppress(OSError, RecordError):
                if os.readlink(link) != MEMORY_RECORD:  # noqa: PTH115 - the target is no path
                    continue
                record = read_record(link)
                # A child made by fork has the record of its parent, and is no rank.
                if record.pid == int(process.name):
                    return link, record
    return None


def find_launchers(tree: ProcessTree, records: Mapping[int, FlightRecord]) -> dict[int, int]:
    """Return, for each process that is a rank, the one that is taken for its launcher.

    That is the nearest one from which other ranks of one world descend too, or else the parent; and
    the mpirun itself instead of the daemon by which it starts ranks.
    """
    families: dict[int, list[FlightRecord]] = defaultdict(list)
    for pid, record in records.items():
        for ancestor in tree.ancestors(pid):
            families[ancestor].append(record)
    launchers = {}
    for pid in records:
        above = list(tree.ancestors(pid)) or [pid]
        launcher = next((each for each in above if is_one_world(families[each])), above[0])
        while command_name(launcher) in DAEMONS and tree.parents.get(launcher, 0) > 1:
            launcher = tree.parents[launcher]
        launchers[pid] = launcher
    return launchers


def is_one_world(records: Sequence[FlightRecord]) -> bool:
    """Whether several ranks can be of one world: of one size, and each number once."""
    numbers = {record.rank for record in records}
    sizes = {record.size for record in records}
    return len(records) > 1 and len(numbers) == len(records) and len(sizes) == 1


def own_processes(pids: Iterable[int]) -> Iterator[Path]:
    """Yield the directories of those processes that belong to this user."""
    user = os.geteuid()
    for pid in pids:
        process = Path(f"/proc/{pid}")
        with suppress(OSError):
            if process.stat().st_uid == user:
                yield process


def own_variables(process: Path) -> dict[str, str]:
    """Return the variables that a process was started with."""
    words = read_words(process / "environ")
    return dict(word.split("=", 1) for word in words if "=" in word)


def leads_its_session(process: Path) -> bool:
    """Whether a process leads its session, as ranks do."""
    fields = (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    return int(fields.split()[3]) == int(process.name)
