"""`kadril run --check-build`: which frameworks, transports and operations there are, and why not.

Whatever has to be imported to know is imported in a process of its own, so that the launcher stays
light and a library that cannot be loaded ends nothing but its probe.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from typing import NamedTuple

import kadril
from kadril.compat import PACKAGES
from kadril.observe.transports import why_no_shm
from kadril.observe.versions import Probes, probe_all, version_of

__all__ = ["Line", "build_report", "print_build_report"]

OPERATIONS = (
    "allreduce",
    "grouped_allreduce",
    "sparse_allreduce_async",
    "allgather",
    "grouped_allgather",
    "broadcast",
    "alltoall",
    "reducescatter",
    "grouped_reducescatter",
    "join",
    "barrier",
    "add_process_set",
)


class Line(NamedTuple):
    """Something that may be there, and a word about it."""

    topic: str
    name: str
    is_there: bool
    remark: str = ""


def build_report() -> Iterator[Line]:
    """Yield all lines of the report."""
    probes = probe_all(OPERATIONS)
    facts = probes.torch.facts
    why_not = probes.torch.error or facts.get("no_operations", "")
    yield framework("PyTorch", "torch", probes.torch.error)
    yield framework("TensorFlow", "tensorflow", "")
    yield from transports(probes)
    for name in OPERATIONS:
        is_there = name in facts.get("operations", [])
        yield Line("Operations on torch tensors", name, is_there, "" if is_there else why_not)
    for name in PACKAGES:
        yield Line("Packages for --compat", name, True)


def framework(title: str, package: str, error: str) -> Line:
    """Whether a framework is installed, can be loaded, and has its part of kadril."""
    topic = "Frameworks"
    version = version_of(package)
    if version is None:
        return Line(topic, title, False, "not installed")
    if error:
        return Line(topic, title, False, f"{version} cannot be loaded: {error}")
    if importlib.util.find_spec(f"kadril.{package}") is None:
        return Line(topic, title, False, f"{version} is installed; there is no kadril.{package}")
    return Line(topic, title, True, version)


def transports(probes: Probes) -> Iterator[Line]:
    """Yield the transports, with the backends of c10d one by one."""
    topic = "Transports"
    reason = why_no_shm(probes)
    yield Line(topic, "shm", not reason, reason or "ranks of one host")
    backends = probes.torch.facts.get("backends", [])
    for backend in ("gloo", "nccl", "ucc", "xccl"):
        is_there = backend in backends
        remark = "" if is_there else probes.torch.error or "not in this build of torch"
        yield Line(topic, f"c10d:{backend}", is_there, remark)
    remark = probes.mpi.error or "for ranks that mpirun or srun has started"
    yield Line(topic, "mpi", not probes.mpi.error, remark)
    yield Line(topic, "tcp", True, "for ranks that share a secret")
    remark = "ranks of several hosts: shm inside; tcp, c10d or mpi between"
    yield Line(topic, "tiered", not reason, remark)


def print_build_report(*, as_json: bool = False) -> None:
    """Print the report as a table, or as JSON."""
    lines = list(build_report())
    if as_json:
        print(json.dumps([line._asdict() for line in lines], indent=1))
        return
    print(f"kadril {kadril.__version__}")
    topic = ""
    for line in lines:
        if line.topic != topic:
            topic = line.topic
            print(f"\n{topic}:")
        remark = f"  ({line.remark})" if line.remark else ""
        print(f"    [{'X' if line.is_there else ' '}] {line.name}{remark}")
