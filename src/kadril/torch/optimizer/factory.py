"""`DistributedOptimizer`: the one line that makes a training program distributed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, cast

import torch

from kadril.shared_engine.basics import size
from kadril.shared_engine.process_sets import ProcessSet, global_process_set
from kadril.shared_engine.reduce_ops import Adasum, Average
from kadril.torch.compression import Compression, Compressor
from kadril.torch.optimizer.adasum_delta import DeltaOptimizer
from kadril.torch.optimizer.distributed import distribute
from kadril.torch.optimizer.naming import ParameterNames
from kadril.torch.optimizer.settings import Groups, Settings, check_settings
from kadril.torch.optimizer.wrapped import GradientOptimizer

__all__ = ["DistributedOptimizer"]

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)


def DistributedOptimizer(  # noqa: N802 - known under this name
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> OptimizerT:
    """Make an optimizer reduce gradients over ranks before each step.

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

    With g_r the gradient of rank r, summed over its backward passes, and n ranks, each rank steps
    with the same gradient:

        Average    g = 1/n * sum_r g_r         (with predivide factor f: f/n * sum_r (g_r / f))
        Sum        g = sum_r g_r
        Adasum     each rank steps with g_r, and the steps are combined

    Reductions start during the backward pass, as gradients come. A parameter without a gradient on
    some rank counts as zero there; one without a gradient on any rank keeps none. `step()` waits;
    `optimizer.synchronize()` waits too, to clip gradients before `step()`. The object given is the
    object returned, so schedulers made before or after both hold.

    Args:
        optimizer: any torch optimizer; the same on every rank.
        named_parameters: of the model, such as `model.named_parameters()`; their order is that of
            the model, and names appear in messages.
        compression: what gradients go through on their way: `Compression.fp16`, for example.
        backward_passes_per_step: gradients of so many backward passes are added up, not averaged,
            before they are reduced.
        op: `Average`, `Sum` or `Adasum`.
        gradient_predivide_factor: part of an average's division that is done before the sum.
        num_groups: deprecated; `groups` takes a number too.
        groups: how many groups, or lists of parameters: those of one group are reduced together.
        sparse_as_dense: reduce sparse gradients as dense tensors: better where most rows are used.
        process_set: the ranks that share gradients; a rank outside of it trains by itself.

    Returns:
        The optimizer, which has these methods besides its own: `synchronize()`,
        `skip_synchronize()`, `set_backward_passes_per_step(passes)`.

    Raises:
        TypeError: not a torch optimizer.
        ValueError: an argument makes no sense; the message says which and why.
        NotInitializedError: before `init()`, where the arguments make sense.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"DistributedOptimizer takes a torch optimizer, not a {type(optimizer).__name__}"
        )
    settings = Settings(
        compression=compression,
        num_passes=backward_passes_per_step,
        op=op,
        predivide=gradient_predivide_factor,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    settings = check_settings(settings, num_groups)
    names = ParameterNames(named_parameters)
    names.check_complete(optimizer)
    # Last, since it needs a world: what is wrong with the arguments is told before init() too.
    is_alone = size() == 1
    kind = DeltaOptimizer if op == Adasum and not is_alone else GradientOptimizer
    return cast("OptimizerT", distribute(optimizer, kind, settings, names))
