"""Fixtures of the launcher's tests: after each of them, nothing may be left."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_playground import Playground


@pytest.fixture(autouse=True, scope="module")
def _ctrl_c_works() -> Iterator[None]:
    # A shell that runs tests in the background has SIGINT ignored, and launchers would inherit it.
    old = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


@pytest.fixture
def playground(tmp_path: Path) -> Iterator[Playground]:
    # Paths of pytest are too long for a socket.
    made = Playground(tmp_path, Path(tempfile.mkdtemp(prefix="kl-", dir="/tmp")))
    try:
        yield made
    finally:
        made.close()
