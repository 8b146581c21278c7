"""The default process group of torch.distributed, where the program has made one.

`torch.multiprocessing.spawn`, notebooks, Ray, and every program that calls `init_process_group()`
with a rank and a size of its own: no launcher's variables say who the ranks are, but this group
does. torch is asked only where the program has imported it already.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kadril.errors import ConfigError

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["Member", "default_store", "find_member", "is_inherited"]


@dataclass(frozen=True)
class Member:
    """The place of this process in the default process group."""

    rank: int
    size: int


def initialized() -> ModuleType | None:
    """The module torch.distributed, if the program has imported it and made its default group."""
    module = sys.modules.get("torch.distributed")
    # A build of torch without it has no is_initialized().
    is_initialized = getattr(module, "is_initialized", None)
    return module if is_initialized is not None and is_initialized() else None


def find_member() -> Member | None:
    """The place of this process in the default process group; None where there is no group."""
    module = initialized()
    return None if module is None else Member(module.get_rank(), module.get_world_size())


def default_store() -> dist.Store:
    """The store that the default process group was made with.

    Raises:
        ConfigError: there is no group, or none that has a store.
    """
    module = initialized()
    if module is None:
        raise ConfigError(
            "the ranks are to meet at the store of torch.distributed, and it is not initialized."
            " Call torch.distributed.init_process_group() first"
        )
    backend = module.get_backend()
    store: dist.Store | None = None
    if backend != "fake":  # it has one process, which plays one of many ranks
        # There is no public way to the store, and every group of torch's own is made with it.
        store = module.distributed_c10d._get_default_store()
    if store is None:
        raise ConfigError(
            f"torch.distributed is initialized with backend {backend}, as rank"
            f" {module.get_rank()} of {module.get_world_size()}, and this backend has no store at"
            " which kadril could meet the other ranks. Use gloo, or call kadril.init(rank=0,"
            " size=1) for a world of one"
        )
    return store


class Inheritance:
    """The default process group that a parent had made when it forked this process."""

    def __init__(self) -> None:
        self.group: Any = None

    def note(self) -> None:
        """Remember the group of the parent, in the child of a fork."""
        module = initialized()
        self.group = None if module is None else module.group.WORLD


_inheritance = Inheritance()


def is_inherited() -> bool:
    """Whether the default process group is that of the parent, copied by fork."""
    module = initialized()
    return module is not None and module.group.WORLD is _inheritance.group


os.register_at_fork(after_in_child=_inheritance.note)
