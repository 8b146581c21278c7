"""`torch.compile(model, backend="kadril")`: found by its name, and refused by a torch too old."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kadril.errors import UnsupportedError
from kadril.sharded.graph.backend import check_torch

PROGRAM = """
import sys

import torch

assert "kadril" in torch._dynamo.list_backends(exclude_tags=())
assert not any(name.partition(".")[0] == "kadril" for name in sys.modules)
model = torch.nn.Linear(3, 2)
compiled = torch.compile(model, backend="kadril", options={"inner": "eager"})
with torch.no_grad():
    print(torch.equal(compiled(torch.ones(1, 3)), model(torch.ones(1, 3))))
try:
    compiled(torch.ones(1, 3))
except torch._dynamo.exc.BackendCompilerFailed as error:
    print(type(error.inner_exception).__name__, error.inner_exception)
"""


def test_torch_finds_it_by_its_name() -> None:
    """The entry point of the installed package; the second call asks for the trainer by name."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "True"
    assert second.startswith("StateError no trainer knows the 2 parameters")
    assert "kadril.sharded.POS_Trainer(model.named_parameters(), ...)" in second


def test_a_torch_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward graphs were made in the first backward pass then, and run by other code."""
    monkeypatch.delattr("torch.fx.graph._BoxedCodeGen")
    with pytest.raises(UnsupportedError, match=r"need torch 2\.13, and this is 2"):
        check_torch()
