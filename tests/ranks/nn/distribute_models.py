"""Models that the tests of `distribute` split, and how they compare with the ordinary ones."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from kadril.nn.distribution.distribute import (
    DistributedModel,
    block_of,
    distribute,
    whole_of,
)
from kadril.partition import Partition
from kadril.testing import integer_valued

__all__ = ["LeNet", "ResNet", "UNet", "check_same", "make_exact"]


class LeNet(nn.Module):
    """Convolutions, pools, and a head of linear layers."""

    shape = (4, 1, 18, 15)

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 3, 5, padding=2)
        self.conv2 = nn.Conv2d(3, 5, 5)
        self.linear1 = nn.Linear(10, 7)
        self.linear2 = nn.Linear(7, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = x.view(x.size(0), -1)
        y: torch.Tensor = self.linear2(functional.relu(self.linear1(x)))
        return y


class UNet(nn.Module):
    """Skip connections, concatenated, with padding that follows from shapes."""

    shape = (2, 1, 11, 13)

    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(inplace=True))
        self.down2 = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True))
        self.bottom = nn.Conv2d(4, 4, 3, padding=1, dilation=1)
        self.up2 = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.up1 = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.out = nn.Conv2d(6, 2, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        y = self.up2(functional.relu(self.bottom(self.pool(second))))
        y = self.beside(second, y) + second
        y = torch.cat([first, self.beside(first, self.up1(y))], dim=1)
        result: torch.Tensor = self.out(y)
        return result

    @staticmethod
    def beside(skip: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        rows, columns = skip.size()[2] - x.size()[2], skip.size()[3] - x.size()[3]
        widths = [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2]
        return functional.pad(x, widths)


class ResNet(nn.Module):
    """Norms, a residual block, a gate from the mean over all of space, and a linear head."""

    shape = (4, 2, 9, 10)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.conv1 = nn.Conv2d(4, 4, 3, 1, 1)
        self.groups = nn.GroupNorm(2, 4)
        self.conv2 = nn.Conv2d(4, 4, 3, 1, 1)
        self.down = nn.Conv2d(4, 6, 1, 2)
        self.gate = nn.Conv2d(6, 6, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(6, 3)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.norm(self.stem(x)))
        x = self.relu(x + self.conv2(self.relu(self.groups(self.conv1(x)))))
        x = self.down(x)
        x = x * torch.sigmoid(self.gate(self.pool(x)))
        y: torch.Tensor = self.head(torch.flatten(self.pool(x), 1))
        return y


def make_exact(model: nn.Module) -> nn.Module:
    """Give a model whole numbers for parameters, so that nothing is rounded."""
    model = model.double()
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(integer_valued(parameter.shape, seed=seed).sign())
    return model


def check_same(
    model: nn.Module, P: Partition, x: torch.Tensor, bound: float = 0.0, **options: Any
) -> DistributedModel:
    """Compare result, gradients and buffers of a model and its twin; the twin.

    Args:
        model: ordinary; a copy of it is split. Its result may be nested.
        P: the partition.
        x: the global input.
        bound: how far numbers may be off, relative to the largest; 0 for not at all.
        options: of `distribute`.
    """
    ordinary = copy.deepcopy(model)
    mine = copy.deepcopy(model)
    twin = distribute(mine, P, x, **options)

    whole = x.clone().requires_grad_(x.is_floating_point())
    expected = ordinary(whole)
    weighted(expected).backward()

    block = block_of(x, P).requires_grad_(x.is_floating_point())
    y = twin(block)
    if not P.active:
        assert y.numel() == 0
        return twin
    found = joined(y, twin.P_y)
    weighted(found).backward()

    check_results(found, expected, bound)
    if whole.grad is not None and block.grad is not None:
        close(block.grad, block_of(whole.grad, P), bound, "the gradient of the input")
    for name, parameter in ordinary.named_parameters():
        gradient = twin.get_parameter(name).grad
        if parameter.grad is None:
            assert gradient is None or not gradient.any(), f"{name} is not used"
            continue
        assert gradient is not None, name
        close(gradient, parameter.grad, bound, f"the gradient of {name}")
    for name, buffer in ordinary.named_buffers():
        close(twin.get_buffer(name), buffer, bound, name)
    return twin


def joined(y: Any, P_y: Any) -> Any:
    """The whole of each tensor of a result, nested as the result is."""
    if isinstance(y, dict):
        return {key: joined(each, P_y[key]) for key, each in y.items()}
    if isinstance(y, (list, tuple)):
        return [joined(each, place) for each, place in zip(y, P_y, strict=True)]
    return whole_of(y, P_y)


def leaves(y: Any) -> list[torch.Tensor]:
    """The tensors of a nested result, in order."""
    if isinstance(y, dict):
        return [leaf for each in y.values() for leaf in leaves(each)]
    if isinstance(y, (list, tuple)):
        return [leaf for each in y for leaf in leaves(each)]
    return [y]


def weighted(y: Any) -> torch.Tensor:
    """A loss to which every element of a result adds another multiple of itself."""
    losses = [
        (each * integer_valued(each.shape, seed=99 - place)).sum()
        for place, each in enumerate(leaves(y))
    ]
    return torch.stack(losses).sum()


def check_results(found: Any, expected: Any, bound: float) -> None:
    """Compare two nested results."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
    for place, (mine, theirs) in enumerate(zip(leaves(found), leaves(expected), strict=True)):
        close(mine, theirs, bound, f"the result, tensor {place}")


def close(found: torch.Tensor, expected: torch.Tensor, bound: float, what: str) -> None:
    assert found.shape == expected.shape, what
    if bound == 0 or not expected.is_floating_point():
        assert torch.equal(found, expected), what
        return
    with torch.no_grad():
        largest = float(expected.abs().max().clamp(min=1))
        assert float((found - expected).abs().max()) <= bound * largest, what
