"""The family of Keras 3 on torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kadril.torch as hvd
from kadril.keras.torch_optimizer import ReductionOptions, distribute
from kadril.needs_torch import torch
from kadril.shared_engine.process_sets import ProcessSet
from kadril.shared_keras.distributed_apply import distributed_part
from kadril.shared_keras.family import KerasFamily

__all__ = ["TorchFamily"]


class TorchFamily(KerasFamily):
    """Keras 3 on torch."""

    def distribute(self, optimizer: Any, **options: Any) -> Any:
        """An optimizer that steps with the gradients of all ranks.

        Raises:
            ValueError: an option that is TensorFlow's, or an optimizer of another kind.
        """
        if not isinstance(optimizer, self.keras.optimizers.Optimizer):
            raise ValueError(  # noqa: TRY004 - as for TensorFlow
                f"{type(optimizer).__name__} is no optimizer of Keras; for one of torch there is"
                " kadril.torch.DistributedOptimizer"
            )
        for name in ("device_dense", "device_sparse", "num_groups", "groups"):
            if options.pop(name):
                raise ValueError(f"Keras on torch knows no {name}: leave it out")
        passes = options.pop("backward_passes_per_step")
        averages = options.pop("average_aggregated_gradients")
        name = options.pop("name")
        return distribute(
            self.keras, optimizer, name, ReductionOptions(**options), passes, averages
        )

    def is_distributed(self, optimizer: Any) -> bool:
        """Whether it steps with the gradients of all ranks, or one inside it does."""
        return distributed_part(optimizer) is not None

    def broadcast_variables(self, variables: Sequence[Any], root_rank: int, device: str) -> None:
        """Assign the root's values to variables, on every rank.

        Raises:
            ValueError: a device, which is TensorFlow's.
        """
        if device:
            raise ValueError("Keras on torch knows no device for a broadcast: leave it out")
        # By number: names of layers depend on what else a rank has made.
        named = [(f"{index}", variable.value) for index, variable in enumerate(variables)]
        hvd.broadcast_parameters(named, root_rank)

    def allgather_object(self, obj: Any, process_set: ProcessSet) -> list[Any]:
        """The objects of all ranks."""
        return hvd.allgather_object(obj, process_set=process_set)

    def run(self, kind: str, value: Any, **options: Any) -> Any:
        """Do a collective with a tensor that has the value."""
        tensor = torch.as_tensor(value).detach().cpu()
        return getattr(hvd, kind)(tensor, **options).numpy()

    def broadcast_global_variables(self, root_rank: int) -> None:
        """Raise: there are no global variables.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "Keras on torch has no global variables: use"
            f" hvd.callbacks.BroadcastGlobalVariablesCallback({root_rank})"
        )
