"""The program of a rank: the same steps with the timeline on and off, in turns.

python timeline_rank.py DIRECTORY --rounds N

In the same processes, unlike other settings: what it costs is less than two processes differ.
"""

from __future__ import annotations

from pathlib import Path

import torch
from harness.program import leave_answer, read_words
from harness.setting import Setting, time_settings
from settings import KADRIL, make_trainer

import kadril
import kadril.torch as hvd


def main() -> None:
    """Measure."""
    words = read_words()
    torch.set_num_threads(1)
    world = kadril.init()
    hvd.init()
    path = str(Path(words.directory) / "timeline.json")
    _, step, num_calls = make_trainer("mlp", KADRIL)
    off = Setting("off", step, num_calls=num_calls)
    on = Setting(
        "on",
        step,
        num_calls=num_calls,
        enter=lambda: hvd.start_timeline(path),
        leave=hvd.stop_timeline,
    )
    samples = time_settings((off, on), num_rounds=words.rounds, barrier=world.transport.barrier)
    leave_answer(words.directory, world.rank, {"samples": {"timeline": samples}})
    hvd.shutdown()


if __name__ == "__main__":
    main()
