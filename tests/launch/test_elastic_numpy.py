"""Elastic jobs of programs without a framework, by `kadril.elastic` alone."""

from __future__ import annotations

import pytest
from launch_playground import Playground

PROGRAM = """
    import os, signal, sys
    import numpy as np
    import kadril

    kadril.init()

    class Weights(kadril.elastic.State):
        "A state of its own kind, which needs no more than the base class."
        def __init__(self):
            super().__init__()
            self.values, self.step, self.saved = np.zeros(3), 0, (np.zeros(3), 0)
        def save(self):
            self.saved = self.values.copy(), self.step
        def restore(self):
            self.values, self.step = self.saved[0].copy(), self.saved[1]
        def sync(self):
            self.values, self.step = self._bcast_object((self.values, self.step))
            self.save()

    @kadril.elastic.run
    def train(state):
        while state.step < 6:
            state.values = state.values + kadril.allreduce(np.full(3, state.step + 1.0), op="sum")
            state.step += 1
            if (state.step, kadril.current().generation, kadril.rank()) == (4, 0, 0):
                os.kill(os.getpid(), signal.SIGKILL)
            state.commit()

    if sys.argv[1] == "values":
        state = kadril.elastic.ObjectState(step=0, values=np.zeros(3))
    else:
        state = Weights()
    train(state)
    assert "kadril.torch" not in sys.modules
    print(kadril.rank(), state.values.tolist(), flush=True)
"""


@pytest.mark.parametrize("kind", ["values", "own"])
def test_a_program_with_numpy_alone(playground: Playground, kind: str) -> None:
    """Such programs had to open an engine, and to bring a broadcast of objects of their own."""
    script = playground.write("train.py", PROGRAM)
    flags = ("-np", "2", "--min-np", "2", "--spares", "0", "--no-prefix")
    result = playground.start(*flags, script, kind).finish(timeout=100.0)
    assert result.code == 0, result.err.decode()
    assert sorted(result.out.decode().splitlines()) == [f"{rank} {[42.0] * 3}" for rank in (0, 1)]
    assert "generation 1: 2 ranks, 1 of them new" in result.report


def test_a_state_that_cannot_be_sent(playground: Playground) -> None:
    """All ranks hear of it, and none waits for what does not come."""
    program = """
        import kadril

        kadril.init()
        state = kadril.elastic.ObjectState(step=0)
        state.step = (number for number in range(3))
        try:
            state.sync()
        except ValueError as error:
            print(error, "because", type(error.__cause__).__name__)
    """
    script = playground.write("train.py", program)
    result = playground.run("-np", "2", "--no-prefix", script)
    assert result.code == 0, result.err.decode()
    said = "rank 0 cannot pickle what is in its state because"
    assert sorted(result.out.decode().splitlines()) == [f"{said} NoneType", f"{said} TypeError"]
