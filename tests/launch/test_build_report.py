"""`kadril run --check-build`: what it lists is so."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

import pytest
import torch.distributed as dist
from launch_playground import Playground

import kadril.torch
from kadril.launch.request.build_report import OPERATIONS, Line, framework


def table(text: str) -> dict[str, tuple[bool, str]]:
    found = re.findall(r"^    \[([X ])\] (\S+)(?:  \((.*)\))?$", text, flags=re.MULTILINE)
    return {name: (mark == "X", remark) for mark, name, remark in found}


# Stands for torch where only kadril's part is looked at.
TORCH = """
__version__ = "2"
class cuda:
    is_available = staticmethod(lambda: False)
"""

# One start tells all: torch is loaded in it, which takes seconds.
LAUNCHER = """
    import sys
    from kadril.cli import main
    code = main(["run", *sys.argv[1:]])
    print(sorted({"torch", "numpy", "mpi4py", "kadril._native"} & set(sys.modules)))
    sys.exit(code)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["-cb", "-np", "2", "touch", "started"],
        pytest.param(["--check-build"], marks=pytest.mark.long),
    ],
)
def test_the_table_is_true(playground: Playground, words: list[str]) -> None:
    """The report needs no number of ranks, starts none, and the launcher itself loads no torch."""
    done = subprocess.run(
        [sys.executable, playground.write("check.py", LAUNCHER), *words],
        env=playground.environment(),
        cwd=playground.directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    text = done.stdout
    assert text.startswith(f"kadril {kadril.__version__}\n")
    assert text.endswith("\n[]\n")
    assert not (playground.directory / "started").exists()
    found = table(text)
    assert found["PyTorch"] == (True, importlib.metadata.version("torch"))
    assert found["shm"][0]
    for backend in ("gloo", "nccl", "ucc", "xccl"):
        is_there = getattr(dist, f"is_{backend}_available", lambda: False)()
        assert found[f"c10d:{backend}"][0] == is_there
    assert found["horovod"] == (True, "")
    for name in OPERATIONS:
        assert found[name][0] == hasattr(kadril.torch, name)


def test_operations_that_cannot_be_loaded_have_a_reason(playground: Playground) -> None:
    """Torch is there, and lacks what kadril's part of it needs."""
    torch = playground.directory / "old" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text(TORCH)
    (torch / "distributed.py").write_text("def is_available(): return False\n")
    path = f"{torch.parent}:{playground.environment()['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "kadril", "run", "--check-build"],
        env=playground.environment({"PYTHONPATH": path}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = table(done.stdout)
    assert found["PyTorch"] == (True, importlib.metadata.version("torch"))
    is_there, reason = found["allreduce"]
    assert not is_there
    assert reason.startswith("ModuleNotFoundError: No module named 'torch.")


def test_what_is_missing_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"mxnet": "1.9", "torch": "2.13"}
    monkeypatch.setattr("kadril.launch.request.build_report.version_of", versions.get)
    assert framework("MXNet", "mxnet", "") == Line(
        "Frameworks", "MXNet", False, "1.9 is installed; there is no kadril.mxnet"
    )
    assert framework("PyTorch", "torch", "no libc10.so") == Line(
        "Frameworks", "PyTorch", False, "2.13 cannot be loaded: no libc10.so"
    )
    assert framework("JAX", "jax", "") == Line("Frameworks", "JAX", False, "not installed")
