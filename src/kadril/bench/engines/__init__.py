"""The engines that are measured; one file each, a new engine is a new file.

A job is a set of processes, one per rank; the engines of one job share them.

| file | what it holds |
|---|---|
| base.py | what an engine must offer to be measured |
| own.py | Kadril: on plain tensors, and on tensors in shared memory |
| gloo.py | gloo, by `torch.distributed` |
| mpi.py | MPI, by mpi4py |
| memory_copy.py | a plain copy: what the memory bus allows |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kadril.bench.engines.base import Engine

if TYPE_CHECKING:
    from kadril.world import World

__all__ = ["Engine", "open_engines"]


def open_engines(job: str, world: World) -> dict[str, Engine]:
    """Return the engines of a job, on one of its ranks; collective over its world.

    Each is imported here, so that a rank loads its own and no other.
    """
    if job == "kadril":
        from kadril.bench.engines.memory_copy import CopyEngine
        from kadril.bench.engines.own import KadrilEngine

        return {
            "kadril": KadrilEngine(world),
            "zero-copy": KadrilEngine(world, zero_copy=True),
            "copy": CopyEngine(),
        }
    if job == "gloo":
        from kadril.bench.engines.gloo import GlooEngine

        return {"gloo": GlooEngine(world)}
    from kadril.bench.engines.mpi import MpiEngine

    return {job: MpiEngine(job, world)}
