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


@pytest.mark.parametrize("flag", ["--check-build", pytest.param("-cb", marks=pytest.mark.long)])
def test_the_table_is_true(playground: Playground, flag: str) -> None:
    done = playground.start(flag).finish(timeout=60)
    assert (done.code, done.err) == (0, b"")
    text = done.out.decode()
    assert text.startswith(f"kadril {kadril.__version__}\n")
    found = table(text)
    assert found["PyTorch"] == (True, importlib.metadata.version("torch"))
    assert found["shm"][0]
    for backend in ("gloo", "nccl", "ucc", "xccl"):
        is_there = getattr(dist, f"is_{backend}_available", lambda: False)()
        assert found[f"c10d:{backend}"][0] == is_there
    assert found["horovod"] == (True, "")
    for name in OPERATIONS:
        assert found[name][0] == hasattr(kadril.torch, name)


def test_it_needs_no_number_of_ranks_and_starts_nothing(playground: Playground) -> None:
    done = playground.start("-cb", "-np", "2", "touch", "started").finish(timeout=60)
    assert done.code == 0
    assert not (playground.directory / "started").exists()


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


def test_the_launcher_itself_loads_no_torch(playground: Playground) -> None:
    program = """
        import sys
        from kadril.cli import main
        main(["run", "--check-build"])
        print(sorted({"torch", "numpy", "mpi4py", "kadril._native"} & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, playground.write("check.py", program)],
        env=playground.environment(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.endswith(b"\n[]\n")
