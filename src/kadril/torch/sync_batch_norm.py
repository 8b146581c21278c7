"""Batch normalization with the statistics of all ranks' batches.

With N the number of values per channel over all ranks, x the input, and xhat = (x - mean) * invstd:

    forward     mean = sum_r n_r mean_r / N
                var  = sum_r (M2_r + n_r (mean_r - mean)^2) / N          M2_r = sum (x - mean_r)^2
                y    = weight * xhat + bias
    backward    s1 = sum over all ranks of g,  s2 = sum over all ranks of g * xhat
                dx      = weight * invstd * (g - s1 / N - xhat * s2 / N)
                dweight = sum over this rank of g * xhat,  dbias = sum over this rank of g

dweight and dbias stay this rank's own, as the gradients of other layers do: the optimizer reduces
them. Each direction takes one collective of 2 C + 1, respectively 2 C, numbers. Ranks may have
batches of different sizes; one without any takes part with a count of zero.

Where gradients are to be differentiated (`create_graph=True`), backward computes mean and invstd
once more, from all ranks' inputs by two all-reduces, so that they have a graph; the rest of the
formulas is made of differentiable operations anyway.
"""

from __future__ import annotations

import collections
import weakref
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from kadril.shared_engine.process_set_reference import ProcessSetReference
from kadril.shared_engine.process_sets import ProcessSet, global_process_set
from kadril.shared_engine.reduce_ops import Sum
from kadril.torch.ops import allgather_async, allreduce, synchronize
from kadril.world import World, current

__all__ = ["SyncBatchNorm"]

# How many layers were used in a world, by process set. Their numbers are in the names of requests:
# layers are first used in the same order on all ranks, also where one rank has made more of them.
_num_used: WeakKeyDictionary[World, collections.Counter[int | None]] = WeakKeyDictionary()


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm*d` over the batches of all ranks of a process set.

    In training, output, gradients and running statistics are those of one batch norm over the
    concatenated batch. In evaluation it is a plain batch norm, without communication; so it is for
    a rank outside of the process set, and in a world of one.

    Args:
        num_features: channels C of an input of shape (N, C) or (N, C, ...).
        eps: added to the variance.
        momentum: weight of a batch in the running statistics; None for their plain mean.
        affine: whether there are weight and bias.
        track_running_stats: whether there are running statistics.
        process_set: the ranks that take part.

    Raises (when called):
        ValueError: an input of fewer than 2 dims, with another number of channels, or, on all
            ranks, one value per channel in all batches together.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set
        self._named_in: tuple[weakref.ref[World], str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        reference = ProcessSetReference(self.process_set)
        return {**self.__dict__, "process_set": reference, "_named_in": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = {**state, "process_set": state["process_set"].process_set}
        super().__setstate__(own)  # type: ignore[no-untyped-call]

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - torch's own name
        if input.dim() < 2:
            raise ValueError(f"expected an input of at least 2 dims (N, C, ...), got {input.dim()}")
        if input.size(1) != self.num_features:
            raise ValueError(
                f"expected {self.num_features} channels in dim 1, got {input.size(1)}"
                f" (input of shape {tuple(input.shape)})"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's own name
        """Normalize; collective in training. See the class."""
        self._check_input_dim(input)
        if not self.training or not self.has_peers():
            return super().forward(input)
        output, mean, var, count = SyncBatchNormFunction.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.eps, self.request_name(), self.process_set
        )
        self.update_running_statistics(mean, var, int(count))
        result: torch.Tensor = output
        return result

    def request_name(self) -> str:
        """Return the name by which ranks know this layer in the current world."""
        world = current()
        if self._named_in is None or self._named_in[0]() is not world:
            counts = _num_used.setdefault(world, collections.Counter())
            number = counts[self.process_set.process_set_id]
            counts[self.process_set.process_set_id] += 1
            self._named_in = weakref.ref(world), f"sync_batch_norm.{number}"
        return self._named_in[1]

    def has_peers(self) -> bool:
        """Whether there is another rank to share statistics with."""
        return self.process_set.included() and (self.process_set.size() or 1) > 1

    def update_running_statistics(self, mean: torch.Tensor, var: torch.Tensor, count: int) -> None:
        """Follow the statistics of a batch of `count` values per channel, as torch does."""
        if self.running_mean is None or self.running_var is None:
            return
        with torch.no_grad():
            factor = 0.0 if self.momentum is None else self.momentum
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
                if self.momentum is None:
                    factor = 1.0 / float(self.num_batches_tracked)
            unbiased = var * (count / (count - 1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """Replace every batch norm in a module by a synchronized one with the same parameters.

        Args:
            module: changed in place below its top; its own parameters and buffers are used.
            process_set: the ranks that take part.

        Returns:
            The module, or its replacement where it is a batch norm itself.
        """
        result = module
        if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
            result = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                process_set,
            )
            # Not copies: an optimizer may hold these very parameters.
            result._parameters.update(module._parameters)
            result._buffers.update(module._buffers)
            result.training = module.training
        for name, child in module.named_children():
            result.add_module(name, cls.convert_sync_batchnorm(child, process_set))
        return result


class SyncBatchNormFunction(torch.autograd.Function):
    """Forward and backward, as at the top of this file."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        name: str,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Output, and mean, biased variance and count over all ranks."""
        mean, var, count = global_statistics(x, name, process_set)
        if count < 2:
            raise ValueError(
                f"{name}: batch norm needs more than one value per channel when training, and all"
                f" ranks together have {count}; input here is of shape {tuple(x.shape)}"
            )
        # 16-bit inputs are normalized in float32, as torch does.
        compute = torch.promote_types(x.dtype, torch.float32)
        invstd = torch.rsqrt(var + eps).to(compute)
        mean_c = mean.to(compute)
        xhat = (x.to(compute) - per_channel(mean_c, x)) * per_channel(invstd, x)
        y = xhat
        if weight is not None:
            y = y * per_channel(weight.to(compute), x)
        if bias is not None:
            y = y + per_channel(bias.to(compute), x)
        ctx.save_for_backward(x, weight, mean_c, invstd)
        ctx.eps, ctx.count, ctx.name, ctx.process_set = eps, count, name, process_set
        total = torch.tensor(count)
        ctx.mark_non_differentiable(mean, var, total)
        return y.to(x.dtype), mean, var, total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> tuple[Any, ...]:
        """Gradients of input, weight and bias."""
        x, weight, mean, invstd = ctx.saved_tensors
        if torch.is_grad_enabled():
            statistics = recorded_statistics(x, ctx.count, ctx.name, ctx.process_set)
            mean = statistics[0].to(invstd.dtype)
            invstd = torch.rsqrt(statistics[1] + ctx.eps).to(invstd.dtype)
        g = gradient.to(invstd.dtype)
        xhat = (x.to(invstd.dtype) - per_channel(mean, x)) * per_channel(invstd, x)
        dims = [dim for dim in range(x.dim()) if dim != 1]
        own_s1, own_s2 = g.sum(dims), (g * xhat).sum(dims)
        dx = None
        if ctx.needs_input_grad[0]:
            s1, s2 = total_sums(own_s1, own_s2, ctx.name, ctx.process_set)
            dx = g - per_channel(s1 / ctx.count, x) - xhat * per_channel(s2 / ctx.count, x)
            scale = invstd if weight is None else invstd * weight.to(invstd.dtype)
            dx = (dx * per_channel(scale, x)).to(x.dtype)
        dweight = dbias = None
        if weight is not None and ctx.needs_input_grad[1]:
            dweight = own_s2.to(weight.dtype)
        if ctx.needs_input_grad[2]:
            dbias = own_s1.to(gradient.dtype if weight is None else weight.dtype)
        return dx, dweight, dbias, None, None, None


def per_channel(vector: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A vector over channels in a shape that broadcasts with an input."""
    return vector.view(1, -1, *([1] * (x.dim() - 2)))


def global_statistics(
    x: torch.Tensor, name: str, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Mean and biased variance per channel over all ranks, in float64, and the count; collective.

    Each rank gives its own mean and squared deviations, which lose nothing to cancellation, rather
    than sums of squares, which would.
    """
    dims = [dim for dim in range(x.dim()) if dim != 1]
    num_channels = x.size(1)
    count = x.numel() // num_channels if num_channels else 0
    own = torch.zeros(1, 2 * num_channels + 1, dtype=torch.float64)
    if count:
        var, mean = torch.var_mean(
            x.detach().to(torch.promote_types(x.dtype, torch.float32)), dims, correction=0
        )
        own[0, :num_channels] = mean
        own[0, num_channels:-1] = var.double() * count
        own[0, -1] = count
    handle = allgather_async(own, name=f"{name}.forward", process_set=process_set)
    everyone = synchronize(handle).to(x.device)
    means, deviations = everyone[:, :num_channels], everyone[:, num_channels:-1]
    counts = everyone[:, -1:]
    total = int(counts.sum())
    divisor = max(total, 1)
    mean = (counts * means).sum(0) / divisor
    var = (deviations + counts * (means - mean) ** 2).sum(0) / divisor
    return mean, var, total


def recorded_statistics(
    x: torch.Tensor, count: int, name: str, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and biased variance per channel as `global_statistics`, with a graph; collective."""
    dims = [dim for dim in range(x.dim()) if dim != 1]
    wide = x.double()
    own_sum = wide.sum(dims)
    mean = allreduce(own_sum, name=f"{name}.mean", op=Sum, process_set=process_set) / count
    own_squares = (wide - per_channel(mean, x)).square().sum(dims)
    var = allreduce(own_squares, name=f"{name}.var", op=Sum, process_set=process_set) / count
    return mean, var


def total_sums(
    s1: torch.Tensor, s2: torch.Tensor, name: str, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sums per channel over all ranks, differentiable; collective."""
    both = torch.stack([s1, s2])
    total = allreduce(both, name=f"{name}.backward", op=Sum, process_set=process_set)
    return total[0], total[1]
