"""Ranks that leave an elastic job: where all others notice it, and where not all do."""

from __future__ import annotations

from pathlib import Path

from elastic_job import with_script
from launch_playground import SOURCE, Playground

# Two ranks of three are left over. One of them only hears that slots went; the other one tries to go
# on with its generation, and notices that it is over.
NOTICES_MORE = """
    import sys
    from pathlib import Path
    import numpy as np
    import kadril
    from kadril import init, rank, size
    from kadril.elastic import HostsUpdatedInterrupt, ObjectState, run

    def train(state):
        while size() == 3:
            kadril.allreduce(np.zeros(1), name="step")
            if rank() == 0:
                Path(sys.argv[1], "slots").write_text("localhost:2")
            try:
                state.commit()
            except HostsUpdatedInterrupt:
                if rank() == 1:
                    kadril.barrier()
                raise
        print("together:", kadril.allreduce(np.ones(1), name="after").tolist(), flush=True)

    init()
    run(train)(ObjectState(step=0))
"""


def test_ranks_that_left_for_different_reasons_do_the_same(playground: Playground) -> None:
    """Seen once: one skipped the sync, the other one did not, and their calls did not match."""
    program = playground.write("notices.py", NOTICES_MORE)
    notes = playground.directory / "notes"
    flags = ["--min-np", "2", "--max-np", "3", *with_script(playground, 3).split()]
    env = {"PYTHONPATH": f"{SOURCE}:{Path(__file__).parent}"}
    result = playground.start(*flags, program, notes, env=env).finish(timeout=60.0)
    assert result.code == 0, result.err.decode()
    assert result.out.count(b"together: [2.0]") == 2
