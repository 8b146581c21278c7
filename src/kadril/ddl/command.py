"""`kadril ddl show ddl.dump000`: what a checked all-reduce has dumped, around the worst element."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from kadril.ddl.checking import errors_of, wide
from kadril.ddl.dump_file import Dump, read_dump
from kadril.ddl.failure import index_of, show_number

__all__ = ["describe_dump", "main"]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of everything after `kadril ddl`."""
    parser = argparse.ArgumentParser(
        prog="kadril ddl", description="Tools for programs that use kadril.ddl."
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="show")
    show = verbs.add_parser("show", help="print dump files of a failed check")
    show.add_argument("paths", nargs="+", metavar="FILE", help="ddl.dump000, ...")
    show.add_argument("--neighbours", type=int, default=4, metavar="N", help="on each side")
    return parser


def main(argv: list[str]) -> int:
    """Run `kadril ddl` with these words and return its exit code."""
    words = make_parser().parse_args(argv)
    code = 0
    for path in words.paths:
        try:
            text = describe_dump(read_dump(path), max(words.neighbours, 0))
        except KeyError as error:
            print(f"kadril ddl show: the head of {path} has no entry {error}", file=sys.stderr)
            code = 1
        except (OSError, ValueError) as error:
            print(f"kadril ddl show: {error}", file=sys.stderr)
            code = 1
        else:
            print(f"{path}\n{text}")
    return code


def describe_dump(dump: Dump, num_neighbours: int = 4) -> str:
    """Return a dump as text: who, what, and the elements around the worst one."""
    facts = dump.facts
    named = f" {facts['name']!r}" if facts["name"] else ""
    lines = [
        f"  rank {facts['rank']} of {facts['size']} on {facts['host']}, {facts['time']}",
        f"  {facts['call']} by {facts['way']}, checked against {facts['against']}",
        f"  parameter {facts['parameter']}{named}: {facts['dtype']}{facts['shape']},"
        f" {facts['num_wrong']} wrong elements in the list",
        f"  worst element {facts['index']}: {facts['value']} where {facts['reference']} was"
        f" expected, error {facts['error']} > {facts['limit']:g} (floor {facts['floor']:.3g})",
        "",
        *indent(neighbours(dump, num_neighbours)),
        "",
        f"  inputs of all ranks, around the worst element (rank {facts['worst_rank']}, parameter"
        f" {facts['worst_parameter']}):",
        *indent(inputs_table(dump)),
    ]
    return "\n".join(lines)


def neighbours(dump: Dump, num_neighbours: int) -> list[str]:
    """The elements around the worst one that this rank saw."""
    facts, arrays = dump.facts, dump.arrays
    place = facts["element"] - facts["begin"]
    cut = slice(max(place - num_neighbours, 0), place + num_neighbours + 1)
    given, values, references = (
        wide(arrays[name][cut]) for name in ("input", "value", "reference")
    )
    errors = errors_of(values, references, facts["floor"])
    rows: list[tuple[str, ...]] = [("index", "input", "result", "reference", "error", "")]
    for offset, numbers in enumerate(zip(given, values, references, errors, strict=True)):
        element = facts["begin"] + cut.start + offset
        mark = "<-- worst" if element == facts["element"] else ""
        index = str(list(index_of(element, facts["shape"])))
        rows.append((index, *map(show_number, numbers), mark))
    return table(rows)


def inputs_table(dump: Dump) -> list[str]:
    """Return the inputs of each rank around the worst element of all."""
    begin, end = dump.facts["window"]
    rows = [("rank", *(f"[{element}]" for element in range(begin, end)))]
    rows += [(rank, *given) for rank, given in dump.facts["inputs"].items()]
    return table(rows)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows with columns that are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def indent(lines: Sequence[str]) -> list[str]:
    """Lines four columns to the right."""
    return [f"    {line}" for line in lines]
