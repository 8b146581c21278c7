"""GradScaler: losses scaled up for half precision, and steps skipped on all ranks or on none."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from kadril.sharded.sharded_optimizer import trainer_of
from kadril.sharded.trainer import POS_Trainer

__all__ = ["GradScaler"]


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler` for trainers whose ranks have different gradients.

    It takes the arguments of torch's class, the same on all ranks.

        scaler = kadril.sharded.GradScaler("cpu")
        scaler.scale(loss).backward()
        scaler.unscale_(trainer)                 # only to clip
        trainer.clip_grad_norm_(1.0)
        scaler.step(trainer)
        scaler.update()

    If a gradient is not finite on some rank, no rank steps, and all lower their scale. Each rank
    sends one byte for that. Other optimizers are treated as torch does.
    """

    def unscale_(self, optimizer: Any) -> None:
        """Reduce gradients, divide them by the scale, and look for infinities; collective.

        Raises:
            RuntimeError: it was called since the last `update()` already.
        """
        trainer = trainer_of(optimizer)
        if trainer is None or not self.is_enabled():
            super().unscale_(optimizer)
            return
        holder = gradient_holder(optimizer, trainer)
        is_first = self._per_optimizer_states[id(holder)]["stage"] is OptState.READY
        if holder is trainer and is_first:
            trainer.allreduce_grads()
        super().unscale_(holder)
        state = self._per_optimizer_states[id(holder)]
        found = any(bool(each.item()) for each in state["found_inf_per_device"].values())
        rows = trainer.transport.allgather_bytes(bytes([found]), name="found_inf")
        scale = self._get_scale_async()
        assert scale is not None  # noqa: S101 - made by `scale()`, or the base class has raised
        # Also on a rank that has no gradients, where torch has recorded nothing.
        agreed = torch.full((), float(any(row[0] for row in rows)), device=scale.device)
        state["found_inf_per_device"] = {scale.device: agreed}

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Step, unless a rank has a gradient that is not finite; collective.

        Returns:
            What `optimizer.step` returns; None if the step was skipped.

        Raises:
            RuntimeError: there was a step since the last `update()` already.
        """
        trainer = trainer_of(optimizer)
        if trainer is None or not self.is_enabled():
            return super().step(optimizer, *args, **kwargs)
        if "closure" in kwargs or any(callable(each) for each in args):
            raise RuntimeError("closures cannot be used with a GradScaler that is enabled")
        state = self._per_optimizer_states[id(gradient_holder(optimizer, trainer))]
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update()")
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        result = None
        if any(bool(each.item()) for each in state["found_inf_per_device"].values()):
            trainer.skip_step()
        else:
            result = optimizer.step(*args, **kwargs)
        state["stage"] = OptState.STEPPED
        return result


def gradient_holder(optimizer: Any, trainer: POS_Trainer) -> Any:
    """Return the one whose `param_groups` have the gradients: this rank's part, or whole ones."""
    return trainer if trainer.reduces_gradients else optimizer
