"""Activations of fully connected layers: y = f(z), and the product of an error with f'."""

from __future__ import annotations

import torch

__all__ = ["Activation", "Linear", "Logistic", "RectLin", "Softmax", "Tanh"]


class Activation:
    """Base of the activations."""

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """Return y = f(z)."""
        raise NotImplementedError

    def pull_back(self, error: torch.Tensor, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return z* = J^T y*, for y = f(z).

        Args:
            error: y*.
            z: what the activation was given.
            y: what it gave.
        """
        raise NotImplementedError


class RectLin(Activation):
    """y = max(z, 0); its derivative at 0 is 0."""

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """Return y = max(z, 0)."""
        return torch.relu(z)

    def pull_back(self, error: torch.Tensor, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the error where z is above 0."""
        return error * (z > 0)


class Logistic(Activation):
    """y = 1 / (1 + exp(-z))."""

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """Return y = 1 / (1 + exp(-z))."""
        return torch.sigmoid(z)

    def pull_back(self, error: torch.Tensor, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return y* y (1 - y)."""
        return error * y * (1 - y)


class Tanh(Activation):
    """y = tanh(z)."""

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """Return y = tanh(z)."""
        return torch.tanh(z)

    def pull_back(self, error: torch.Tensor, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return y* (1 - y^2)."""
        return error * (1 - y * y)


class Linear(Activation):
    """y = z."""

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """Return z."""
        return z

    def pull_back(self, error: torch.Tensor, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the error."""
        return error


class Softmax(Activation):
    """y_i = exp(z_i) / sum_j exp(z_j), over the outputs of a layer."""

    def apply(self, z: torch.Tensor) -> torch.Tensor:
        """Return y_i = exp(z_i) / sum_j exp(z_j)."""
        return torch.softmax(z, 1)

    def pull_back(self, error: torch.Tensor, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return y_i (y*_i - sum_j y*_j y_j)."""
        return y * (error - (error * y).sum(1, keepdim=True))
