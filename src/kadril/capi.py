"""The Python side of the C interface in `native/include/kadril.h`.

    python -m kadril.capi --cflags --libs      what a C compiler needs

The native library calls the functions here once per `kadril_init()` and process set; operations do
not come through Python. `kadril run` tells the program which Python to start (KADRIL_PYTHON).
"""

from __future__ import annotations

import argparse
import shlex
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kadril.engine import Engine

__all__ = [
    "add_process_set",
    "cflags",
    "describe",
    "init",
    "libs",
    "remove_process_set",
    "shutdown",
]


def engine() -> Engine:
    """The engine of this process.

    Raises:
        NotInitializedError: there is none.
    """
    from kadril import world
    from kadril.engine import engine_of

    return engine_of(world.current())


def init() -> None:
    """Meet the other ranks and start the engine; collective."""
    from kadril import world
    from kadril.engine import engine_of

    engine_of(world.init())


def shutdown() -> None:
    """Leave the world."""
    from kadril import world

    world.shutdown()


def add_process_set(ranks: Sequence[int]) -> int:
    """Make a process set and give its number; collective."""
    return engine().add_set(ranks)


def remove_process_set(set_id: int) -> None:
    """Remove a process set; collective."""
    engine().remove_set(set_id)


def describe() -> tuple[bool, list[int], list[tuple[int, list[int], object]]]:
    """Whether there is an engine, who this rank is, and (number, ranks, conductor) of each set."""
    from kadril import world

    if not world.is_initialized():
        return False, [], []
    found = engine()
    here = found.world
    facts = [
        here.rank,
        here.size,
        here.local_rank,
        here.local_size,
        here.cross_rank,
        here.cross_size,
    ]
    sets: list[tuple[int, list[int], object]] = []
    for set_id, ranks in found.members.items():
        conductor = found.conductors.get(set_id)
        sets.append((set_id, list(ranks), None if conductor is None else conductor.native))
    return True, facts, sets


def cflags() -> list[str]:
    """Where the header is: installed with the package, or in its sources."""
    from kadril import _native

    package = Path(_native.__file__).parent / "include"
    sources = Path(__file__).resolve().parents[2] / "native" / "include"
    for directory in (package, sources):
        if (directory / "kadril.h").exists():
            return [f"-I{directory}"]
    raise FileNotFoundError(f"kadril.h is neither in {package} nor in {sources}")


def libs() -> list[str]:
    """The native library, and the Python that it runs.

    Raises:
        RuntimeError: this Python was built without a shared library.
    """
    from kadril import _native

    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        raise RuntimeError(
            f"{sys.executable} was built without a shared libpython, so that a C program cannot"
            " run it; use a Python built with --enable-shared"
        )
    native = Path(_native.__file__)
    directory = sysconfig.get_config_var("LIBDIR")
    version = sysconfig.get_config_var("LDVERSION")
    return [
        str(native),
        f"-Wl,-rpath,{native.parent}",
        f"-L{directory}",
        f"-Wl,-rpath,{directory}",
        f"-lpython{version}",
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print flags for a C compiler."""
    parser = argparse.ArgumentParser(prog="python -m kadril.capi", description=main.__doc__)
    parser.add_argument("--cflags", action="store_true", help="flags for compiling")
    parser.add_argument("--libs", action="store_true", help="flags for linking")
    chosen = parser.parse_args(argv)
    flags = [*(cflags() if chosen.cflags else []), *(libs() if chosen.libs else [])]
    sys.stdout.write(shlex.join(flags) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
