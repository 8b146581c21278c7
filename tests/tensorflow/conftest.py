"""Tests with TensorFlow: run by its own environment, and left out where it is not installed.

The session loads none of it (see `tf_stage`): the process that ranks are forked from does, once.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kadril.frameworks import is_installed
from kadril.testing.fork_client import current_fork_client
from kadril.testing.messages import Target

if not is_installed("tensorflow"):
    collect_ignore_glob = ["test_*.py"]

# Compiled once for all sessions of a working copy; removed by `make clean`.
CACHE = Path(__file__).parents[2] / "build" / "tensorflow-cache"


@pytest.fixture(scope="session", autouse=True)
def quiet_tensorflow() -> None:
    """Set what TensorFlow is to know, and import it before ranks are forked.

    An import takes 5 s of CPU time. It starts no threads as long as nothing is computed; the
    process that forks refuses to go on if that changes.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(CACHE)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
    os.environ["KADRIL_TENSORFLOW_OPS"] = "native"
    file = Path(__file__).with_name("tf_imports.py")
    current_fork_client().load(Target(str(file), file.stem, ""))
