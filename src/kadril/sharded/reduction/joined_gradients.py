"""Gradients for ranks that have run out of data, behind DistributedDataParallel.

DistributedDataParallel makes gradients equal on the ranks that have data. One that has run out
takes part in its reductions and gets no result, and it still owns a part of the parameters: it
steps that with the gradients of the lowest rank that has data.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril.transport.base import Transport

__all__ = ["share_gradients"]


def share_gradients(
    transport: Transport, groups: Sequence[Sequence[torch.Tensor]], *, has_data: bool
) -> None:
    """Give gradients to ranks that have run out of data; collective, and cheap where none has.

    Args:
        transport: transport between all ranks.
        groups: the parameters, alike on all ranks.
        has_data: whether this rank has made a backward pass.
    """
    flags = transport.allgather_bytes(bytes([has_data]), name="who has data")
    if all(flag == b"\1" for flag in flags) or b"\1" not in flags:
        return
    root = flags.index(b"\1")
    tensors = [tensor for group in groups for tensor in group]
    present = torch.tensor([tensor.grad is not None for tensor in tensors], dtype=torch.uint8)
    transport.broadcast(present, root, name="which gradients there are")
    for tensor, is_there in zip(tensors, present.tolist(), strict=True):
        if not is_there:
            if not has_data:
                tensor.grad = None
            continue
        if has_data and tensor.grad is not None:
            gradient = tensor.grad.detach().contiguous()  # the root's are the same already
        else:
            gradient = torch.empty_like(tensor.detach(), memory_format=torch.contiguous_format)
        transport.broadcast(gradient, root, name="gradient")
        if not has_data:
            tensor.grad = gradient
