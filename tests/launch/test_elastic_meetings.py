"""Elastic jobs of which a rank dies while the ranks of a generation meet, over each transport."""

from __future__ import annotations

import pytest
from launch_playground import Playground

# The first process that replaces a rank dies when the world is open, and engines are being opened.
PROGRAM = """
    import os, signal, sys
    from pathlib import Path
    import numpy as np
    import kadril
    from kadril.shared_engine import basics

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    has_died = Path(sys.argv[1])
    kadril.init()
    if kadril.current().generation == 1 and not has_died.exists():
        has_died.touch()
        if kadril.current().transport.shared_memory is not None:
            die()
        # When the ranks have agreed on a group for the engine, and are about to connect it.
        kadril.current().transport._subgroup = lambda *_: die()
    basics.init()

    @kadril.elastic.run
    def train(state):
        while state.step < 6:
            state.total += kadril.allreduce(np.full(3, state.step + 1.0), op="sum")
            state.step += 1
            if (state.step, kadril.current().generation, kadril.rank()) == (4, 0, 1):
                die()
            state.commit()

    state = kadril.elastic.ObjectState(step=0, total=np.zeros(3))
    train(state)
    print(kadril.rank(), kadril.current().generation, state.total.tolist(), flush=True)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp", pytest.param("c10d", marks=pytest.mark.long)])
def test_a_rank_dies_while_engines_are_opened(playground: Playground, transport: str) -> None:
    """Over a network survivors ended: the error of that meeting was not one that they retried."""
    script = playground.write("train.py", PROGRAM)
    flags = ["-np", "3", "--min-np", "3", "--spares", "0", "--no-fork-server", "--no-prefix"]
    env = {
        "KADRIL_TRANSPORT": transport,
        "KADRIL_CONNECT_TIMEOUT": "10",
        "TORCHINDUCTOR_CACHE_DIR": str(playground.directory),  # torch leaves it behind
    }
    mark = playground.directory / "has_died"
    result = playground.start(*flags, script, mark, env=env).finish(timeout=100.0)
    assert result.code == 0, result.err.decode()
    expected = [f"{rank} 2 {[63.0] * 3}" for rank in range(3)]
    assert sorted(result.out.decode().splitlines()) == expected, result.err.decode()
