"""The program of a rank: take turns to time a setting, or look at its memory.

python rank.py DIRECTORY --model MODEL --setting SETTING [--fused]
python rank.py DIRECTORY --look memory --model MODEL --setting SETTING
python rank.py DIRECTORY --look trace --setting SETTING
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from harness.program import leave_answer
from harness.setting import Setting
from harness.side_by_side import take_own_turns
from memory import measure_memory, trace_step
from models import MODELS
from settings import make_step

import kadril

# Of a turn. The first steps find the caches full of what others did meanwhile, which no training
# does: two of them took up to 2 ms longer under torch.compile, which has the most code to run.
NUM_STEPS = 10
NUM_WARM_UPS = 3
TIMEOUT = 1800.0


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--look", choices=("memory", "trace"))
    parser.add_argument("--model", default="transformer")
    parser.add_argument("--setting", default="kadril")
    parser.add_argument("--fused", action="store_true")
    words = parser.parse_args()
    torch.set_num_threads(1)
    # Others run as they would without kadril; and whoever has no turn waits for long.
    keeps = words.setting.startswith("kadril") or words.setting == "alone, heap kept"
    world = kadril.init(keep_heap=keeps, stall_warning=TIMEOUT, patience=TIMEOUT)
    # There is only what a setting needs in its processes.
    gloo = None
    if not words.setting.startswith(("alone", "kadril")):
        from kadril.bench.engines.gloo import GlooEngine

        gloo = GlooEngine(world)
    if words.look == "memory":
        answer = measure_memory(world, words.setting, words.model)
    elif words.look == "trace":
        answer = trace_step(world, words.setting)
    else:
        answer = measure_time(world, words)
    leave_answer(words.directory, world.rank, answer)
    world.transport.barrier()
    kadril.shutdown()
    if gloo is not None:
        gloo.close()


def measure_time(world: kadril.World, words: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a step, by round; or why it cannot be made."""
    try:
        step = make_step(words.setting, MODELS[words.model](world.rank), words.fused)
        step()
    except (ImportError, RuntimeError, TypeError, ValueError) as error:
        return {"missing": f"{type(error).__name__}: {error}"[:200]}
    setting = Setting(words.setting, step, num_calls=NUM_STEPS, num_warm_ups=NUM_WARM_UPS)
    return {"rounds": take_own_turns(words.directory, world, setting)}


if __name__ == "__main__":
    main()
