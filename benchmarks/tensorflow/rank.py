"""The program of a rank: take turns to time one setting, and leave what came out.

python rank.py DIRECTORY --workload WORKLOAD --setting SETTING
"""

from __future__ import annotations

import argparse
import os

import kadril

TIMEOUT = 3600.0


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--workload", required=True)
    parser.add_argument("--setting", required=True)
    words = parser.parse_args()
    os.environ["KADRIL_TENSORFLOW_OPS"] = (
        "python" if words.setting == "numpy_function" else "native"
    )
    world = kadril.init(stall_warning=TIMEOUT, patience=TIMEOUT)

    import tensorflow as tf
    from harness.program import leave_answer
    from harness.setting import Setting
    from harness.side_by_side import take_own_turns
    from settings import join_strategy, make_call

    import kadril.tensorflow as hvd

    tf.config.threading.set_intra_op_parallelism_threads(1)
    is_peer = words.setting == "MultiWorkerMirroredStrategy"
    strategy = join_strategy(world) if is_peer else None
    hvd.init()
    call = make_call(words.workload, words.setting, strategy)
    is_small = words.workload == "20 small all-reduces"
    num_calls, num_warm_ups = (20, 10) if is_small else (2, 1)
    setting = Setting(
        words.setting, call, num_calls=num_calls, num_samples=2, num_warm_ups=num_warm_ups
    )
    rounds = take_own_turns(words.directory, world, setting)
    leave_answer(words.directory, world.rank, {"rounds": rounds})
    hvd.shutdown()


if __name__ == "__main__":
    main()
