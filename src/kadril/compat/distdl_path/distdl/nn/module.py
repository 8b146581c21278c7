"""The base class of layers."""

from __future__ import annotations

from typing import Any

import torch

from ..backend import backend

__all__ = ["Module"]


class Module(torch.nn.Module):
    """A layer that may be set up when it sees its first input.

    Subclasses of users override the hooks: `_distdl_module_setup` is called before the first
    forward, and again after `_distdl_module_teardown` when `_distdl_input_changed` says so. The
    layers of this package need none: they look at the blocks of all workers at every call.
    """

    _distdl_backend = backend

    def __init__(self) -> None:
        super().__init__()
        self._distdl_is_setup = False
        self.register_forward_pre_hook(Module._distdl_forward_pre_hook)

    @staticmethod
    def _distdl_forward_pre_hook(module: Any, args: tuple[Any, ...]) -> None:
        if module._distdl_is_setup and module._distdl_input_changed(args):
            module._distdl_module_teardown(args)
        if not module._distdl_is_setup:
            module._distdl_module_setup(args)

    def _distdl_module_setup(self, args: tuple[Any, ...]) -> None:
        self._distdl_is_setup = True

    def _distdl_module_teardown(self, args: tuple[Any, ...]) -> None:
        self._distdl_is_setup = False

    def _distdl_input_changed(self, args: tuple[Any, ...]) -> bool:
        return False
