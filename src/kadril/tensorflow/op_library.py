"""The op library: asynchronous kernels, compiled once against the TensorFlow that is installed.

A wheel of it would be bound to one minor version of TensorFlow, whose C++ interface moves with each
of them. So `kernels/kernels.cc` is compiled at the first import, which takes about 15 s, and kept
in `~/.cache/kadril/tensorflow` (or below XDG_CACHE_HOME), a directory that only its owner can write
to, under a name made of all that it depends on. Of several ranks one compiles, and the others wait.

KADRIL_TENSORFLOW_OPS=python does without it, and =native insists on it; see `python_ops`.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

from kadril import _native
from kadril.shared_engine.headers import header_directory
from kadril.tensorflow.framework import tf

__all__ = ["OpLibraryError", "cache_directory", "load"]

SOURCE = Path(__file__).parent / "kernels" / "kernels.cc"
CHOICES = ("auto", "native", "python")
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-DNDEBUG")


class OpLibraryError(ImportError):
    """The op library could not be compiled or loaded."""


def load() -> Any:
    """The module of the ops, or None where only Python can carry them, after a warning.

    Raises:
        OpLibraryError: KADRIL_TENSORFLOW_OPS=native, and it cannot be had.
        ValueError: KADRIL_TENSORFLOW_OPS is none of the choices.
    """
    choice = os.environ.get("KADRIL_TENSORFLOW_OPS", "auto")
    if choice not in CHOICES:
        raise ValueError(f"KADRIL_TENSORFLOW_OPS must be one of {CHOICES}, got {choice!r}")
    if choice == "python":
        return None
    try:
        return connect(find_or_compile())
    except (OpLibraryError, OSError, tf.errors.NotFoundError) as error:
        if choice == "native":
            raise OpLibraryError(str(error)) from error
        warnings.warn(
            f"kadril.tensorflow: collectives are carried by Python, since {error}. They work in"
            " eager mode and in tf.function, one at a time and in program order; not in TF1 graphs."
            " Install a C++17 compiler (apt install g++) to have them all at once",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def connect(path: Path) -> Any:
    """Load the library into TensorFlow, and give it the functions of kadril's core."""
    module = tf.load_op_library(str(path))
    table = ctypes.CDLL(_native.__file__).kadril_function_table
    table.restype = ctypes.c_void_p
    take = ctypes.CDLL(str(path)).kadril_tensorflow_connect
    take.argtypes = [ctypes.c_void_p]
    take(table())
    return module


def find_or_compile() -> Path:
    """The library of this TensorFlow, this compiler and this source, compiled where there is none.

    Raises:
        OpLibraryError: there is no compiler, or it fails.
    """
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise OpLibraryError(f"there is no C++ compiler (looked for {', '.join(COMPILERS)})")
    directory = cache_directory()
    library = directory / f"ops-{fingerprint(compiler)}.so"
    if library.exists():
        return library
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when it is closed, also by a crash
        if not library.exists():
            compile_library(compiler, library)
    return library


def fingerprint(compiler: str) -> str:
    """A name for all that the library depends on."""
    try:
        version = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise OpLibraryError(f"the compiler {compiler} does not run: {error}") from error
    parts = [tf.__version__, tf.version.GIT_VERSION, version, *tf_flags()]
    parts += [SOURCE.read_text(), header_directory().joinpath("kadril.h").read_text()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def tf_flags() -> list[str]:
    """Flags of TensorFlow, with its headers as system headers: they give a hundred warnings."""
    flags = []
    for flag in tf.sysconfig.get_compile_flags():
        flags += ["-isystem", flag.removeprefix("-I")] if flag.startswith("-I") else [flag]
    return [*flags, *tf.sysconfig.get_link_flags(), f"-Wl,-rpath,{tf.sysconfig.get_lib()}"]


def compile_library(compiler: str, library: Path) -> None:
    """Compile, and put it in its place in one move; with the lock of its directory."""
    for left in library.parent.glob("ops-*.tmp"):
        left.unlink(missing_ok=True)  # of a process that was killed
    sys.stderr.write(
        f"kadril: compiling the ops for TensorFlow {tf.__version__}, once; about 15 s ...\n"
    )
    sys.stderr.flush()
    unfinished = library.with_suffix(f".{os.getpid()}.tmp")
    # Libraries after the source: the linker takes of them what is missing so far.
    command = [compiler, *FLAGS, f"-I{header_directory()}", str(SOURCE), "-o", str(unfinished)]
    try:
        done = subprocess.run([*command, *tf_flags()], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OpLibraryError(
                f"{compiler} could not compile the ops for TensorFlow {tf.__version__}:\n"
                + done.stderr[-2000:]
            )
        unfinished.rename(library)
    finally:
        unfinished.unlink(missing_ok=True)
    sys.stderr.write(f"kadril: the ops are in {library}\n")


def cache_directory() -> Path:
    """A directory that nobody else can write to: what lies in it is loaded into the process.

    Raises:
        OpLibraryError: somebody else could.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = base / "kadril" / "tensorflow"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise OpLibraryError(
            f"{directory} belongs to another user or can be written by one; remove it, or set"
            " XDG_CACHE_HOME to a directory of your own"
        )
    directory.chmod(0o700)
    return directory
