"""The program of a rank: time all settings in turns, and leave what came out.

python rank.py DIRECTORY --rounds N
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from settings import Trainer, make_trainers

import kadril
import kadril.torch as hvd
from kadril.bench.engines.gloo import GlooEngine
from kadril.bench.program import leave_answer
from kadril.bench.turns import take_turns


def main() -> None:
    """Measure both workloads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--rounds", type=int, required=True)
    words = parser.parse_args()
    torch.set_num_threads(1)
    gloo = GlooEngine(kadril.init())
    hvd.init()
    answer: dict[str, Any] = {"missing": {}, "samples": {}, "training": {}}
    timeline = str(Path(words.directory) / "timeline.json")
    if not hasattr(hvd, "start_timeline"):
        answer["missing"]["kadril, timeline"] = "kadril.torch has no start_timeline"
        timeline = ""
    for workload in ("mlp", "chain"):
        made = make_trainers(workload, timeline)
        tell = print_line if hvd.rank() == 0 else ignore
        answer["samples"][workload] = take_turns(
            [setting for _, setting in made],
            num_rounds=words.rounds,
            barrier=hvd.barrier,
            tell=lambda text, workload=workload, tell=tell: tell(f"{workload}: {text}"),  # type: ignore[misc]
        )
        answer["training"][workload] = {trainer.name: describe(trainer) for trainer, _ in made}
    leave_answer(words.directory, hvd.rank(), answer)
    hvd.shutdown()
    gloo.close()


def describe(trainer: Trainer) -> dict[str, Any]:
    """What a setting has learnt."""
    losses = [loss.item() for loss in trainer.losses]
    return {"losses": losses, "digest": trainer.digest()}


def print_line(text: str) -> None:
    """Tell what happens."""
    print(text, file=sys.stderr, flush=True)


def ignore(text: str) -> None:
    """Only one rank tells."""


if __name__ == "__main__":
    main()
