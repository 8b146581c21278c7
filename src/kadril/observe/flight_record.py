"""Flight record of a rank: what it calls and has called last, read from the file that it writes.

The file may be memory of the rank, which /proc shows (`kadril.transport.recording`); its stacks
follow the record then. The rank writes by plain stores (`native/recorder.h`), so a reader sees a
record also while the rank hangs, is stopped, or after it was killed, if the file outlives it; and
it must expect anything while a record changes.
"""

from __future__ import annotations

import dataclasses
import struct
import time
from pathlib import Path

__all__ = [
    "CallRecord",
    "FlightRecord",
    "RecordError",
    "describe_last_call",
    "parse_record",
    "read_record",
]

MAGIC = b"kdrecod\0"
LAYOUT = 1
HEADER = struct.Struct("<8sIIiiiiQ")
WAITS_AT, WAIT_BYTES, NUM_WAITS = 2048, 512, 4
RECORDS_AT = 4096
RECORD = struct.Struct("<QQQQQIIIi64s8x")
MAX_RECORDS = 4096

# By their codes in the native core; a test compares them.
OPERATIONS = (
    "barrier",
    "allreduce",
    "reduce",
    "broadcast",
    "allgatherv",
    "reduce_scatterv",
    "alltoallv",
    "exchange",
)


class RecordError(ValueError):
    """A file is no flight record, or one of another version of kadril."""


@dataclasses.dataclass(frozen=True)
class CallRecord:
    """One collective of a rank.

    Attributes:
        number: among all calls of the rank, from 1.
        operation: the collective.
        count: elements, where all ranks give as many; 0 where that is not known.
        dtype: its code in the native core.
        op: code of the reduction.
        root: rank within the group, or -1.
        name: as the caller gave it.
        group: equal for all calls of one group of this rank.
        num_members: ranks of the group.
        sequence: number of the call in its group; 0 for a named request, which has none.
        begin: seconds of the monotonic clock.
        end: the same, or None while the call is under way.
    """

    number: int
    operation: str
    count: int
    dtype: int
    op: int
    root: int
    name: str
    group: int
    num_members: int
    sequence: int
    begin: float
    end: float | None

    @property
    def place(self) -> str:
        """Return where it belongs: "call 3 of a group of 2"."""
        if not self.sequence:
            return f"request of a process set of {self.num_members}"
        return f"call {self.sequence} of a group of {self.num_members}"

    @property
    def text(self) -> str:
        """Return the call as people read it: "allreduce(1000 elements, name='grad')"."""
        parts = [f"{self.count} elements"] * (self.count > 0)
        parts += [f"root={self.root}"] * (self.root >= 0)
        parts += [f"name='{self.name}'"] * bool(self.name)
        return f"{self.operation}({', '.join(parts)})"


@dataclasses.dataclass(frozen=True)
class FlightRecord:
    """Present and last calls of a rank.

    Attributes:
        pid: its process id.
        rank: number of the rank.
        size: number of ranks of its world.
        stack_signal: the signal at which it writes its stacks to a file, or 0.
        num_begun: calls that it has begun.
        waits: (since when, in seconds of the monotonic clock; what it waits for), of each thread
            that has waited for a while.
        calls: the last ones, the oldest first.
    """

    pid: int
    rank: int
    size: int
    stack_signal: int
    num_begun: int
    waits: tuple[tuple[float, str], ...]
    calls: tuple[CallRecord, ...]

    @property
    def under_way(self) -> tuple[CallRecord, ...]:
        """Return the calls that have not ended."""
        return tuple(call for call in self.calls if call.end is None)

    @property
    def waiting_since(self) -> float | None:
        """Return when the oldest wait began, or the oldest call under way; None where none is."""
        begins = [since for since, _ in self.waits] + [call.begin for call in self.under_way]
        return min(begins, default=None)


def read_record(path: Path) -> FlightRecord:
    """Read the record of a rank.

    Raises:
        RecordError: the file holds no record, or not yet.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return parse_record(file.read(RECORDS_AT + MAX_RECORDS * RECORD.size))


def parse_record(data: bytes) -> FlightRecord:
    """Return the record that a file holds.

    Raises:
        RecordError: it holds none.
    """
    if len(data) < RECORDS_AT:
        raise RecordError(f"{len(data)} bytes are too few for a flight record")
    magic, layout, num_records, pid, rank, size, signum, begun = HEADER.unpack_from(data)
    if magic != MAGIC or layout != LAYOUT:
        raise RecordError("no flight record of this version of kadril")
    if num_records > MAX_RECORDS or len(data) < RECORDS_AT + num_records * RECORD.size:
        raise RecordError(f"a flight record of {num_records} calls does not fit in its file")
    if pid <= 0 or not 0 <= rank < size or not 0 <= signum <= 64:
        raise RecordError("the header of the flight record makes no sense")
    calls = (
        parse_call(data, RECORDS_AT + index * RECORD.size, begun) for index in range(num_records)
    )
    known = sorted((call for call in calls if call is not None), key=lambda call: call.number)
    return FlightRecord(pid, rank, size, signum, begun, parse_waits(data), tuple(known))


def describe_last_call(record: FlightRecord) -> str:
    """Return in words how far a rank came that is no more; empty where it had made no call.

    Its stacks went with it. What it called last says where in the program to look.
    """
    waits = [text for _, text in record.waits]
    if waits:
        return f"it was waiting in {waits[0]}"
    if not record.calls:
        return ""
    last = record.calls[-1]
    which = "it was in" if last.end is None else "its last collective, which had ended, was"
    return f"{which} {last.text}, call {record.num_begun} of the rank"


def parse_waits(data: bytes) -> tuple[tuple[float, str], ...]:
    """Return the waits of a record."""
    waits = []
    for index in range(NUM_WAITS):
        offset = WAITS_AT + index * WAIT_BYTES
        (since,) = struct.unpack_from("<Q", data, offset)
        if since:
            waits.append((since / 1e9, as_text(data[offset + 8 : offset + WAIT_BYTES])))
    return tuple(waits)


def parse_call(data: bytes, offset: int, num_begun: int) -> CallRecord | None:
    """Return one call of a record, or None where there is none or it is just being written."""
    fields = RECORD.unpack_from(data, offset)
    number, group, begin, end, count, sequence, num_members, codes, root, name = fields
    kind = codes & 0xFF
    if not 0 < number <= num_begun or kind >= len(OPERATIONS):
        return None
    return CallRecord(
        number,
        OPERATIONS[kind],
        count,
        codes >> 8 & 0xFF,
        codes >> 16 & 0xFF,
        root,
        as_text(name),
        group,
        num_members,
        sequence,
        begin / 1e9,
        end / 1e9 if end else None,
    )


def as_text(field: bytes) -> str:
    """Return what is before the first zero, without what would disturb a terminal."""
    text = field.partition(b"\0")[0].decode(errors="replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def seconds_ago(moment: float) -> float:
    """Seconds since a moment of the monotonic clock, which all processes of a host share."""
    return max(0.0, time.monotonic() - moment)
