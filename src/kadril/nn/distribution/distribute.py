"""`distribute`: an ordinary torch model, on the blocks of a partition, with the same result.

    model = UNet()                                               # ordinary torch
    P_x = kadril.grid(1, 1, 2, 2)
    twin = kadril.nn.distribute(model, P_x, example)             # the same parameters

    y = twin(twin.block_of(x))                                   # blocks in, blocks out
    loss = mse_loss(twin.whole_of(y), target)                    # one loss, on every worker
    loss.backward()                                              # every worker: whole gradients

The model is run once on tensors without memory, every call is recorded, and its result gets a
layout (`layout.py`). Layers become their partitioned twins; element-wise ones stay. Where a call
needs a whole dim that is split (`flatten` before a linear layer; a map with fewer elements than
there are workers), the dim is gathered first. From there on the workers that it was split over are
*replicas*: they do the same, and count once.

    split over rows and columns          |  replicas
    conv -- relu -- pool -- conv -- pool --gather--> flatten -- linear -- relu -- linear --> y

The convention for replicas, and for losses:

1. A replicated tensor is one vector, however many workers hold it. Every worker computes the same
   loss of it, and calls `backward()`: that is one loss, and nothing is summed over replicas.
2. Gradients of parameters are summed over the workers that a layer is split over, and over no
   others. After `backward()` every worker has the whole gradient of the loss.
3. A loss of blocks has to be made one: by `whole_of` before an ordinary loss, by the losses of
   `kadril.nn` on `P_y`, or by `ops.total` over `P_y`. With a loss for each block of the batch,
   gradients are those of the *sum* of these losses.

So an optimizer has nothing to reduce where the partition has all ranks (averaging equal gradients,
as `kadril.torch.DistributedOptimizer` does, does no harm). Where several partitions hold replicas
of the model, each with its own data, it averages over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from kadril.errors import MismatchError
from kadril.nn.distribution.execution.builder import Builder
from kadril.nn.distribution.execution.model import DistributedModel, ProgramRequest
from kadril.nn.distribution.execution.program import Program
from kadril.nn.distribution.nested import leaves
from kadril.nn.distribution.planning.call_plan import CallPlan, plan_calls
from kadril.nn.distribution.replicas import block_of, whole_of
from kadril.nn.distribution.rules.call import DistributeError
from kadril.nn.distribution.tracing.trace import Traced, trace
from kadril.nn.sharing import same_on_all
from kadril.partition import Partition
from kadril.partition.pairing import text
from kadril.transport.agreement import check_same, raise_on_all

__all__ = [
    "DistributeError",
    "DistributedModel",
    "block_of",
    "distribute",
    "join",
    "split",
    "whole_of",
]

SAME_EVERYWHERE = "Give the same model and the same example on every rank"

# Older names. Elsewhere, `split` makes groups of ranks, and `join` ends a rank's part.
split = block_of
join = whole_of


def distribute(
    model: nn.Module,
    partition: Partition,
    example: torch.Tensor | Sequence[torch.Tensor],
    *,
    gather: bool = False,
) -> DistributedModel:
    """Make the partitioned twin of a model; collective over the partition.

    The model itself stays as it is, except that all workers get the parameters and buffers of the
    first one, in place. The twin has the very same parameter objects under the same names, so
    that `state_dict` is the ordinary model's: what was saved on 4 ranks can be loaded on 1 or 6,
    and without this library.

    | | on each worker |
    |---|---|
    | inputs | block of the global tensor on `partition`; blocks may have any sizes |
    | result | balanced block on `P_y` of the twin: this worker's subgrid of the partition |
    | parameters | all of them |

    Supported: the layers of `kadril.nn` and element-wise ones, as modules and as functions; `cat`,
    `+` and the like with broadcasting, reductions, reshapes, slices, `F.pad`, matrix products; and
    any call whose operands are whole on every worker (`rules/` has the tables).

    `forward` may read sizes, which are the global ones, unpack tuples of tensors, make tensors
    (`torch.arange`, `torch.zeros`), and write into them. It is traced once for all inputs of some
    global shapes, for each mode, and for the plain numbers that modules keep. What it does must not
    depend on the values of inputs or parameters. What is not known to be right is refused by name:
    random numbers besides dropouts, backward passes of its own, attributes that it assigns tensors
    to, writes into memory that another tensor shares.

    Args:
        model: of `torch.nn` modules.
        partition: one axis for each dim of the input: batch, channels, space. Splitting channels
            is possible, and helps no layer that needs them all.
        example: the global input, or one for each argument. Only shape and dtype are used: a tensor
            on the meta device will do. Other sizes can be given later, as long as no dim gets too
            small for its workers: the model is then traced again, which takes about a millisecond
            for each call, and the last 32 programs are kept.
        gather: whether calls that have no partitioned form, such as `topk` along a split dim, may
            gather what they need on every worker. If not, the error says what it would cost.

    Returns:
        The twin, in the mode of the model. On ranks outside of the partition it takes and returns
        tensors without elements.

    Raises:
        DistributeError: the model cannot be traced, does not take the example, or does something
            that cannot be done on blocks; it names each module, its class and the reason. Nothing
            was changed.
        MismatchError: models, or examples, differ between workers; on all of them.
    """
    examples = (example,) if isinstance(example, torch.Tensor) else tuple(example)
    maker = ProgramMaker(model, partition, examples, gather)
    programs = maker.for_training_and_evaluation()
    twin = maker.builder.finish(maker, examples, programs[0].P_y)
    same_on_all(partition, [*model.parameters(), *model.buffers()], what="distribute")
    return twin


class ProgramMaker:
    """Makes programs of a model, also for inputs of other sizes; collective over the partition.

    Args:
        model: the ordinary one.
        partition: to split it over.
        examples: of its inputs.
        gather: see `distribute`.
    """

    def __init__(
        self,
        model: nn.Module,
        partition: Partition,
        examples: Sequence[Any],
        gather: bool = False,
    ) -> None:
        self.model = model
        self.partition = partition
        self.examples = examples
        self.gather = gather
        self.builder = Builder(model, partition)

    def __call__(self, request: ProgramRequest) -> Program:
        """Return the program for some inputs.

        Raises:
            DistributeError: there is none; on all workers.
            MismatchError: workers have different models; on all of them.
        """
        found: tuple[Traced, CallPlan] | None = None
        lines: list[str] = []
        error: DistributeError | None = None
        try:
            check_axes(self.examples, self.partition)
            traced = trace(self.model, request.args, request.kwargs, request.modes, request.device)
            lines = [f"gather={self.gather}", *lines_of(self.model, traced)]
            found = traced, plan_calls(self.model, traced, self.partition.shape, self.gather)
        except DistributeError as caught:
            error = caught
        if self.partition.active:
            raise_on_all(self.partition.transport, "distribute", error, MismatchError)
            check_same(self.partition.transport, "distribute", lines, advice=SAME_EVERYWHERE)
        if error is not None or found is None:
            raise error or AssertionError("there is a plan, or an error")
        return self.builder.program(*found)

    def for_training_and_evaluation(self) -> list[Program]:
        """Return the programs for the examples, in both modes; raises what a call does."""
        device = next((each.device for each in self.model.parameters()), torch.device("cpu"))
        paths = [path for path, _ in self.model.named_modules()]
        return [
            self(ProgramRequest(tuple(self.examples), {}, dict.fromkeys(paths, mode), device))
            for mode in (True, False)
        ]


def check_axes(examples: Sequence[Any], partition: Partition) -> None:
    """Refuse a partition that does not match the inputs.

    Raises:
        DistributeError: the first input does not have one dim for each axis, or another has more.
    """
    tensors = [each for each in leaves(examples) if isinstance(each, torch.Tensor)]
    if not tensors:
        raise DistributeError("an example of the input is needed")
    for place, each in enumerate(tensors):
        if each.dim() > partition.dim or (place == 0 and each.dim() != partition.dim):
            raise DistributeError(
                f"input {place} of the example has {each.dim()} dims, and the partition has shape"
                f" {text(partition.shape)}; give the partition one axis for each dim"
            )


def lines_of(model: nn.Module, traced: Traced) -> list[str]:
    """Return lines of text that differ where models, or examples, do."""
    state = [*model.named_parameters(), *model.named_buffers()]
    return [
        *traced.text.splitlines(),
        *(f"{name} {module}" for name, module in model.named_modules()),
        *(f"{name} {tuple(each.shape)} {each.dtype} {each.requires_grad}" for name, each in state),
    ]
