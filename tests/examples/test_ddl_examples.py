"""examples/ddl_mnist.py under both launchers, and examples/hybrid.py against one process."""

from __future__ import annotations

import re
import shlex

import pytest
from example import EXAMPLES, launch_example, run_example, run_mpi

WORDS = ("--mode", "-mode n:2x1 -dump_iter 20", "--check", "0.01", "--batch", "50")


def check_training(lines: list[str], way: str, num_epochs: int) -> None:
    """Check what `ddl_mnist.py` prints on two learners with `WORDS`."""
    text = "\n".join(lines)
    epochs = re.findall(rf"epoch \d: loss (\d\.\d+), gradients by {way}", text)
    losses = [float(loss) for loss in epochs]
    assert len(losses) == num_epochs, text
    assert losses == sorted(losses, reverse=True)
    right = re.findall(r"learner (\d) of 2, device (\d) \(\S+\): (\d+\.\d)% right", text)
    assert sorted(each[:2] for each in right) == [("0", "0"), ("1", "1")], text
    assert len({share for *_, share in right}) == 1
    assert float(right[0][2]) > 25  # one in ten by guessing; an epoch has 40 steps
    assert re.search(r"ddl: all-reduces 1 to 20, largest \S+ KiB: ", text), text
    assert "slowest learner" in text


def test_ddl_mnist() -> None:
    check_training(run_example("ddl_mnist.py", *WORDS), "shm all-reduce", 2)


@pytest.mark.long  # `mpirun` starts it every day
def test_ddl_mnist_by_kadril_run() -> None:
    check_training(launch_example("ddl_mnist.py", *WORDS), "shm all-reduce", 2)


def test_ddl_mnist_by_mpirun() -> None:
    """The seed's command, on the MPI that is here; `--mpi` reduces by MPI_Allreduce itself."""
    program = shlex.join([str(EXAMPLES / "ddl_mnist.py"), *WORDS, "--mpi", "--epochs", "1"])
    done = run_mpi(f"mpirun -n 2 python {program}")
    check_training(done.stdout.splitlines(), r"MPI_Allreduce \(Open MPI v\S+\)", 1)


@pytest.mark.parametrize(("num_ranks", "num_hosts"), [(8, 2), (4, 1)])
def test_hybrid(num_ranks: int, num_hosts: int) -> None:
    """The example itself compares with one process, on every rank, and ends with an error."""
    words = ("--hosts", str(num_hosts)) if num_hosts > 1 else ()
    lines = run_example("hybrid.py", *words, num_ranks=num_ranks)
    assert len(lines) == num_ranks + 1
    ranks = [
        re.match(r"rank (\d) on host (\d): images (\d+) to (\d+), rows of 6,", x) for x in lines
    ]
    found = [tuple(map(int, match.groups())) for match in ranks if match]
    num_images = 32 // num_ranks
    assert found == [
        (r, r * num_hosts // num_ranks, r // 2 * num_images, (r // 2 + 1) * num_images - 1)
        for r in range(num_ranks)
    ]
    held = [int(x) for line in lines for x in re.findall(r"momentum of (\d+) parameters", line)]
    (total,) = [int(x) for line in lines for x in re.findall(r"^(\d+) parameters on", line)]
    assert sum(held) == total, "each number of the momentum is on one rank"
    kind = "tiered" if num_hosts > 1 else "shm"
    assert any(f"ranks of {num_hosts} hosts over {kind}:" in line for line in lines)
