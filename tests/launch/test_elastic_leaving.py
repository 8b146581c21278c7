"""Ranks that leave an elastic job: where all others notice it, and where not all do."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_job import STEPS_BETWEEN_COMMITS, ends, even_weights, with_script
from launch_playground import SOURCE, Launched, Playground

PROGRAM = Path(__file__).with_name("elastic_program.py")
STEPS = 12


def start(playground: Playground, flags: str, *faults: str, steps: int = STEPS) -> Launched:
    """Start a job whose steps are the same however many ranks there are."""
    notes = playground.directory / "notes"
    notes.mkdir(exist_ok=True)
    words = [PROGRAM, notes, str(steps), str(STEPS_BETWEEN_COMMITS), "even", *faults]
    return playground.start(*flags.split(), *words)


@pytest.mark.parametrize(
    ("flags", "num_leavers"),
    [
        ("-np 1 --min-np 1", 1),
        ("-np 1 --min-np 1 --spares 0", 1),
        ("-np 2 --min-np 1", 2),
        ("-np 2 --min-np 2 --spares 0", 2),
    ],
)
def test_the_last_rank_with_the_state_hands_it_over(
    playground: Playground, flags: str, num_leavers: int
) -> None:
    """Seen once: with a spare process the launcher crashed; without, it ended well after step 6."""
    faults = [*(f"term:4:{rank}" for rank in range(num_leavers)), "await@callback:5:0"]
    result = start(playground, flags, *faults).finish(timeout=60.0)
    said = result.err.decode()
    assert result.code == 0, said
    assert "to take over the state of one that leaves" in said
    assert "failed" not in said
    assert ends(result), said
    assert all(weights == even_weights(STEPS) for *_, weights in ends(result)), said


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_rank_that_is_to_leave_may_come_to_the_end(
    playground: Playground, num_ranks: int
) -> None:
    """SIGTERM after the last commit: nobody hears of it any more, and all is done."""
    faults = [f"term:{STEPS + 1}:{rank}" for rank in range(num_ranks)]
    launched = start(playground, f"-np {num_ranks} --min-np 1", *faults, steps=STEPS + 1)
    result = launched.finish(timeout=60.0)
    assert result.code == 0, result.err.decode()
    assert len(ends(result)) == num_ranks


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_state_that_nobody_may_take_over_ends_the_job(
    playground: Playground, num_ranks: int
) -> None:
    """Seen once: code 0, and half of the steps."""
    faults = [*(f"term:4:{rank}" for rank in range(num_ranks)), "await@callback:5:0"]
    launched = start(playground, f"-np {num_ranks} --min-np 1 --no-replace", *faults)
    result = launched.finish(timeout=60.0)
    assert result.code == 1
    assert not ends(result)
    assert result.report == [
        "all ranks that have the state of the job were sent SIGTERM, and no other one to take it"
        " over can be had"
    ]


# Two ranks of three are left over. One of them only hears that slots went; the other one tries to
# go on with its generation, and notices that it is over.
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


# Rank 1 ends well when the others wait for it.
ENDS_IN_THE_MEETING = """
    import os, signal
    import kadril
    from kadril import rank, size
    from kadril.elastic import ObjectState, run
    from kadril.world import session

    def train(state):
        kadril.barrier()
        if os.environ["KADRIL_GENERATION"] == "0":
            if rank() == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            if rank() == 1:
                session.open_world = lambda *_: os._exit(0)
            while True:
                kadril.barrier()
        print("alone:", size(), flush=True)

    kadril.init()
    run(train)(ObjectState(step=0))
"""


def test_nobody_waits_for_a_rank_that_ended_well(playground: Playground) -> None:
    """Seen once: the others were told of failures only, and waited for two minutes."""
    program = playground.write("ends.py", ENDS_IN_THE_MEETING)
    launched = playground.start("-np", "3", "--min-np", "1", "--no-replace", program)
    result = launched.finish(timeout=40.0)
    assert result.code == 0, result.err.decode()
    assert b"alone: 1" in result.out


# Rank 1 ends well after a step; rank 0 goes on, for one more step or for as long as it may.
ENDS_EARLY = """
    import os, sys, time
    import numpy as np
    import kadril
    from kadril import rank, size
    from kadril.elastic import ObjectState, run

    def train(state):
        while size() == 2 or sys.argv[1] == "long":
            kadril.allreduce(np.zeros(1), name="step")
            state.commit()
            if rank() == 1:
                os._exit(0)
            time.sleep(0.01)
        print("end of", size(), flush=True)

    kadril.init()
    run(train)(ObjectState(step=0))
"""


@pytest.mark.parametrize(("how", "code"), [("short", 0), ("long", 1)])
def test_ranks_that_a_rank_has_left_alone_may_not_train_on(
    playground: Playground, how: str, code: int
) -> None:
    """--min-np held no more once a rank had ended well, however far the end of the others was."""
    program = playground.write("ends.py", ENDS_EARLY)
    flags = ["-np", "2", "--min-np", "2", "--spares", "0", "--elastic-timeout", "3"]
    result = playground.start(*flags, program, how).finish(timeout=60.0)
    assert result.code == code, result.err.decode()
    assert (b"end of 1" in result.out) == (code == 0)
    told = "1 of at least 2 ranks (--min-np) are left, and no more can be had"
    assert (told in result.report) == (code == 1)
