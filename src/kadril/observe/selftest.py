"""The self-test: two real ranks, started as `kadril run` starts them; see `selftest_rank.py`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from kadril.observe.finding import Finding

__all__ = ["run_selftest"]

TOPIC = "self-test"
TIMEOUT = 90.0
LINES_SHOWN = 8

# part: (what it is called, which ranks live to report it)
PARTS = {
    "sum": ("all-reduce", (0, 1)),
    "mismatch": ("mismatch", (0, 1)),
    "death": ("killed rank", (0,)),
}
REMEDY = "set KADRIL_LOG_LEVEL=INFO and try again; then please report it with this page"


def run_selftest() -> Iterator[Finding]:
    """Start two ranks and let them show that they work."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "kadril", "run", "-np", "2", "--no-prefix", "--"]
    process = subprocess.Popen(
        [*command, sys.executable, "-m", "kadril.observe.selftest_rank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.terminate()  # the launcher ends its ranks, and whatever they started
        out, err = process.communicate()
        err += f"\nthe self-test did not end within {TIMEOUT:g} s"
    finally:
        process.kill()
    seconds = time.monotonic() - begin
    answers = [json.loads(line) for line in out.splitlines() if line.startswith('{"part"')]
    failed = False
    for part, (title, ranks) in PARTS.items():
        finding = finding_of(title, [a for a in answers if a["part"] == part], ranks, err)
        failed = finding.state == "bad"
        yield finding
        if failed:
            break
    if not failed:
        yield Finding(TOPIC, "in all", f"{seconds:.1f} s, most of it to start two ranks")


def finding_of(
    title: str, answers: list[dict[str, Any]], ranks: tuple[int, ...], err: str
) -> Finding:
    """Return the finding of one part, from what the ranks said about it."""
    for answer in answers:
        if answer["failed"]:
            return Finding(TOPIC, title, answer["said"], "bad", REMEDY)
    missing = set(ranks) - {answer["rank"] for answer in answers}
    if missing:
        lines = "".join(f"\n    {line}" for line in err.strip().splitlines()[-LINES_SHOWN:])
        names = " and ".join(map(str, sorted(missing)))
        return Finding(TOPIC, title, f"no word from rank {names}{lines}", "bad", REMEDY)
    return Finding(TOPIC, title, min(answers, key=lambda answer: answer["rank"])["said"])
