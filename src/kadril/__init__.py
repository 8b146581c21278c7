"""Kadril trains one model on many workers, split by batch, by space, by optimizer state.

    import kadril

    kadril.init()
    print(kadril.rank(), "of", kadril.size())
    kadril.current().transport.allreduce(tensor)

Names are loaded at their first use, so that `import kadril` takes milliseconds and loads no torch:
the launcher and the command line depend on it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kadril.config import Config
    from kadril.errors import (
        AlreadyInitializedError,
        CheckpointError,
        ClosedError,
        ConfigError,
        ForkedError,
        KadrilError,
        MismatchError,
        NoRoomError,
        NotInitializedError,
        PeerError,
        PeerLost,
        RendezvousError,
        Revoked,
        Stalled,
        StateError,
        TransportError,
        UnsupportedError,
        UnsupportedReductionError,
    )
    from kadril.function_job import run
    from kadril.launch import LaunchError
    from kadril.world import (
        World,
        cross_rank,
        cross_size,
        current,
        init,
        is_initialized,
        is_main,
        local_rank,
        local_size,
        rank,
        shared_empty,
        shutdown,
        size,
    )

__all__ = [
    "AlreadyInitializedError",
    "CheckpointError",
    "ClosedError",
    "Config",
    "ConfigError",
    "ForkedError",
    "KadrilError",
    "LaunchError",
    "MismatchError",
    "NoRoomError",
    "NotInitializedError",
    "PeerError",
    "PeerLost",
    "RendezvousError",
    "Revoked",
    "Stalled",
    "StateError",
    "TransportError",
    "UnsupportedError",
    "UnsupportedReductionError",
    "World",
    "__version__",
    "cross_rank",
    "cross_size",
    "current",
    "init",
    "is_initialized",
    "is_main",
    "local_rank",
    "local_size",
    "rank",
    "run",
    "shared_empty",
    "shutdown",
    "size",
]

__version__ = "0.1.0"

_OTHER_HOMES = {
    "Config": "kadril.config",
    "LaunchError": "kadril.launch",
    "run": "kadril.function_job",
}

_WORLD_NAMES = frozenset(
    {
        "World",
        "cross_rank",
        "cross_size",
        "current",
        "init",
        "is_initialized",
        "is_main",
        "local_rank",
        "local_size",
        "rank",
        "shared_empty",
        "shutdown",
        "size",
    }
)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'kadril' has no attribute {name!r}")
    home = "kadril.world" if name in _WORLD_NAMES else _OTHER_HOMES.get(name, "kadril.errors")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
