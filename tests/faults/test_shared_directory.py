"""F14: /dev/shm full, small, absent, read-only or noexec, in a mount namespace of its own.

Shared memory has no name by default, so none of it matters; where a file in /dev/shm is asked for,
there is an error with the bytes needed and the remedy, and never a SIGBUS.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MOUNTS = {
    "full": "mount -t tmpfs -o size=4m tmpfs /dev/shm; head -c 4m /dev/zero > /dev/shm/filler",
    "64 MiB": "mount -t tmpfs -o size=64m tmpfs /dev/shm",
    "read-only": "mount -t tmpfs -o ro tmpfs /dev/shm",
    "noexec": "mount -t tmpfs -o noexec tmpfs /dev/shm",
    "absent": (
        "mkdir $1/dev; mount -t tmpfs tmpfs $1/dev;"
        " for name in null zero urandom random; do"
        " touch $1/dev/$name; mount --bind /dev/$name $1/dev/$name; done;"
        " ln -s /proc/self/fd $1/dev/fd; mount --move $1/dev /dev"
    ),
}

# What the error of a file in /dev/shm says.
REMEDY = {
    "full": "0 can be had: fallocate: No space left on device",
    "read-only": "Mount a tmpfs there, or set KADRIL_SHARED_BACKING=memfd",
    "absent": "Mount a tmpfs there, or set KADRIL_SHARED_BACKING=memfd",
}

# Opens a world on each kind of memory, reduces in it, and asks for more than there is.
PROGRAM = """
import json
import numpy as np
import kadril
from kadril.errors import NoRoomError

told = {}
for backing in ("memfd", "named"):
    try:
        with kadril.init(shared_backing=backing) as world:
            shared = world.shared_empty(4 << 20, "float32")
            shared[...] = world.rank + 1
            world.transport.allreduce(shared)
            told[backing] = [float(shared.min()), float(shared.max())]
            try:
                world.shared_empty(1 << 40, "float32")
            except NoRoomError as error:
                told[backing].append("bytes" in str(error))
    except Exception as error:
        told[backing] = f"{type(error).__name__}: {error}"
print(json.dumps(told))
"""


def run_with(mount: str, directory: Path) -> list[dict[str, object]]:
    """Run two ranks with another /dev/shm; return what each of them tells."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can mount another /dev/shm")
    program = directory / "program.py"
    program.write_text(PROGRAM)
    script = f'set -e; {mount}; shift; exec "$@"'
    launch = [sys.executable, "-m", "kadril", "run", "-np", "2", "--no-prefix", str(program)]
    apart = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    done = subprocess.run([*apart, str(directory), *launch], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("full", marks=pytest.mark.long),
        pytest.param("64 MiB", marks=pytest.mark.long),
        pytest.param("read-only", marks=pytest.mark.long),
        pytest.param("noexec", marks=pytest.mark.long),
        "absent",
    ],
)
def test_without_a_good_dev_shm(name: str, tmp_path: Path) -> None:
    for told in run_with(MOUNTS[name], tmp_path):
        assert told["memfd"] == [3.0, 3.0, True], told
        named = told["named"]
        if name in ("noexec", "64 MiB"):
            assert named == [3.0, 3.0, True], told
        else:
            assert isinstance(named, str), told
            # Of two ranks one finds out, and tells the other.
            assert named.startswith(("NoRoomError", "RendezvousError: sharing memory")), told
            assert REMEDY[name] in named, told
