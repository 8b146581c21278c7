"""Packages under other names, for programs that were written for them: `kadril run --compat NAME`.

Each is a directory that holds a package of that name, made of kadril. The directory is on no path
of Python's until somebody asks for it, so that `import horovod` still means what is installed.
For the ranks of a job it comes first in PYTHONPATH, before everything that is installed.

| file | what it holds |
|---|---|
| horovod_path/ | `horovod`: kadril.torch and kadril.tensorflow as Horovod's modules |
| tf1_path/ | `tensorflow`: TF1's names, of the TensorFlow 2 that is installed |
| distdl_path/ | `distdl`: kadril.partition, ops and nn as DistDL's classes, with its defaults |
| mpi4py_path/ | `mpi4py`: what programs for DistDL use of it, for ranks that no MPI has started |
| communicator.py | communicators with mpi4py's methods, over groups of `kadril.partition` |
| array_buffer.py, reduction_op.py | arrays, and reductions, as mpi4py's methods take them |
| path_command.py | `kadril compat-path`: where the packages are, for other launchers |

Programs for DistDL import mpi4py too. Ranks of `kadril run` are not MPI's: each would be alone in
a COMM_WORLD of the mpi4py that is installed. So `--compat distdl` brings the stand-in; under mpirun
there is MPI, and `kadril compat-path distdl` names the directory of distdl alone.
"""

from __future__ import annotations

import difflib
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from kadril.errors import ConfigError

__all__ = [
    "PACKAGES",
    "compat_names",
    "compat_path",
    "compat_variables",
    "job_variables",
    "rank_variables",
    "shadow",
]

# name of the package: directory beside this file that holds it
PACKAGES = {
    "horovod": "horovod_path",
    "distdl": "distdl_path",
    "mpi4py": "mpi4py_path",
    "tf1": "tf1_path",
}

# what else the ranks of `kadril run` need for it
COMPANIONS = {"distdl": ("mpi4py",)}


def compat_names(asked: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the packages that were asked for, each once.

    Args:
        asked: a name, several with commas between them, or a sequence of such words.

    Raises:
        ConfigError: there is no such package.
    """
    words = [] if asked is None else [asked] if isinstance(asked, str) else list(asked)
    names = dict.fromkeys(name.strip() for word in words for name in word.split(","))
    for name in names:
        compat_path(name)
    return tuple(names)


def compat_path(name: str) -> Path:
    """Return the directory that holds the package of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in PACKAGES:
        nearest = difflib.get_close_matches(name, PACKAGES, n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise ConfigError(f"--compat takes one of {', '.join(PACKAGES)}, got {name!r}{hint}")
    return Path(__file__).parent / PACKAGES[name]


def compat_variables(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which the ranks of a job find the package, added to their own."""
    own = os.fspath(compat_path(name))
    others = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each != own]
    path = os.pathsep.join([own, *filter(None, others)])
    if name != "horovod":
        return {"PYTHONPATH": path}
    return {
        "PYTHONPATH": path,
        "HOROVOD_HOSTNAME": socket.gethostname(),
        # By these a script sees that horovodrun has started it, and without MPI.
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


def job_variables(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for several packages and their companions; the first comes first."""
    wanted = dict.fromkeys(each for name in names for each in (name, *COMPANIONS.get(name, ())))
    added: dict[str, str] = {}
    for name in reversed(wanted):
        added.update(compat_variables(name, {**environment, **added}))
    return added


def rank_variables(name: str, rank: int, hosts: tuple[tuple[int, ...], ...]) -> dict[str, str]:
    """Return the variables that tell one rank its rank and size, on its host and across hosts.

    Args:
        name: name of the package.
        rank: rank whose variables are wanted.
        hosts: the ranks of each host.
    """
    if name != "horovod":
        return {}
    # Imported here: other jobs need nothing of `world` to be launched.
    from kadril.world.layout import Layout

    layout = Layout(hosts)
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(layout.size),
        "HOROVOD_LOCAL_RANK": str(layout.local_rank(rank)),
        "HOROVOD_LOCAL_SIZE": str(layout.local_size(rank)),
        "HOROVOD_CROSS_RANK": str(layout.cross_rank(rank)),
        "HOROVOD_CROSS_SIZE": str(layout.cross_size(rank)),
        # Horovod's object collectives take any object, and its scripts cannot say so at the call.
        "KADRIL_ALLOW_PICKLE": "1",
    }


def shadow(name: str, command: Sequence[str]) -> Path | None:
    """Return the file that would be imported instead of the package, or None.

    A script's own directory, and the current one for `python -m`, come before PYTHONPATH.
    """
    compat_path(name)
    directories = [Path(word).parent for word in command if word.endswith(".py")][:1]
    if "-m" in command:
        directories.append(Path())
    for directory in directories:
        for candidate in (directory / name / "__init__.py", directory / f"{name}.py"):
            if candidate.is_file():
                return candidate
    return None
