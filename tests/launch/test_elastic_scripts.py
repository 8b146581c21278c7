"""Random scripts of faults: elastic jobs end with the parameters of a run without any.

A script is made from a seed, which is printed: a scenario, the kind of the state, ranks and steps
at which something happens. The programs make each step the same however many ranks there are, so
parameters are compared bit by bit, whatever was lost and done again. What was done again may be
what came after one commit, and no more; and after each fault the job has soon done its next step.

    make faults                                            all 200
    ELASTIC_SEED=7 pytest tests/launch/test_elastic_scripts.py -k quick     one script again
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from elastic_job import STEPS_BETWEEN_COMMITS, ends, even_weights, with_script
from launch_playground import Playground

HERE = Path(__file__).parent
NUM_SCRIPTS, NUM_STEPS = 200, 24
SHARDED = ("trainer", "greedy", "optimizer")

# From a fault to the end of the next step, on a machine that does much else; docs/promises.md has
# the times on a quiet one. Most of it is the start of a process, which loads torch.
RECOVERY_SECONDS = {"plain": 15.0}
SLOW_RECOVERY_SECONDS = 60.0
KINDS = [
    SHARDED[number // 4 % len(SHARDED)] if number % 4 == 3 else "plain"
    for number in range(NUM_SCRIPTS)
]


@dataclasses.dataclass(frozen=True)
class Script:
    """Flags of the job, faults, and how many ranks there are at the end."""

    flags: str
    faults: list[str]
    last_size: int
    first_slots: int = 0


def at(chosen: random.Random, action: str, size: int = 3) -> str:
    return f"{action}:{chosen.randrange(1, NUM_STEPS)}:{chosen.randrange(size)}"


def kill_at_any_step(chosen: random.Random) -> Script:
    return Script("-np 3 --min-np 1", [at(chosen, "kill"), at(chosen, "kill")], 3)


def kill_while_others_recover(chosen: random.Random) -> Script:
    """Kill two of the three ranks that have the state, before the new rank has received it."""
    moment = chosen.choice(["kill@reset:1", "kill@sync:1", "kill:-1"])
    faults = [at(chosen, "kill"), f"{moment}:{chosen.randrange(3)}"]
    return Script("-np 3 --min-np 1", faults, 3)


def kill_during_commit(chosen: random.Random) -> Script:
    faults = []
    for _ in range(2):
        step = STEPS_BETWEEN_COMMITS * chosen.randrange(1, NUM_STEPS // STEPS_BETWEEN_COMMITS)
        place = chosen.choice(["commit", "save"])
        faults.append(f"kill@{place}:{step}:{chosen.randrange(3)}")
    return Script("-np 3 --min-np 1", faults, 3)


def shrink_to_one(chosen: random.Random) -> Script:
    """Ranks 0 and then 0 again, or 1 and 2 at once, and so on: no rank is replaced."""
    first, second = sorted(chosen.randrange(1, NUM_STEPS) for _ in range(2))
    if first == second:
        faults = [f"kill:{first}:1", f"kill:{first}:{chosen.choice([0, 2])}"]
    else:
        faults = [f"kill:{first}:{chosen.randrange(3)}", f"kill:{second}:{chosen.randrange(2)}"]
    return Script("-np 3 --min-np 1 --no-replace", faults, 1)


def grow_by_two(chosen: random.Random) -> Script:
    begin = chosen.randrange(1, 8)
    faults = [f"grow:{begin}:0", f"await:{begin + 2}:4", at(chosen, "kill", 2)]
    return Script("--min-np 1 --max-np 4", faults, 4, first_slots=2)


def kill_the_oldest(chosen: random.Random) -> Script:
    faults = [f"kill:{step}:0" for step in chosen.sample(range(1, NUM_STEPS), 2)]
    return Script("-np 2 --min-np 1", faults, 2)


def stop_and_continue(chosen: random.Random) -> Script:
    faults = [at(chosen, "pause"), at(chosen, "pause"), at(chosen, "kill")]
    return Script("-np 3 --min-np 1", faults, 3)


def preempt_all(chosen: random.Random) -> Script:
    """Send SIGTERM to all ranks; the last one hands the state over to others, who become two."""
    step = chosen.randrange(1, NUM_STEPS - 3)
    faults = [f"term:{step}:0", f"term:{step}:1", f"await:{step + 1}:102", f"await:{step + 2}:2"]
    return Script("-np 2 --min-np 1", faults, 2)


def preempt_one_and_kill_one(chosen: random.Random) -> Script:
    step = chosen.randrange(1, NUM_STEPS - 3)
    faults = [f"term:{step}:{chosen.randrange(3)}", f"await:{step + 1}:101"]
    return Script("-np 3 --min-np 3", [*faults, f"kill:{step + 3}:{chosen.randrange(3)}"], 3)


SCENARIOS: tuple[Callable[[random.Random], Script], ...] = (
    kill_at_any_step,
    kill_while_others_recover,
    kill_during_commit,
    shrink_to_one,
    grow_by_two,
    kill_the_oldest,
    stop_and_continue,
    preempt_all,
    preempt_one_and_kill_one,
)


def check_loss(notes: Path) -> None:
    """Make sure that no process went back by more than one commit."""
    for path in notes.glob("steps.*"):
        furthest = generation = 0
        for line in path.read_text().splitlines():
            _, now, step = line.split()
            if int(now) > generation:
                lost = furthest - int(step) + 1
                assert lost <= STEPS_BETWEEN_COMMITS, f"{lost} steps were lost: {path.read_text()}"
            generation, furthest = int(now), max(furthest, int(step))


def check_recovery(notes: Path, script: Script, seconds: float) -> None:
    """Make sure that soon after each death a step was done by those who met again."""
    texts = [path.read_text() for path in notes.glob("steps.*")]
    steps = [line.split() for text in texts for line in text.splitlines()]
    for number, fault in enumerate(script.faults):
        mark = notes / f"fault.{number}"
        if not fault.startswith("kill") or not mark.exists():
            continue  # such as one of a rank that there was not any more
        when, generation = mark.read_text().split()
        later = [float(time) for time, now, _ in steps if int(now) > int(generation)]
        took = min(time for time in later if time > float(when)) - float(when)
        print(f"{fault}: the next step was done after {took:.2f} s")  # noqa: T201
        assert took < seconds, fault


def run_script(
    playground: Playground, script: Script, kind: str, *, has_spare: bool = False
) -> tuple[str, list[str]]:
    """Run a job to its end; return what it said, and the weights that all its ranks have."""
    notes = playground.directory / "notes"
    notes.mkdir(exist_ok=True)
    # A spare process of a sharded one loads torch, and is of no use for most of the job.
    flags = [*script.flags.split(), *([] if kind == "plain" or has_spare else ["--spares", "0"])]
    if script.first_slots:
        flags += with_script(playground, script.first_slots).split()
    program = HERE / ("elastic_program.py" if kind == "plain" else "elastic_sharded_program.py")
    words = [str(notes), str(NUM_STEPS), str(STEPS_BETWEEN_COMMITS)]
    words.append("even" if kind == "plain" else kind)
    env = {"TORCHINDUCTOR_CACHE_DIR": str(playground.directory)}  # torch leaves it behind
    job = playground.start(*flags, str(program), *words, *script.faults, env=env)
    result = job.finish(timeout=280.0)
    said = result.err.decode()
    assert result.code == 0, said
    assert {size for _, size, *_ in ends(result)} == {script.last_size}, said
    assert len(ends(result)) == script.last_size, said
    check_loss(notes)
    check_recovery(notes, script, RECOVERY_SECONDS.get(kind, SLOW_RECOVERY_SECONDS))
    weights = [found for *_, found in ends(result)]
    assert all(found == weights[0] for found in weights), said
    return said, weights[0]


def check_script(playground: Playground, seed: int, number: int, kind: str) -> None:
    scenario = SCENARIOS[number % len(SCENARIOS)]
    script = scenario(random.Random(seed))
    what = f"ELASTIC_SEED={seed}: {kind}, {scenario.__name__}: {script.flags} {script.faults}"
    print(what)  # noqa: T201
    # Half of those with torch run as without flags: with a spare process, and a fork server.
    said, weights = run_script(playground, script, kind, has_spare=number % 8 == 7)
    if kind == "plain":
        assert weights == even_weights(NUM_STEPS), f"{what}\n{said}"
        return
    assert weights == weights_of_one_rank(playground, kind), f"{what}\n{said}"


_alone: dict[str, list[str]] = {}


def weights_of_one_rank(playground: Playground, kind: str) -> list[str]:
    """Return what a rank alone gets, which nothing happens to."""
    if kind not in _alone:
        _, _alone[kind] = run_script(playground, Script("-np 1 --min-np 1", [], 1), kind)
    return _alone[kind]


def a_seed() -> int:
    return int(os.environ.get("ELASTIC_SEED", random.SystemRandom().randrange(1 << 32)))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_quick_scripts(playground: Playground, number: int) -> None:
    """Kill during recovery, during a commit, and down to one rank."""
    check_script(playground, a_seed(), number, "plain")


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "kind"), list(enumerate(KINDS)))
def test_scripts(playground: Playground, number: int, kind: str) -> None:
    """Each scenario in turn; each fourth script has a sharded optimizer."""
    check_script(playground, a_seed(), number, kind)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "has_spare"), [*((kind, False) for kind in (*SHARDED, "torch")), ("trainer", True)]
)
def test_a_sharded_state_is_shared_out_anew(
    playground: Playground, kind: str, has_spare: bool
) -> None:
    """Two ranks of three die at once; somebody takes the place of each."""
    script = Script("-np 3 --min-np 1", ["kill:7:0", "kill:7:2", "kill:14:1"], 3)
    _, weights = run_script(playground, script, kind, has_spare=has_spare)
    assert weights == weights_of_one_rank(playground, kind)
