"""The core works without torch, and what needs torch says what to install.

`make test` makes an environment that has numpy and this kadril, and no torch; without it (a plain
`pytest`), torch is hidden from a process of this environment instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kadril

ROOT = Path(kadril.__file__).parent
ENVIRONMENT = Path(__file__).parents[2] / ".venv-numpy"

# Everything else has to load without torch: a new module too, unless it is in one of these.
NEED_TORCH = (
    "kadril.torch",
    "kadril.nn",
    "kadril.ops",
    "kadril.sharded",
    "kadril.ddl",
    "kadril.experiment",
    "kadril.needs_torch",
    "kadril.transport.c10d",
    "kadril.transport.device",
    "kadril.transport.kept_groups",
    "kadril.transport.tensor",
    "kadril.testing.adjoint",
    "kadril.bench.engines.gloo",
)
# Those that users import themselves.
PACKAGES = (
    "kadril.torch",
    "kadril.nn",
    "kadril.ops",
    "kadril.sharded",
    "kadril.ddl",
    "kadril.experiment",
)
# They need another framework, and are tested where it is installed.
NEED_TENSORFLOW = ("kadril.tensorflow", "kadril.keras")

HIDE_TORCH = """
import importlib.machinery, sys

class WithoutTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            return None
        return importlib.machinery.PathFinder.find_spec(name, path, target)

HIDDEN = {"torch"}
sys.meta_path[:] = [WithoutTorch() if each is importlib.machinery.PathFinder else each
                    for each in sys.meta_path]
"""

LOAD_ALL = """
import importlib, traceback
failed = False
for name in {names!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name in {optional!r}:
            continue  # an extra that is not installed
        failed = True
        traceback.print_exc()
assert "torch" not in sys.modules
for name in {packages!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert "pip install 'kadril[torch]'" in str(error), error
    else:
        raise AssertionError(name)
sys.exit(failed)
"""


def core_modules() -> list[str]:
    """All modules but those that need a framework, and the packages that stand in for others."""
    names = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] == "__main__" or any(part.endswith("_path") for part in parts):
            continue
        name = ".".join(["kadril", *(parts[:-1] if parts[-1] == "__init__" else parts)])
        if not any(
            name == each or name.startswith(f"{each}.") for each in NEED_TORCH + NEED_TENSORFLOW
        ):
            names.append(name)
    return names


def python_without_torch() -> Path | None:
    """The Python of the environment that `make test` makes."""
    python = ENVIRONMENT / "bin" / "python"
    return python if python.exists() else None


def run_without_torch(program: str, *arguments: str) -> str:
    """Run a program in an environment without torch, or one that looks like it."""
    python = python_without_torch()
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH",)}
    text = program if python else HIDE_TORCH + program
    done = subprocess.run(
        [str(python or sys.executable), "-c", f"import sys\n{text}", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_core_loads_without_torch() -> None:
    optional = ("mpi4py", "pytest", "matplotlib", "rich", "yaml", "cloudpickle", "_pytest")
    names = core_modules()
    assert "kadril.transport.shm" in names
    run_without_torch(LOAD_ALL.format(names=names, packages=PACKAGES, optional=optional))


# Whoever of both ranks fails, `kadril run` ends with a code.
COLLECTIVES = """
import os, sys
if sys.argv[1] == "tiered":
    os.environ["KADRIL_HOST_LABEL"] = os.environ["KADRIL_RANK"]  # a host each
import ml_dtypes
import numpy as np
import kadril
import kadril.shared_engine as hvd
from kadril.engine import engine_of
from kadril.engine.request import Verb

world = kadril.init()
assert world.transport.kind == sys.argv[1], world.transport.kind
rank, size = kadril.rank(), kadril.size()
assert size == 2
for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
             "float16", "float32", "float64", "complex64", "complex128", ml_dtypes.bfloat16):
    x = np.array([1, 2, 3]).astype(name) * (rank + 1)
    x = x.astype(name)
    total = kadril.allreduce(x)
    assert total.dtype == x.dtype
    assert (total.astype("complex128") == [3, 6, 9]).all(), (name, total)
for name in ("float32", ml_dtypes.bfloat16):
    assert (kadril.allreduce(np.full(3, 2 * rank).astype(name), "mean").astype(float) == 1).all()
try:
    kadril.allreduce(np.zeros(2, ">f4"))
except kadril.UnsupportedError:
    pass
else:
    raise AssertionError("another byte order")

large = np.arange(1 << 18, dtype=np.float64) * (rank + 1)
assert (kadril.allreduce(large) == 3.0 * np.arange(1 << 18)).all()
flag = np.array([rank == 1])
assert kadril.allreduce(flag, "max").all()
assert (kadril.broadcast(np.array([rank + 5]), 1) == 6).all()
assert (kadril.allgather(np.full((rank + 1, 2), rank)) == [[0, 0], [1, 1], [1, 1]]).all()
assert (kadril.reduce_scatter(np.arange(4)) == 2 * np.arange(2 * rank, 2 * rank + 2)).all()
assert (kadril.alltoall(np.array([10 * rank, 10 * rank + 1])) == [rank, 10 + rank]).all()
shared = kadril.shared_empty((2, 3), np.int16)
shared[:] = rank
kadril.allreduce_(shared)
assert (shared == 1).all()
kadril.barrier()

hvd.init()
evens = hvd.add_process_set([0])
assert hvd.get_process_set_ids_and_ranks() == {0: [0, 1], 1: [0]}
conductor = engine_of(kadril.current()).conductor(0)
names = ["one", "two"] if rank == 0 else ["two", "one"]
given = {name: np.full(4, len(name) + rank, dtype=ml_dtypes.bfloat16) for name in names}
waiting = [conductor.submit(Verb.ALLREDUCE, given[name], name=name) for name in names]
for each in waiting:
    conductor.wait(each)
assert all((array.astype(float) == 7).all() for array in given.values())
assert not hvd.gloo_built() and not hvd.nccl_built()
try:
    kadril.shared_empty(3)
except ModuleNotFoundError as error:
    assert "kadril[torch]" in str(error)
assert "torch" not in sys.modules
hvd.shutdown()
"""


@pytest.mark.parametrize("transport", ["shm", "tcp", "tiered"])
def test_collectives_and_the_engine_without_torch(transport: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(COLLECTIVES if python_without_torch() else HIDE_TORCH + COLLECTIVES)
    done = subprocess.run(
        [
            str(python_without_torch() or sys.executable),
            "-m",
            "kadril",
            "run",
            "-np",
            "2",
            str(program),
            transport,
        ],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "KADRIL_TRANSPORT": transport},
    )
    assert done.returncode == 0, done.stdout + done.stderr


# By ctypes: what a C program calls, in a process that has Python already.
C_INTERFACE = """
import ctypes, sys
from kadril import _native
library = ctypes.CDLL(_native.__file__)
assert library.kadril_init() == 0
assert (library.kadril_rank(), library.kadril_size()) == (0, 1)
assert library.horovod_nccl_built() == 0
assert library.kadril_shutdown() == 0
assert "torch" not in sys.modules
"""


def test_the_c_interface_without_torch() -> None:
    run_without_torch(C_INTERFACE)


def test_a_store_of_torch_is_asked_for_by_name() -> None:
    program = """
import kadril
try:
    kadril.init(rank=1, size=2, rendezvous="tcp:127.0.0.1:1")
except ModuleNotFoundError as error:
    assert "kadril[torch]" in str(error)
else:
    raise AssertionError
"""
    run_without_torch(program)
