"""Costs: how far outputs are from targets, and the derivative.

The derivative is of the sum over all elements; a model divides by the size of the batch.
"""

from __future__ import annotations

import torch

__all__ = ["Cost", "CrossEntropy", "SumSquaredDiffs"]


class Cost:
    """Base of the costs.

    Attributes:
        is_mean: whether the cost is a mean over examples, or their sum.
    """

    is_mean = False

    def apply_function(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the cost, a number that has a gradient."""
        raise NotImplementedError

    def apply_derivative(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the derivative of the sum over all elements, for each output."""
        raise NotImplementedError

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the sum whose derivative `apply_derivative` is, for autograd."""
        raise NotImplementedError


class CrossEntropy(Cost):
    """The mean over all elements of -t log y - (1 - t) log(1 - y).

    Outputs are kept `epsilon` away from 0 and 1 where a logarithm or a quotient needs it.
    """

    is_mean = True
    epsilon = 2.0**-23  # of float32

    def apply_function(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean over all elements."""
        return self.loss(outputs, targets) / outputs.numel()

    def apply_derivative(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return (y - t) / (y (1 - y))."""
        slope = (outputs * (1 - outputs)).clamp(self.epsilon, 1 - self.epsilon)
        return (outputs - targets) / slope

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the sum over all elements."""
        low, high = self.epsilon, 1 - self.epsilon
        rest = (1 - outputs).clamp(low, high).log()
        return -(targets * outputs.clamp(low, high).log() + (1 - targets) * rest).sum()


class SumSquaredDiffs(Cost):
    """Half of the sum over all elements of (y - t)^2."""

    def apply_function(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return half of the sum of squares."""
        return self.loss(outputs, targets)

    def apply_derivative(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return y - t."""
        return outputs - targets

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return half of the sum of squares."""
        return 0.5 * (outputs - targets).square().sum()
