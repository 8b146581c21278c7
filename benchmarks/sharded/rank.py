"""The program of a rank: time all settings in turns, or take the memory of one.

python rank.py DIRECTORY --rounds N
python rank.py DIRECTORY --memory SETTING
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from models import MODELS
from settings import SETTINGS, make_step

import kadril
from kadril.bench.engines.gloo import GlooEngine
from kadril.bench.program import leave_answer
from kadril.bench.turns import Setting, take_turns

NUM_STEPS = 3


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--memory", default="")
    words = parser.parse_args()
    torch.set_num_threads(1)
    world = kadril.init()
    gloo = GlooEngine(world)
    answer = (
        measure_memory(world, words.memory) if words.memory else measure_time(world, words.rounds)
    )
    leave_answer(words.directory, world.rank, answer)
    world.transport.barrier()
    kadril.shutdown()
    gloo.close()


def measure_time(world: kadril.World, num_rounds: int) -> dict[str, Any]:
    """Seconds of a step, in all settings."""
    samples, missing = {}, {}
    for name, make in MODELS.items():
        for fused in (False, True):
            workload = f"{name}, {'fused' if fused else 'default'} Adam"
            settings = []
            for setting in SETTINGS:
                try:
                    step = make_step(setting, make(world.rank), fused)
                    step()
                except (RuntimeError, TypeError, ValueError) as error:
                    missing[f"{workload}: {setting}"] = f"{type(error).__name__}: {error}"[:200]
                    continue
                settings.append(Setting(setting, step, num_calls=NUM_STEPS))
            if world.rank == 0:
                print(workload, file=sys.stderr, flush=True)
            samples[workload] = take_turns(
                settings, num_rounds=num_rounds, barrier=world.transport.barrier
            )
    return {"samples": samples, "missing": missing}


def measure_memory(world: kadril.World, setting: str) -> dict[str, Any]:
    """Bytes of memory that are this rank's share after some steps, and before."""
    before = proportional_bytes()
    step = make_step(setting, MODELS["transformer"](world.rank), fused=True)
    for _ in range(NUM_STEPS):
        step()
    world.transport.barrier()
    after = proportional_bytes()
    world.transport.barrier()
    return {"before": before, "after": after}


def proportional_bytes() -> int:
    """Resident memory, with what several processes share counted in parts (PSS)."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not tell the proportional set size")


if __name__ == "__main__":
    main()
