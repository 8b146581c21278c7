"""Environment and limits of the processes that the kit starts, and the error of a failed start."""

from __future__ import annotations

import os
import sys
import sysconfig

from kadril.errors import KadrilError

__all__ = ["START_TIMEOUT", "PoolError", "worker_environment"]

# Importing torch takes seconds, several times that when all cores do it at once.
START_TIMEOUT = 120.0


class PoolError(KadrilError):
    """The processes of a rank pool could not be started."""


def worker_environment() -> dict[str, str]:
    """Return the session's environment, with the session's import path and one thread per rank."""
    environment = dict(os.environ)
    # What every Python has by itself must keep its place behind what was added to it.
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    added = [os.path.abspath(entry) for entry in sys.path if entry not in own]  # noqa: PTH100
    environment["PYTHONPATH"] = os.pathsep.join(added)
    environment["PYTHONUNBUFFERED"] = "1"
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment[variable] = "1"
    return environment
