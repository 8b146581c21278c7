"""The program of a rank: time all settings in turns, and leave what came out.

python rank.py DIRECTORY --rounds N
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from harness.program import leave_answer, read_words
from harness.setting import time_settings
from settings import WORKLOADS, check_results, make_settings

import kadril
import kadril.torch as hvd
from kadril.bench.engines.gloo import GlooEngine


def main() -> None:
    """Measure all workloads."""
    words = read_words()
    torch.set_num_threads(1)
    gloo = GlooEngine(kadril.init())
    hvd.init()
    answer: dict[str, Any] = {"samples": {}, "notes": {}}
    for workload in WORKLOADS:
        if hvd.rank() == 0:
            print(workload.name, file=sys.stderr, flush=True)
        check_results(workload)
        settings = make_settings(workload)
        answer["samples"][workload.name] = time_settings(
            settings, num_rounds=words.rounds, barrier=hvd.barrier
        )
        for setting in settings:
            if setting.scale != 1:
                num_tensors = workload.num_tensors // workload.gloo_share
                note = f"measured with {num_tensors} tensors, times {setting.scale:g}"
                answer["notes"][f"{workload.name}: {setting.name}"] = note
    leave_answer(words.directory, hvd.rank(), answer)
    hvd.shutdown()
    gloo.close()


if __name__ == "__main__":
    main()
