"""Samples in an elastic job: ranks die, come and go, and each epoch uses every sample once."""

from __future__ import annotations

import pytest
from elastic_job import with_script
from launch_playground import Playground

NUM_SAMPLES, NUM_EPOCHS = 53, 3

# Batches differ from rank to rank and from step to step. What was used is a part of the state, so
# what a lost rank has used since the last commit does not count, and has to be used again.
PROGRAM = f"""
    import itertools, os, signal, sys
    from pathlib import Path
    import kadril.torch as hvd

    notes = Path(sys.argv[1])
    kills = [tuple(map(int, word.split(":"))) for word in sys.argv[2:]]  # step and rank
    sizes = {{7: 3, 25: 2}}  # from these steps on

    def die_once(step):
        mark = notes / f"killed.{{step}}"
        if (step, hvd.rank()) in kills and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def change_size(state):
        wanted = sizes.get(state.step, hvd.size())
        if hvd.rank() == 0 and wanted != hvd.size():
            (notes / "slots").write_text(f"localhost:{{wanted}}\\n")
        while hvd.size() != wanted:
            state.check_host_updates()

    @hvd.elastic.run
    def train(state):
        while state.epoch < {NUM_EPOCHS}:
            mine = iter(state.sampler)
            while True:
                change_size(state)
                batch = list(itertools.islice(mine, (hvd.rank() + state.step) % 3))
                batches = hvd.allgather_object((batch, len(state.sampler) - state.sampler.num_used))
                state.used += [index for indices, _ in batches for index in indices]
                state.sampler.record_batch(state.step, len(batch))
                state.step += 1
                die_once(state.step)
                if state.step % 2 == 0:
                    state.commit()
                if all(len(indices) == left for indices, left in batches):
                    break
            state.epochs.append(sorted(state.used))
            state.epoch, state.used = state.epoch + 1, []
            state.sampler.set_epoch(state.epoch)
            state.commit()

    hvd.init()
    sampler = hvd.elastic.ElasticSampler(range({NUM_SAMPLES}), shuffle=True, seed=3, pad=False)
    state = hvd.elastic.TorchState(sampler=sampler, epoch=0, step=0, used=[], epochs=[])
    train(state)
    whole = [list(range({NUM_SAMPLES}))] * {NUM_EPOCHS}
    print("end", state.step > max(sizes), state.epochs == whole, flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("kills", [(), ("3:1", "11:0", "27:1"), ("1:0", "8:2", "26:0")])
def test_every_sample_counts_once(playground: Playground, kills: tuple[str, ...]) -> None:
    script = playground.write("train.py", PROGRAM)
    flags = f"--min-np 1 --max-np 3 --no-prefix {with_script(playground, 2)}".split()
    env = {"TORCHINDUCTOR_CACHE_DIR": str(playground.directory)}  # torch leaves it behind
    notes = playground.directory / "notes"
    result = playground.start(*flags, script, notes, *kills, env=env).finish(timeout=110.0)
    assert result.code == 0, result.err.decode()
    # How many ranks are left is a matter of time: one that fails again is replaced later.
    ends = [line.split() for line in result.out.decode().splitlines()]
    assert ends, result.err.decode()
    assert all(end == ["end", "True", "True"] for end in ends), result.err.decode()
    assert len(list(notes.glob("killed.*"))) == len(kills)
    generations = [line for line in result.report if line.startswith("generation")]
    assert any(": 3 ranks" in line for line in generations)
    assert len(generations) >= 2 + len(kills)
