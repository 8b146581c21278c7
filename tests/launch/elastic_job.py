"""Helpers of the tests of elastic jobs: checks of how a job ended, and a discovery script."""

from __future__ import annotations

import re

import numpy as np
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


def even_weights(num_steps: int) -> list[str]:
    """Weights of elastic_program.py after so many even steps, on any number of ranks."""
    weights, velocity = np.zeros(2), np.zeros(2)
    for step in range(num_steps):
        velocity = 0.5 * velocity + np.array([step % 7, 1.0])
        weights = weights - 0.125 * velocity
    return [value.hex() for value in weights.tolist()]


def with_script(playground: Playground, slots: int) -> str:
    """Write a discovery script, and how many slots it lists at first."""
    notes = playground.directory / "notes"
    notes.mkdir(exist_ok=True)
    (notes / "slots").write_text(f"localhost:{slots}\n")
    script = playground.directory / "hosts.sh"
    script.write_text(f"#!/bin/sh\ncat {notes}/slots\n")
    script.chmod(0o755)
    return f"--host-discovery-script {script}"
