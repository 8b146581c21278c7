"""The program of a rank: time all settings in turns, or look at the memory of one.

python rank.py DIRECTORY --rounds N
python rank.py DIRECTORY --look memory --model MODEL --setting SETTING
python rank.py DIRECTORY --look trace --setting SETTING
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from memory import measure_memory, trace_step
from models import MODELS
from settings import SETTINGS, make_step

import kadril
from kadril.bench.program import leave_answer
from kadril.bench.turns import Setting, take_turns

NUM_STEPS = 3


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--look", choices=("memory", "trace"))
    parser.add_argument("--model", default="transformer")
    parser.add_argument("--setting", default="kadril")
    words = parser.parse_args()
    torch.set_num_threads(1)
    world = kadril.init()
    # A process in which memory is looked at has only what its setting needs.
    gloo = None
    if not (words.look and words.setting.startswith("kadril")):
        from kadril.bench.engines.gloo import GlooEngine

        gloo = GlooEngine(world)
    if words.look == "memory":
        answer = measure_memory(world, words.setting, words.model)
    elif words.look == "trace":
        answer = trace_step(world, words.setting)
    else:
        answer = measure_time(world, words.rounds)
    leave_answer(words.directory, world.rank, answer)
    world.transport.barrier()
    kadril.shutdown()
    if gloo is not None:
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
                except (ImportError, RuntimeError, TypeError, ValueError) as error:
                    missing[f"{workload}: {setting}"] = f"{type(error).__name__}: {error}"[:200]
                    continue
                settings.append(Setting(setting, step, num_calls=NUM_STEPS))
            if world.rank == 0:
                print(workload, file=sys.stderr, flush=True)
            samples[workload] = take_turns(
                settings, num_rounds=num_rounds, barrier=world.transport.barrier
            )
    return {"samples": samples, "missing": missing}


if __name__ == "__main__":
    main()
