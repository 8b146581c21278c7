"""`kadril doctor`: what was found, a test on two real ranks, and what to do about the rest."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Iterator

from kadril.errors import ConfigError
from kadril.observe.environment import find_environment
from kadril.observe.finding import Finding
from kadril.observe.selftest import run_selftest
from kadril.observe.system import find_kernel, find_limits, find_machine
from kadril.observe.transports import find_transports
from kadril.observe.versions import find_versions, probe_all

__all__ = ["examine", "main"]

WAYS = ("shares", "one step", "leaders")  # see `kadril.transport.tiers.tier_plan`

COLORS = {"ok": "32", "note": "33", "bad": "1;31"}


def examine(*, selftest: bool = True) -> Iterator[Finding]:
    """Yield all findings, one after the other as they are made.

    Args:
        selftest: whether to start two ranks and test them.
    """
    probes = probe_all()
    yield from find_versions(probes)
    yield from find_transports(probes)
    yield from find_machine()
    yield from find_limits()
    yield from find_kernel()
    yield from find_environment(os.environ)
    if selftest:
        yield from run_selftest()


def print_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Print findings as they come, under their topics; and return them."""
    printed: list[Finding] = []
    for finding in findings:
        if not printed or printed[-1].topic != finding.topic:
            print(f"{'' if not printed else chr(10)}{finding.topic}")
        mark = paint(finding.state, f"{finding.state:<4}")
        print(f"  {mark}  {finding.name:<25}  {finding.value}", flush=True)
        if finding.remedy:
            print(f"{'':35}{paint(finding.state, '->')} {finding.remedy}", flush=True)
        printed.append(finding)
    return printed


def paint(state: str, text: str) -> str:
    """Color a text by a state, on a terminal."""
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        return f"\033[{COLORS[state]}m{text}\033[0m"
    return text


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of everything after `kadril doctor`."""
    parser = argparse.ArgumentParser(
        prog="kadril doctor",
        description="Say what was found on this machine, and test it with two real ranks.",
        epilog="The exit code is 1 where something essential is missing, or the test fails.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--no-selftest", action="store_true", help="only look, start no ranks")
    plan = parser.add_argument_group("the plan of an all-reduce over several hosts")
    plan.add_argument("--plan", action="store_true", help="print it, and look at nothing")
    plan.add_argument(
        "--hosts", default="2,2", help="ranks per host: 3,2; or the ranks themselves: 0-2-4,1-3"
    )
    plan.add_argument("--bytes", default="64M", help="of the array of each rank: 1K, 64M, ...")
    plan.add_argument("--tiers", default="", help="dimensions with racks: 2x2x2")
    plan.add_argument(
        "--way", choices=("auto", *WAYS), default="auto", help="auto goes by the number of bytes"
    )
    return parser


def print_plan(words: argparse.Namespace) -> int:
    """Print the plan of an all-reduce and return the exit code."""
    # Imported late: the rest of the doctor works without a transport.
    from kadril.observe.plan_report import (
        describe_plan,
        describe_tunings,
        known_tunings,
        read_bytes,
        read_hosts,
    )
    from kadril.transport.tiers.tier_plan import WayLimits, way_for

    try:
        num_bytes = read_bytes(words.bytes)
        hosts = read_hosts(words.hosts)
        known = known_tunings(hosts, words.tiers)
        limits = known[0].limits if known else WayLimits()
        way = way_for(num_bytes, limits) if words.way == "auto" else words.way
        lines = describe_plan(hosts, num_bytes, way, tiers=words.tiers)
        print("\n".join([*lines, "", *describe_tunings(known, num_bytes)]))
    except ConfigError as error:
        print(f"kadril doctor --plan: {error}", file=sys.stderr)
        return 2
    return 0


def main(argv: list[str]) -> int:
    """Run `kadril doctor` with these words and return its exit code."""
    words = make_parser().parse_args(argv)
    if words.plan:
        return print_plan(words)
    findings = examine(selftest=not words.no_selftest)
    if words.json:
        found = list(findings)
        listed = [dataclasses.asdict(finding) for finding in found]
        print(json.dumps({"ok": is_well(found), "findings": listed}, indent=1))
    else:
        found = print_findings(findings)
        num_bad = sum(finding.state == "bad" for finding in found)
        num_notes = sum(finding.state == "note" for finding in found)
        verdict = "all is well" if not num_bad else f"{num_bad} things to repair"
        print(f"\n{verdict}" + (f"; {num_notes} notes" if num_notes else ""))
    return 0 if is_well(found) else 1


def is_well(findings: Iterable[Finding]) -> bool:
    """Whether nothing is bad."""
    return all(finding.state != "bad" for finding in findings)
