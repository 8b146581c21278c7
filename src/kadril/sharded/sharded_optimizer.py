"""ShardedOptimizer: the same training in the shape of torch's ZeroRedundancyOptimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from kadril.errors import StateError, UnsupportedError
from kadril.sharded.optimizer.process_group_world import check_group, find_world
from kadril.sharded.optimizer.scaler_guard import ScalerGuard
from kadril.sharded.optimizer.supported_optimizers import OptimizerClass
from kadril.sharded.ownership.group_options import copy_options
from kadril.sharded.ownership.parameter_groups import Parameters
from kadril.sharded.reduction.joined_gradients import share_gradients
from kadril.sharded.trainer import POS_Trainer
from kadril.world import World

__all__ = ["ShardedOptimizer", "ShardedState", "trainer_of"]


class ShardedOptimizer(ScalerGuard, torch.optim.Optimizer, Joinable):
    """A torch optimizer that keeps 1/p of its state on each of p ranks.

        optimizer = ShardedOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)

    It takes the place of `torch.distributed.optim.ZeroRedundancyOptimizer`: the model stays wrapped
    in DistributedDataParallel, which makes the gradients equal on all ranks, and each rank steps
    its part of the parameters. With `reduce_gradients=True` it reduces them itself, each only to
    its owners, which is quicker and takes less memory; the model is then not wrapped.

    Groups in `param_groups` have the whole parameters; schedulers work on them. Their options are
    the ones that count: `save()` and `load()` of this class know them, those of `trainer` do not.

    Args:
        params: see `POS_Trainer`.
        optimizer_class: class of the optimizer of each rank's part.
        process_group: a group of all ranks, or None; `world` is what counts.
        parameters_as_bucket_view: makes no difference: parameters always lie in flat memory.
        overlap_with_ddp: has to be False; `reduce_gradients` takes its place.
        reduce_gradients: whether this optimizer reduces the gradients.
        stage: with `reduce_gradients`: see `POS_Trainer`.
        rule: see `POS_Trainer`.
        world: the current one if None. If there is none, and torch.distributed is initialized,
            `kadril.init()` is called.
        share_parameters: see `POS_Trainer`.
        **defaults: options of the optimizer.

    Raises:
        MismatchError, UnsupportedError, ValueError, TypeError: see `POS_Trainer`.
        UnsupportedError: a process group of some ranks, or `overlap_with_ddp`.
    """

    def __init__(
        self,
        params: Parameters,
        optimizer_class: OptimizerClass,
        process_group: Any = None,
        parameters_as_bucket_view: bool = False,
        overlap_with_ddp: bool = False,
        *,
        reduce_gradients: bool = False,
        stage: int | None = None,
        rule: str | None = None,
        world: World | None = None,
        share_parameters: bool = True,
        **defaults: Any,
    ) -> None:
        if overlap_with_ddp:
            raise UnsupportedError(
                "overlap_with_ddp steps parameters in a hook of DistributedDataParallel. Give"
                " reduce_gradients=True instead, and the model as it is: gradients are then reduced"
                " while the backward pass goes on"
            )
        world = find_world(world)
        check_group(process_group, world)
        self._trainer = POS_Trainer(
            params,
            optimizer_class,
            defaults,
            stage=stage,
            rule=rule,
            world=world,
            share_parameters=share_parameters,
            reduce_gradients=reduce_gradients,
        )
        # Gradients that others have reduced are the same on all ranks, and so is what torch's own
        # GradScaler finds in them.
        self._step_supports_amp_scaling = reduce_gradients
        self._consolidated: dict[str, Any] | None = None
        self._is_ready = False
        torch.optim.Optimizer.__init__(
            self, self._whole_groups(0), self._trainer.optimizer.defaults
        )
        Joinable.__init__(self)
        self.state = self._trainer.optimizer.state
        self._is_ready = True

    def _whole_groups(self, first: int) -> list[dict[str, Any]]:
        """Return groups from a number on: whole parameters, and options of the inner optimizer."""
        members = self._trainer.members()
        return [
            {**group, "params": members[number]}
            for number, group in enumerate(self._trainer.param_groups)
            if number >= first
        ]

    @property
    def trainer(self) -> POS_Trainer:
        """The trainer that does the work.

        It gets the options in `param_groups` when this optimizer steps, saves or loads. Call
        `save()` and `load()` of this optimizer rather than the trainer's.
        """
        return self._trainer

    @property
    def optim(self) -> torch.optim.Optimizer:
        """The optimizer of this rank's part; torch's class uses this name."""
        return self._trainer.optimizer

    @property
    def owners(self) -> dict[str, int]:
        """The rank that owns each parameter, or most of it. See `POS_Trainer.parts_of` for all."""
        return self._trainer.owners

    def close(self) -> None:
        """Give the parameters back, for another optimizer of them; collective."""
        self._trainer.close()

    # ---- training -------------------------------------------------------------------------------

    def step(
        self, closure: Callable[[], Any] | None = None, batch_size: float = 1, **kwargs: Any
    ) -> Any:
        """Step this rank's part, and give it to all ranks; collective.

        Args:
            closure: computes the loss and its gradients, once.
            batch_size: gradients are divided by it.
            **kwargs: further arguments of `optimizer_class.step`.

        Returns:
            What the closure returned.

        Raises:
            MismatchError: gradients or options differ between ranks.
        """
        Join.notify_join_context(self)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.is_joining:
            self._share_gradients(has_data=True)
        self._step(batch_size, kwargs)
        return loss

    def _step(self, batch_size: float, arguments: Mapping[str, Any]) -> None:
        """Step without a closure; collective."""
        self._send_options()
        self._trainer.step_with(batch_size, "step", arguments)
        copy_options(self._trainer.param_groups, self.param_groups)
        self._consolidated = None

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            "a ShardedOptimizer belongs to its world, and cannot be copied or pickled; keep its"
            " state with optimizer.save() or consolidate_state_dict()"
        )

    def _send_options(self) -> None:
        """Give the trainer the options that users and schedulers have set."""
        copy_options(self.param_groups, self._trainer.param_groups)

    def _receive_loaded(self) -> None:
        """Take over the options and the state that the trainer has loaded."""
        copy_options(self._trainer.param_groups, self.param_groups)
        self.state = self._trainer.optimizer.state  # torch makes a new dict when it loads
        self._consolidated = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients."""
        self._trainer.zero_grad(set_to_none)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale gradients down, by the norm of all of them; collective. See `POS_Trainer`."""
        return self._trainer.clip_grad_norm_(max_norm, norm_type)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train more parameters; collective. See `POS_Trainer.add_param_group`."""
        if not self._is_ready:
            super().add_param_group(param_group)
            return
        first = len(self.param_groups)
        self._trainer.add_param_group(param_group)
        for group in self._whole_groups(first):
            super().add_param_group(group)
        self._consolidated = None  # it lacks these parameters

    # ---- state ----------------------------------------------------------------------------------

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Bring the whole state to one rank, for its `state_dict()`; collective."""
        self._send_options()
        self._consolidated = self._trainer.consolidate(to)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the plain optimizer, on the rank that it was consolidated to.

        Options are the current ones: a scheduler may have stepped since.

        Raises:
            StateError: it was not consolidated to this rank since the last step, and since
                parameters were added.
        """
        if self._consolidated is None:
            raise StateError(
                f"rank {self._trainer.rank} has only its part of the state. Call"
                f" consolidate_state_dict(to={self._trainer.rank}) on all ranks first, after the"
                " last step; or save each part with optimizer.save(), or give"
                " optimizer.sharded to torch.distributed.checkpoint"
            )
        groups = [{"params": group["params"]} for group in self._consolidated["param_groups"]]
        copy_options(self.param_groups, groups)
        return {**self._consolidated, "param_groups": groups}

    @property
    def sharded(self) -> ShardedState:
        """This rank's part of the state, for torch.distributed.checkpoint and `kadril.sharded.dcp`.

        dcp.save({"model": model, "optim": optimizer.sharded}, "last")
        """
        return ShardedState(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of a plain optimizer, the same on all ranks.

        Raises:
            CheckpointError: it is of another model; nothing was changed.
        """
        self._send_options()
        self._trainer.load_state_dict(state_dict)
        self._receive_loaded()

    def save(self, path: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write parameters, state and the current options to a directory; collective.

        Each rank writes what it owns. See `POS_Trainer.save`.

        Args:
            path: directory of the checkpoint.
            extra: anything that JSON can hold, such as the state of a scheduler; rank 0's is
                written.

        Raises:
            CheckpointError: a rank could not write; on all ranks.
        """
        self._send_options()
        self._trainer.save(path, extra)

    def load(self, path: str | Path) -> dict[str, Any]:
        """Read what `save` wrote, on any number of ranks; collective. Gradients are dropped.

        Options in `param_groups` become those that were saved. See `POS_Trainer.load`.

        Returns:
            What was given as `extra`.

        Raises:
            CheckpointError: it is missing, damaged or of another model; on all ranks, and nothing
                was changed.
        """
        self._send_options()
        extra = self._trainer.load(path)
        self._receive_loaded()
        return extra

    # ---- join -----------------------------------------------------------------------------------

    def join_hook(self, **_: Any) -> JoinHook:
        """Return the hook for `torch.distributed.algorithms.Join`: ranks without data step along.

        Behind DistributedDataParallel it steps its part with the gradients of a rank that has data;
        DistributedDataParallel, which comes first in `Join([model, optimizer])`, gives it none.
        """
        return StepAlong(self)

    @property
    def is_joining(self) -> bool:
        """Whether ranks may run out of data, and somebody else reduces the gradients."""
        config = self._join_config
        return bool(config.enable) and not self._trainer.reduces_gradients

    def _share_gradients(self, *, has_data: bool) -> None:
        """Give ranks that have run out of data the gradients of the others; collective."""
        share_gradients(self._trainer.transport, self._trainer.members(), has_data=has_data)

    @property
    def join_device(self) -> torch.device:
        """The device of the parameters."""
        return self.param_groups[0]["params"][0].device  # type: ignore[no-any-return]

    @property
    def join_process_group(self) -> Any:
        """The process group over which `Join` counts ranks.

        Raises:
            StateError: torch.distributed was not initialized.
        """
        if not dist.is_initialized():
            raise StateError("Join needs torch.distributed.init_process_group()")
        return dist.group.WORLD


class ShardedState:
    """The state of an optimizer for checkpoints: on each rank its part.

    Args:
        optimizer: the optimizer.
    """

    def __init__(self, optimizer: ShardedOptimizer) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part; local. See `POS_Trainer.state_dict`."""
        self.optimizer._send_options()
        return self.optimizer.trainer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load state; local, on every rank. See `POS_Trainer.load_state_dict`."""
        self.optimizer.load_state_dict(state_dict)


class StepAlong(JoinHook):
    """Steps along on a rank that has run out of data, for as long as others have some."""

    def __init__(self, optimizer: ShardedOptimizer) -> None:
        self._optimizer = optimizer

    def main_hook(self) -> None:
        """Take part in one step, without `step()`, which would tell `Join` that there is data."""
        if self._optimizer.is_joining:
            self._optimizer._share_gradients(has_data=False)
        self._optimizer._step(1, {})


def trainer_of(value: Any) -> POS_Trainer | None:
    """Return the trainer behind a trainer, an optimizer or its state; None for anything else."""
    if isinstance(value, ShardedState):
        value = value.optimizer
    if isinstance(value, ShardedOptimizer):
        value = value.trainer
    return value if isinstance(value, POS_Trainer) else None
