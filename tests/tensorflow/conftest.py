"""Tests with TensorFlow: run by its own environment, and left out where it is not installed.

The session loads none of it (see `tf_stage`): ranks of the standing pool do, once each.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kadril.frameworks import is_installed

if not is_installed("tensorflow"):
    collect_ignore_glob = ["test_*.py"]

# Compiled once for all sessions of a working copy; removed by `make clean`.
CACHE = Path(__file__).parents[2] / "build" / "tensorflow-cache"


@pytest.fixture(scope="session", autouse=True)
def quiet_tensorflow() -> None:
    """Set what the ranks' TensorFlow is to know, before the pool starts them."""
    CACHE.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(CACHE)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
    os.environ["KADRIL_TENSORFLOW_OPS"] = "native"
