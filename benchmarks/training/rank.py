"""The program of a rank: take turns to time one setting, and leave what came out.

python rank.py DIRECTORY --workload WORKLOAD --setting SETTING
"""

from __future__ import annotations

import argparse

import torch
from harness.program import leave_answer
from harness.setting import Setting
from harness.side_by_side import take_own_turns
from settings import KEEPING, make_trainer

import kadril
import kadril.torch as hvd
from kadril.bench.engines.gloo import GlooEngine

TIMEOUT = 3600.0


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--workload", required=True)
    parser.add_argument("--setting", required=True)
    words = parser.parse_args()
    torch.set_num_threads(1)
    # Others run as they would without kadril; and whoever has no turn waits for long.
    keeps = words.setting in KEEPING
    world = kadril.init(keep_heap=keeps, stall_warning=TIMEOUT, patience=TIMEOUT)
    hvd.init()
    gloo = GlooEngine(world) if words.setting.startswith("DDP") else None
    trainer, step, num_calls = make_trainer(words.workload, words.setting)
    setting = Setting(words.setting, step, num_calls=num_calls)
    rounds = take_own_turns(words.directory, world, setting)
    losses = [loss.item() for loss in trainer.losses]
    answer = {"rounds": rounds, "losses": losses, "digest": trainer.digest()}
    leave_answer(words.directory, world.rank, answer)
    hvd.shutdown()
    if gloo is not None:
        gloo.close()


if __name__ == "__main__":
    main()
