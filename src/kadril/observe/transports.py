"""Transports that can work here, and why others cannot."""

from __future__ import annotations

from collections.abc import Iterator

from kadril.observe.finding import Finding
from kadril.observe.system import why_no_memfd, why_no_pidfd
from kadril.observe.versions import Probes

__all__ = ["find_transports"]

TOPIC = "transports"


def find_transports(probes: Probes) -> Iterator[Finding]:
    """Yield every transport."""
    yield Finding(TOPIC, "alone", "available")
    reason = why_no_shm(probes)
    if reason:
        remedy = "see what is bad above and below; KADRIL_TRANSPORT=c10d works without it"
        yield Finding(TOPIC, "shm", f"not available: {reason}", "bad", remedy)
    else:
        by_file = ", by a file in /dev/shm" if why_no_memfd() else ""
        yield Finding(TOPIC, "shm", f"available{by_file}")
    backends = probes.torch.facts.get("backends", [])
    if "gloo" in backends:
        yield Finding(TOPIC, "c10d", f"available: {', '.join(backends)}")
    else:
        reason = probes.torch.error or "this torch was built without gloo"
        remedy = "optional; install a torch with distributed support"
        yield Finding(TOPIC, "c10d", f"not available: {reason}", "note", remedy)
    yield Finding(TOPIC, "tcp", "available, for ranks that share a secret")
    present = {"tcp": True, "c10d": "gloo" in backends}
    present["mpi"] = not probes.mpi.error
    outer = " or ".join(name for name, is_there in present.items() if is_there)
    if outer and not why_no_shm(probes):
        yield Finding(TOPIC, "tiered", f"available: shm inside a host, {outer} between hosts")
    else:
        remedy = "needs shm, and tcp, c10d or mpi: see there"
        yield Finding(TOPIC, "tiered", "not available", "note", remedy)
    if probes.mpi.error:
        remedy = "optional; see mpi4py above"
        yield Finding(TOPIC, "mpi", f"not available: {probes.mpi.error}", "note", remedy)
    else:
        yield Finding(TOPIC, "mpi", "available, for ranks that mpirun or srun has started")


def why_no_shm(probes: Probes) -> str:
    """Return what the shared-memory transport lacks, or an empty string."""
    if probes.native.error:
        return "the native core cannot be loaded"
    return why_no_pidfd()
