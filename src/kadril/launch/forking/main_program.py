"""Run a program in this interpreter, as if it had just been started with it."""

from __future__ import annotations

import builtins
import importlib.machinery
import os
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

__all__ = ["import_folder", "run_program"]


def import_folder(words: Sequence[str]) -> None:
    """Have imports look first where those of a program do: its folder, or with -m the present one.

    Args:
        words: what follows the interpreter in the command line: a file or `-m module`, arguments.
    """
    if not getattr(sys.flags, "safe_path", False):  # from Python 3.11 on
        # Of a file that is a link, the folder of what it leads to.
        folder = Path.cwd() if words[0] == "-m" else Path(words[0]).resolve().parent
        sys.path[0] = os.fspath(folder)


def run_program(words: Sequence[str]) -> None:
    """Run a program to its end, as `__main__`.

    An exception of the program goes on, and is reported by the interpreter without the frames that
    are below the program here.
    """
    try:
        if words[0] == "-m":
            sys.argv = [words[1], *words[2:]]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            run_file(words[0])
    except BaseException:
        sys.excepthook = partial(report, sys.excepthook)
        raise


def run_file(path: str) -> None:
    """Run a file."""
    module = types.ModuleType("__main__")
    file = module.__file__ = os.fspath(Path(path).absolute())
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", file)
    vars(module)["__builtins__"] = builtins
    sys.modules["__main__"] = module
    # The `__future__` imports of this file are not those of the program.
    code = compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)
    exec(code, vars(module))  # noqa: S102 - it is asked for


def report(
    hook: Callable[[type[BaseException], BaseException, types.TracebackType | None], object],
    kind: type[BaseException],
    error: BaseException,
    traceback: types.TracebackType | None,
) -> None:
    """Report an exception by a hook, with the frames of the program only."""
    below = (str(Path(__file__).parent), runpy.__file__, "<frozen runpy>")
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(below):
        traceback = traceback.tb_next
    hook(kind, error.with_traceback(traceback), traceback)
