"""Accelerators: which one a learner gets, and when a call waits for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril.transport.buffer import Array

__all__ = ["device_of", "find_accelerator", "synchronize"]


def find_accelerator() -> str:
    """The kind of accelerator that torch sees here, such as "cuda"; an empty string for none."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return "" if found is None else found.type


def device_of(device_id: int) -> torch.device:
    """The device of a learner: the accelerator with its number, or the CPU where there is none."""
    kind = find_accelerator()
    return torch.device(kind, device_id) if kind else torch.device("cpu")


def synchronize(arrays: Sequence[Array]) -> None:
    """Wait until the accelerators on which tensors lie have done their work; CPUs always have."""
    devices = {each.device for each in arrays if isinstance(each, torch.Tensor)}
    for device in sorted(devices, key=str):
        if device.type != "cpu":
            torch.get_device_module(device).synchronize(device)
