"""Fixtures of the launcher's tests: after each of them, nothing may be left."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_playground import Playground

from kadril.testing import HostNetwork, hosts


@pytest.fixture(autouse=True, scope="module")
def _no_signal_is_ignored() -> Iterator[None]:
    # A shell that runs tests in the background has SIGINT ignored, and nohup SIGHUP: launchers
    # would inherit that.
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    old = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    yield
    for signum, handler in old.items():
        signal.signal(signum, handler)


@pytest.fixture
def playground(tmp_path: Path) -> Iterator[Playground]:
    # Paths of pytest are too long for a socket.
    made = Playground(tmp_path, Path(tempfile.mkdtemp(prefix="kl-", dir="/tmp")))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a directory that all hosts of `net` share."""
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture(scope="module")
def net(directory: Path) -> Iterator[HostNetwork]:
    """Make two hosts that reach each other by ssh."""
    with hosts(2, ranks=2, shared=[directory]) as network:
        assert network.ssh_config  # or skip with the reason
        yield network
