"""A failed check: what all ranks saw, the error that each of them raises, and its dump file.

Entries in the head of a dump file:

    rank, size, host, time     who wrote it, and when
    call, way, against         what was reduced, how, and by what it was checked
    parameter, name, dtype,    the worst parameter that this rank saw, and its worst element
    shape, index, element
    value, reference, error,   of that element; num_wrong counts all elements above the limit
    limit, floor, num_wrong
    begin                      flat index of the first element of the arrays: those of a parameter
                               of more than a million elements are cut around the worst one
    worst_rank, window,        the worst element on any rank: who saw it, the flat indices around
    inputs                     it, and what each rank had given there
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from kadril.ddl.checking import Finding, find_worst, wide
from kadril.ddl.dump_file import write_dump
from kadril.ddl.parameters import ParameterCall
from kadril.errors import CheckError, name_ranks
from kadril.transport.agreement import allgather_json
from kadril.transport.base import Transport

__all__ = ["CheckedCall", "raise_where_wrong"]

MAX_DUMPED = 1 << 20  # elements of an array
NUM_NEIGHBOURS = 4  # on each side of the worst element
MAX_LISTED = 8  # ranks whose inputs are in a message


class CheckedCall(NamedTuple):
    """A call with both of its results.

    Attributes:
        call: what was reduced.
        inputs: what this rank gave.
        values: the results.
        references: the expected results.
        floors: see `checking.py`.
        limit: the largest error that is allowed.
        way: how it was reduced.
        against: how the references were made.
        hosts: name of the host of each rank.
    """

    call: ParameterCall
    inputs: Sequence[torch.Tensor]
    values: Sequence[torch.Tensor]
    references: Sequence[torch.Tensor]
    floors: Sequence[float]
    limit: float
    way: str
    against: str
    hosts: Sequence[str]


class Verdict(NamedTuple):
    """Facts about a failure that all ranks know.

    Attributes:
        rank: that saw the largest error.
        ranks: that saw an error.
        finding: what that rank saw.
        window: flat indices around the worst element.
        inputs: what each rank gave there, as text.
    """

    rank: int
    ranks: list[int]
    finding: Finding
    window: range
    inputs: list[list[str]]


def raise_where_wrong(checked: CheckedCall, transport: Transport, directory: Path) -> None:
    """Compare the results of all ranks; collective.

    Raises:
        CheckError: on every rank, where a rank's results differ. Ranks that saw it themselves have
            written a dump file before.
    """
    mine = find_worst(checked.values, checked.references, checked.floors, checked.limit)
    told = allgather_json(transport, None if mine is None else to_json(mine), "ddl.check")
    findings = {rank: from_json(each) for rank, each in enumerate(told) if each is not None}
    if not findings:
        return
    rank = max(findings, key=lambda each: (findings[each].error, -each))
    worst = findings[rank]
    count = checked.inputs[worst.parameter].numel()
    window = range(
        max(worst.element - NUM_NEIGHBOURS, 0), min(worst.element + NUM_NEIGHBOURS + 1, count)
    )
    given = shown(checked.inputs[worst.parameter], window)
    inputs = allgather_json(transport, given, "ddl.check.inputs")
    verdict = Verdict(rank, sorted(findings), worst, window, inputs)
    path = "" if mine is None else dump(checked, mine, verdict, transport, directory)
    raise make_error(checked, verdict, mine is None, path)


def to_json(finding: Finding) -> list[Any]:
    """A finding as JSON can hold it."""
    pairs = ([number.real, number.imag] for number in (finding.value, finding.reference))
    return [finding.parameter, finding.element, *pairs, finding.error, finding.num_wrong]


def from_json(values: list[Any]) -> Finding:
    """Read a finding from what `to_json` made of it."""
    parameter, element, value, reference, error, num_wrong = values
    return Finding(parameter, element, plain(value), plain(reference), error, num_wrong)


def plain(pair: list[float]) -> complex:
    """A number from its real and imaginary parts; a real one where it is real."""
    return complex(*pair) if pair[1] else pair[0]


def shown(array: torch.Tensor, window: range) -> list[str]:
    """Elements as text."""
    return [show_number(each) for each in wide(array.reshape(-1)[window.start : window.stop])]


def show_number(number: Any) -> str:
    """A number with as many digits as float32 has."""
    return f"{number:.9g}"


def index_of(element: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of an element by its place in memory."""
    return tuple(int(each) for each in np.unravel_index(element, tuple(shape))) if shape else ()


def dump(
    checked: CheckedCall, mine: Finding, verdict: Verdict, transport: Transport, directory: Path
) -> str:
    """Write the dump file of this rank; return its path, or why there is none."""
    parameter = checked.call.parameters[mine.parameter]
    count = checked.inputs[mine.parameter].numel()
    begin = max(min(mine.element - MAX_DUMPED // 2, count - MAX_DUMPED), 0)
    cut = slice(begin, begin + MAX_DUMPED)
    facts = {
        "rank": transport.world_ranks[transport.rank],
        "size": transport.size,
        "host": checked.hosts[transport.rank],
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "call": checked.call.lines()[0],
        "way": checked.way,
        "against": checked.against,
        "parameter": mine.parameter,
        "name": parameter.name,
        "dtype": parameter.dtype,
        "shape": list(parameter.shape),
        "index": list(index_of(mine.element, parameter.shape)),
        "element": mine.element,
        "value": show_number(mine.value),
        "reference": show_number(mine.reference),
        "error": show_number(mine.error),
        "limit": checked.limit,
        "floor": checked.floors[mine.parameter],
        "num_wrong": mine.num_wrong,
        "begin": begin,
        "worst_rank": verdict.rank,
        "worst_parameter": verdict.finding.parameter,
        "window": [verdict.window.start, verdict.window.stop],
        "inputs": {str(rank): each for rank, each in enumerate(verdict.inputs)},
    }
    arrays = {
        name: each[mine.parameter].reshape(-1)[cut]
        for name, each in (
            ("input", checked.inputs),
            ("value", checked.values),
            ("reference", checked.references),
        )
    }
    try:
        return str(write_dump(facts, arrays, directory))
    except OSError as error:
        return f"(not written to {directory}: {error.strerror or error})"


def make_error(checked: CheckedCall, verdict: Verdict, is_right: bool, path: str) -> CheckError:
    """Make the error of this rank."""
    finding = verdict.finding
    parameter = checked.call.parameters[finding.parameter]
    index = index_of(finding.element, parameter.shape)
    place = finding.element - verdict.window.start
    given = [f"{each[place]} by rank {rank}" for rank, each in enumerate(verdict.inputs)]
    more = f" and {len(given) - MAX_LISTED} more" if len(given) > MAX_LISTED else ""
    here = " This rank's own result is right." if is_right else f" Dump: {path}"
    if path and not path.startswith("("):
        here += f" (kadril ddl show {path})"
    noun = "element is" if finding.num_wrong == 1 else "elements are"
    return CheckError(
        f"check of {checked.call.operation} failed on {name_ranks(verdict.ranks)}: parameter"
        f" {finding.parameter} ({parameter}), element {list(index)}, is"
        f" {show_number(finding.value)} by {checked.way} and {show_number(finding.reference)} by"
        f" {checked.against} on rank {verdict.rank}: {describe_error(finding, checked.limit)}."
        f" {finding.num_wrong} {noun} wrong there. Given were {', '.join(given[:MAX_LISTED])}{more}"
        f".{here}",
        rank=verdict.rank,
        parameter=finding.parameter,
        name=parameter.name,
        index=index,
        value=finding.value,
        reference=finding.reference,
        error=finding.error,
        limit=checked.limit,
        path="" if path.startswith("(") else path,
    )


def describe_error(finding: Finding, limit: float) -> str:
    """Describe an error as `a relative error of 0.25, above 0.17`."""
    if np.isfinite(finding.error):
        return f"a relative error of {finding.error:.3g}, above {limit:g}"
    both = (finding.value, finding.reference)
    what = "NaN" if any(np.isnan(each) for each in both) else "an infinite value"
    return f"{what}, which no limit allows"
