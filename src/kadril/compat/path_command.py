"""`kadril compat-path NAME ...`: where the packages of `--compat` are, for other launchers."""

from __future__ import annotations

import argparse
import os
import sys

from kadril.compat import PACKAGES, compat_names, compat_path
from kadril.errors import ConfigError

__all__ = ["main"]

EPILOG = """\
examples:
  PYTHONPATH=$(kadril compat-path distdl) mpirun -n 4 python train.py
      (a script written for DistDL, with the mpi4py that is installed)
  PYTHONPATH=$(kadril compat-path distdl mpi4py) torchrun --nproc-per-node 4 train.py
      (the same without MPI: the ranks get kadril's stand-in for mpi4py)

`kadril run --compat NAME` sets it by itself.
"""


def main(argv: list[str]) -> int:
    """Print the directories in the format of PYTHONPATH, and return an exit code."""
    parser = argparse.ArgumentParser(
        prog="kadril compat-path",
        description="Print the PYTHONPATH by which a program finds kadril under other names.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help=", ".join(PACKAGES))
    try:
        names = compat_names(parser.parse_args(argv).names)
    except ConfigError as error:
        print(f"kadril compat-path: {error}", file=sys.stderr)  # noqa: T201
        return 2
    print(os.pathsep.join(os.fspath(compat_path(name)) for name in names))  # noqa: T201
    return 0
