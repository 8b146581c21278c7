"""The world of an optimizer in a program that was written for torch.distributed."""

from __future__ import annotations

import logging
from typing import Any

import torch.distributed as dist

from kadril import world as worlds
from kadril.errors import NotInitializedError, StateError, UnsupportedError
from kadril.world import World

__all__ = ["check_group", "find_world"]

logger = logging.getLogger("kadril")


def find_world(world: World | None) -> World:
    """Return the world given, the current one, or a new one of the ranks of torch.distributed.

    Raises:
        NotInitializedError: there is none of these.
        StateError: the new world does not have the ranks of torch.distributed.
    """
    if world is not None:
        return world
    try:
        return worlds.current()
    except NotInitializedError:
        if not dist.is_initialized():
            raise
    logger.info("kadril.init() is called for ShardedOptimizer, as torch.distributed is initialized")
    made = worlds.init()
    if made.size != dist.get_world_size():
        size = made.size
        worlds.shutdown()
        raise StateError(
            f"torch.distributed has {dist.get_world_size()} ranks, and kadril found {size}: no"
            " launcher that it knows has started them. Call kadril.init(rank=..., size=...,"
            " rendezvous=...) before you make a ShardedOptimizer"
        )
    return made


def check_group(group: Any, world: World) -> None:
    """Raise `UnsupportedError` for a process group that lacks ranks of a world."""
    if group is None:
        return
    ranks = dist.get_process_group_ranks(group)
    if ranks != list(range(world.size)):
        raise UnsupportedError(
            f"process_group has ranks {ranks}, the world 0 to {world.size - 1}: state is sharded"
            " over all ranks of a world"
        )
