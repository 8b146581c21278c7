"""Helpers of the tests of elastic jobs: checks of how a job ended, and a discovery script."""

from __future__ import annotations

import re

from launch_playground import Playground, Result

STEPS_BETWEEN_COMMITS = 3


def ends(result: Result) -> list[tuple[int, int, int, str, list[str]]]:
    """Rank, size, process, resets and weights of all ranks that came to the end."""
    found = re.findall(
        r"end: rank (\d+) of (\d+) pid (\d+) resets (\[.*?\]) weights (.*)", result.out.decode()
    )
    return sorted(
        (int(rank), int(size), int(pid), resets, weights.split())
        for rank, size, pid, resets, weights in found
    )


def with_script(playground: Playground, slots: int) -> str:
    """Write a discovery script, and how many slots it lists at first."""
    notes = playground.directory / "notes"
    notes.mkdir(exist_ok=True)
    (notes / "slots").write_text(f"localhost:{slots}\n")
    script = playground.directory / "hosts.sh"
    script.write_text(f"#!/bin/sh\ncat {notes}/slots\n")
    script.chmod(0o755)
    return f"--host-discovery-script {script}"
