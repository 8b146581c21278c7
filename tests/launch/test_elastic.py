"""Elastic jobs: ranks die, are replaced, come and go, and the result is that of a quiet run."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from elastic_job import STEPS_BETWEEN_COMMITS, ends, with_script
from launch_playground import Playground, Result, eventually

PROGRAM = Path(__file__).with_name("elastic_program.py")
STEPS = 12


def expected(sizes: list[tuple[int, int]]) -> list[str]:
    """Weights, as the program prints them, after so many steps on so many ranks, and so on."""
    weights, velocity, step = np.zeros(2), np.zeros(2), 0
    for size, num_steps in sizes:
        for _ in range(num_steps):
            total = np.array([(step + 1.0) * size * (size + 1) / 2, sum([1.0 / size] * size)])
            velocity = 0.5 * velocity + total
            weights = weights - 0.125 * velocity
            step += 1
    return [value.hex() for value in weights.tolist()]


def job(playground: Playground, flags: str, *faults: str, steps: int = STEPS) -> Result:
    notes = playground.directory / "notes"
    notes.mkdir(exist_ok=True)
    words = [
        *flags.split(),
        str(PROGRAM),
        str(notes),
        str(steps),
        str(STEPS_BETWEEN_COMMITS),
        *faults,
    ]
    return playground.start(*words).finish(timeout=100.0)


def check_end(result: Result, size: int, weights: list[str]) -> None:
    said = result.err.decode()
    assert result.code == 0, said
    assert [(rank, of) for rank, of, *_ in ends(result)] == [(r, size) for r in range(size)], said
    assert all(found == weights for *_, found in ends(result)), said


LONG = [
    pytest.param(fault, marks=pytest.mark.long)
    for fault in ("kill:7:1", "raise:6:2", "exit:1:1", "kill:12:0", "kill:9:2")
]


@pytest.mark.parametrize("fault", ["kill:7:0", *LONG])
def test_a_rank_that_failed_is_replaced(playground: Playground, fault: str) -> None:
    result = job(playground, "-np 3 --min-np 2", fault)
    check_end(result, 3, expected([(3, STEPS)]))
    # Two processes have lived through the change; the third is new.
    assert sorted(resets for _, _, _, resets, _ in ends(result)) == ["[3]", "[3]", "[]"]
    assert ends(result)[0][3] == "[3]"  # rank 0 had the state


def test_a_spare_takes_the_place_of_a_failed_rank(playground: Playground) -> None:
    """The spare waits from the first generation on, and is no rank until it is needed."""
    result = job(playground, "-np 2 --min-np 2 --spares 1", "kill:7:1")
    check_end(result, 2, expected([(2, STEPS)]))


@pytest.mark.long
def test_a_spare_that_waits_for_long_ends_nobody(playground: Playground) -> None:
    """--elastic-timeout is for ranks that do not come to a meeting; a spare has none to come to."""
    result = job(playground, "-np 2 --min-np 2 --spares 1 --elastic-timeout 1", "sleep:7:1")
    check_end(result, 2, expected([(2, STEPS)]))
    assert not any("generation 1" in line for line in result.report)


@pytest.mark.parametrize("lost", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_a_job_shrinks_where_ranks_are_not_replaced(playground: Playground, lost: int) -> None:
    result = job(playground, "-np 3 --min-np 1 --no-replace", f"kill:7:{lost}")
    check_end(result, 2, expected([(3, 6), (2, 6)]))
    assert "generation 1: 2 ranks, 0 of them new" in result.report


@pytest.mark.parametrize("fault", ["kill:4:1", "term:4:1"])
@pytest.mark.parametrize("has_script", [False, True])
def test_no_replace_is_no_replace(playground: Playground, fault: str, has_script: bool) -> None:
    """Seen once: not for a rank that was sent SIGTERM, nor where a script lists the hosts."""
    slots = f"--max-np 3 {with_script(playground, 3)}" if has_script else "-np 3"
    notes = playground.directory / "notes"
    notes.mkdir(exist_ok=True)
    flags = f"{slots} --min-np 1 --no-replace --verbose".split()
    words = [notes, str(STEPS), str(STEPS_BETWEEN_COMMITS), fault, "await:5:101", "hold:8:0"]
    launched = playground.start(*flags, PROGRAM, *words)
    launched.await_output(rb"generation 1: 2 ranks, 0 of them new", timeout=60.0)
    found = re.search(rb"worker 1 is process (\d+)", launched.err)
    assert found is not None
    assert eventually(lambda: int(found[1]) not in playground.processes())
    (notes / "go").touch()
    result = launched.finish(timeout=60.0)
    num_first = 3 if fault.startswith("kill") else 5
    check_end(result, 2, expected([(3, num_first), (2, STEPS - num_first)]))
    assert len([line for line in result.report if "is process" in line]) == 3


@pytest.mark.long
def test_a_job_shrinks_to_one(playground: Playground) -> None:
    result = job(playground, "-np 3 --min-np 1 --no-replace", "kill:4:2", "kill:8:0")
    check_end(result, 1, expected([(3, 3), (2, 3), (1, 6)]))


@pytest.mark.long
def test_two_ranks_die_at_once(playground: Playground) -> None:
    result = job(playground, "-np 3 --min-np 1", "kill:7:0", "kill:7:2")
    check_end(result, 3, expected([(3, STEPS)]))


def test_too_few_are_left(playground: Playground) -> None:
    result = job(playground, "-np 2 --min-np 2 --no-replace", "kill:7:1")
    assert result.code == 137
    assert "1 of at least 2 ranks (--min-np) are left, and no more can be had" in result.report
    assert "rank 1 failed first: killed by signal 9 (SIGKILL)" in result.report


@pytest.mark.long
def test_resets_are_limited(playground: Playground) -> None:
    result = job(playground, "-np 2 --min-np 1 --reset-limit 1", "kill:2:1", "kill:5:1")
    assert result.code == 137
    assert "the job was reset 1 times already (--reset-limit)" in result.report


# Rank 1 is killed when the others wait for it in set-up.
KILLED_IN_SET_UP = """
    import os, signal, sys
    from pathlib import Path
    import numpy as np
    import kadril
    from kadril.elastic import ObjectState, run

    def train(state):
        print("trains", kadril.allreduce(np.ones(1), name="step").tolist(), flush=True)

    kadril.init()
    mark = Path(sys.argv[1], "killed")
    if kadril.rank() == 1 and (sys.argv[2] == "always" or not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), getattr(signal, sys.argv[3]))
    kadril.barrier()
    run(train)(ObjectState(step=0))
"""


@pytest.mark.parametrize(
    ("when", "signal_name", "num_starts", "code"),
    [("once", "SIGKILL", 2, 0), ("always", "SIGKILL", 4, 137), ("once", "SIGSEGV", 1, 139)],
)
def test_ranks_that_wait_in_set_up_are_started_anew(
    playground: Playground, when: str, signal_name: str, num_starts: int, code: int
) -> None:
    """The job ended, though nothing was lost. A crash would come again, and so may a kill."""
    program = playground.write("killed.py", KILLED_IN_SET_UP)
    words = ["-np", "2", "--min-np", "2", "--verbose", program, playground.directory]
    result = playground.start(*words, when, signal_name).finish(timeout=60.0)
    assert result.code == code, result.err.decode()
    assert result.out.count(b"trains [2.0]") == 2 * (code == 0)
    assert result.err.count(b"worker 1 is process") == num_starts


def test_an_error_of_the_program_is_not_tried_again(playground: Playground) -> None:
    result = job(playground, "-np 2 --min-np 1", "mismatch:4:1")
    assert result.code == 1
    assert any("the program cannot go on: MismatchError" in line for line in result.report)
    assert not any("generation 1" in line for line in result.report)


@pytest.mark.long
def test_all_ranks_fail(playground: Playground) -> None:
    result = job(playground, "-np 2 --min-np 1", "raise:4:0", "raise:4:1")
    assert result.code == 1
    assert b"an error of the program" in result.err


@pytest.mark.long
def test_a_worker_that_cannot_start_is_given_up(playground: Playground) -> None:
    """Three times in a row, and the host is set aside; the others go on."""
    (playground.directory / "notes").mkdir()
    (playground.directory / "notes" / "broken").touch()
    result = job(playground, "-np 2 --min-np 1", "kill:7:0")
    check_end(result, 1, expected([(2, 6), (1, 6)]))
    assert any("this host is set aside for 10 s" in line for line in result.report)


def test_a_rank_that_fails_again_and_again_is_replaced_later(playground: Playground) -> None:
    """Nothing bounded how often such a rank was started, since it has the state each time."""
    faults = ["exit:4:1", "exit:5:1", "exit:6:1"]
    result = job(playground, "-np 2 --min-np 2 --spares 0", *faults)
    check_end(result, 2, expected([(2, STEPS)]))
    failed = [line for line in result.report if "failed" in line]
    later = "; it has failed 3 times in a row, and is replaced 1 s later"
    assert failed == [f"rank 1 failed: exit code 3{end}" for end in ("", "", later)]


def test_a_stopped_rank_is_replaced(playground: Playground) -> None:
    result = job(playground, "-np 3 --min-np 2 --patience 1", "stop:7:1")
    check_end(result, 3, expected([(3, STEPS)]))


@pytest.mark.parametrize("who", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_rank_dies_while_the_others_recover(playground: Playground, who: int) -> None:
    """Rank 2 is new then, and does not have the state; rank 0 has it."""
    result = job(playground, "-np 3 --min-np 2", "kill:7:2", f"kill:-1:{who}")
    check_end(result, 3, expected([(3, STEPS)]))


def test_a_job_grows_and_shrinks_with_its_hosts(playground: Playground) -> None:
    """Slots come and go while ranks train; nothing that was done is lost."""
    flags = f"--min-np 2 --max-np 3 {with_script(playground, 2)}"
    result = job(playground, flags, "grow:3:0", "await:5:3", "shrink:7:0", "await:9:2")
    check_end(result, 2, expected([(2, 5), (3, 4), (2, 3)]))
    said = [line for line in result.report if line.startswith("generation")]
    assert said == ["generation 1: 3 ranks, 1 of them new", "generation 2: 2 ranks, 0 of them new"]


@pytest.mark.long
def test_a_list_of_hosts_names_this_one(playground: Playground) -> None:
    result = job(playground, "-H localhost:2 --min-np 1", "kill:4:1")
    check_end(result, 2, expected([(2, STEPS)]))


@pytest.mark.long
def test_a_script_that_lists_too_few_slots(playground: Playground) -> None:
    script = with_script(playground, 1)
    result = job(playground, f"--min-np 2 --max-np 3 --elastic-timeout 2 {script}")
    assert result.code == 1
    assert b"lists 1 slots of this host, and --min-np is 2; waited 2 s" in result.err


@pytest.mark.long
def test_a_signal_leads_to_a_commit_at_the_same_step(playground: Playground) -> None:
    """SIGUSR1 to one rank: all call what was registered, at one step, and go on."""
    result = job(playground, "-np 3 --min-np 2", "usr1:4:1", "await@callback:8:0")
    check_end(result, 3, expected([(3, STEPS)]))
    steps = {path.read_text() for path in (playground.directory / "notes").glob("callback.*")}
    assert len(steps) == 1
    assert len(list((playground.directory / "notes").glob("callback.*"))) == 3


def test_sigterm_to_the_launcher_ends_all_ranks_at_one_step(playground: Playground) -> None:
    result = job(playground, "-np 3 --min-np 2", "launcher-term:4:1", "await:5:101")
    assert result.code == 143
    notes = sorted((playground.directory / "notes").glob("callback.*"))
    assert [path.read_text() for path in notes] == ["5", "5", "5"]


def test_sigterm_to_a_rank_lets_it_leave_without_loss(playground: Playground) -> None:
    """The others keep what they have done since the last commit, and somebody takes its place."""
    result = job(playground, "-np 3 --min-np 3", "term:4:1", "await:5:101")
    check_end(result, 3, expected([(3, STEPS)]))
    assert not any("failed" in line for line in result.report)


SCRIPT = """
    import os, signal, sys
    import torch
    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(1)
    data = torch.arange(96 * 4, dtype=torch.float32).reshape(96, 4) / 400
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(data, shuffle=False)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)

    def on_state_reset():
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * hvd.size()

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 2):
            for index, batch in enumerate(loader):
                optimizer.zero_grad()
                model(batch).pow(2).mean().backward()
                optimizer.step()
                state.batch += 1
                state.sampler.record_batch(index, len(batch))
                first = os.environ["KADRIL_GENERATION"] == "0" and "quiet" not in sys.argv
                if first and (state.epoch, state.batch, hvd.rank()) == (1, 17, 0):
                    os.kill(os.getpid(), signal.SIGKILL)
                if state.batch % 2 == 0:
                    state.commit()
            state.sampler.set_epoch(state.epoch + 1)

    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, batch=0, epoch=0)
    state.register_reset_callbacks([on_state_reset])
    train(state)
    print(hvd.rank(), hvd.size(), [value.hex() for value in model.weight.flatten().tolist()])
"""


@pytest.mark.long
def test_a_script_for_horovod_runs_unmodified(playground: Playground) -> None:
    """Rank 0 is killed in the second epoch; weights are those of a quiet run, in each bit."""
    script = playground.write("train.py", SCRIPT)
    flags = ("--compat", "horovod", "--no-prefix", "-np", "2", "--min-np", "1")
    env = {"TORCHINDUCTOR_CACHE_DIR": str(playground.directory)}  # torch leaves it behind
    quiet = playground.start(*flags, script, "quiet", env=env).finish(timeout=100.0)
    killed = playground.start(*flags, script, env=env).finish(timeout=100.0)
    assert quiet.code == killed.code == 0, killed.err.decode()
    assert "generation 1: 2 ranks, 1 of them new" in killed.report
    lines = sorted(quiet.out.splitlines())
    assert len(lines) == 2
    assert sorted(killed.out.splitlines()) == lines


def kadril(*words: str) -> str:
    """Return the output of a kadril command."""
    command = [sys.executable, "-m", "kadril", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_a_running_job_tells_what_its_ranks_do(playground: Playground) -> None:
    """`kadril ps` and `kadril dump` know the ranks of the present generation, new ones too."""
    notes = playground.directory / "notes"
    notes.mkdir()
    faults = ["kill:4:0", "await:8:7"]  # they will never be seven
    flags = ["-np", "2", "--min-np", "2", "--spares", "0"]
    words = [*flags, str(PROGRAM), str(notes), "12", "3", *faults]
    launched = playground.start(*words)
    launched.await_output(rb"generation 1: 2 ranks, 1 of them new", timeout=60.0)
    shown = rf"job (\w+): 2 of 2 ranks here: .*{re.escape(str(notes))}.*\n((  process .*\n)+)"

    def has_both() -> bool:
        found = re.search(shown, kadril("ps"))
        return found is not None and found[2].count("broadcast") == 2

    assert eventually(has_both, timeout=60.0)
    found = re.search(shown, kadril("ps"))
    assert found is not None
    assert sorted(re.findall(r"rank (\d)", found[2])) == ["0", "1"]
    dumped = kadril("dump", found[1])
    assert "in await_change" in dumped
    launched.send(signal.SIGTERM)
    assert launched.finish(timeout=60.0).code == 143
