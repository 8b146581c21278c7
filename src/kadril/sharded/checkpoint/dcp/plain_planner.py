"""A load planner for torch.distributed.checkpoint that makes plain data only.

What is no tensor (options of an optimizer, the state of a scheduler, numbers) is a pickle in the
format of torch, which may name any function, and torch's own planner calls it.
"""

from __future__ import annotations

import io
import pickle

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem

from kadril.errors import CheckpointError

__all__ = ["PlainLoadPlanner"]


class PlainLoadPlanner(DefaultLoadPlanner):
    """A planner that refuses values that `torch.load(weights_only=True)` does not make."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Take a value that is no tensor.

        Raises:
            CheckpointError: it is more than plain data; nothing of it was called.
        """
        begin = value.tell()
        try:
            torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"{read_item.dest_index.fqn!r} is more than numbers, texts, containers and tensors,"
                " and to read it would run code that the checkpoint names. If you trust who wrote"
                " it, give planner=torch.distributed.checkpoint.DefaultLoadPlanner()."
                f" torch says: {str(error).splitlines()[0]}"
            ) from error
        value.seek(begin)
        super().load_bytes(read_item, value)
