"""A model on a partition: the modules of the ordinary one, and programs that call their twins.

    twin(block)  --balance-->  global shapes  --key-->  program  -->  block of the result
                                                  |
                                                  `- not met before: trace, plan, compare, build

A program belongs to the global shapes of the inputs, to the mode of the modules, and to the plain
numbers that the ordinary model keeps. All workers agree on the shapes of the inputs first, so all
of them make a new program in the same call, each by itself, and then compare the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from kadril.nn.distribution.execution.input_blocks import BalancedInput, InputBalancer
from kadril.nn.distribution.execution.program import Program
from kadril.nn.distribution.layout import Subgrids, layout_on
from kadril.nn.distribution.nested import leaves, map_leaves
from kadril.nn.distribution.replicas import Cutter, block_of, whole_of
from kadril.ops.calling import uncompiled
from kadril.ops.structure import PlanCache
from kadril.partition import Partition

__all__ = ["DistributedModel", "ProgramRequest", "tensors_by_name"]

MAX_PROGRAMS = 32


class ProgramRequest(NamedTuple):
    """Inputs and modes that a program is made for.

    Attributes:
        args: tensors on the meta device of the global shapes, and other values.
        kwargs: the same, by name.
        modes: of the modules, by path.
        device: of the inputs.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    modes: Mapping[str, bool]
    device: torch.device


class DistributedModel(nn.Module):
    """An ordinary model on the workers of a partition; `kadril.nn.distribute` makes it.

    Its parameters are those of the ordinary model, the very same objects, and so are the names: a
    `state_dict` does not know of partitions.

    Attributes:
        P_x: where inputs are: one axis for each dim. An input of fewer dims lies on the first axes.
        P_y: where the result of the last call is, nested as the model returns it: this worker's
            line of the partition, with one axis for each dim. Workers beside the line hold
            replicas. Before the first call: that of the example in training.
        takes_equal_blocks: whether workers may all give the same block, of the size of the whole
            example. That is refused, since it is nearly always the whole that was meant.
    """

    P_x: Partition
    P_y: Any
    takes_equal_blocks: bool = False
    # Set by the builder; plain attributes, so that they are no part of the state.
    _make_program: Callable[[ProgramRequest], Program]
    _programs: PlanCache
    _twins_by_path: Mapping[str, nn.Module]
    _balancers: dict[str, InputBalancer]
    _names: Sequence[str]
    _numbers: Sequence[tuple[str, dict[str, Any], str]]

    @uncompiled
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute this worker's block of the result from its blocks of the inputs; collective.

        On ranks outside of the partition: a copy of the first input, without elements.

        Raises:
            ValueError: an input cannot lie on the partition, or all workers gave the whole
                instead of blocks; on all workers.
            DistributeError: with inputs of these sizes the model does something that cannot be
                done on blocks; on all workers.
            MismatchError: blocks do not fit together, or models differ; on all workers.
        """
        if not self.P_x.active:
            (first, *_) = (*args, *kwargs.values())
            if first.numel():
                raise ValueError(
                    "this rank is not in the partition of the model, and holds a tensor of shape"
                    f" {tuple(first.shape)}; give it a zero-volume tensor"
                )
            return first.clone()
        balanced = self._balance(args, kwargs)
        key = self._key(args, kwargs, balanced)
        program = self._programs.find(key)
        if program is None:
            if not self.takes_equal_blocks:
                for name, each in balanced.items():
                    self._balancers[name].refuse_whole(each)
            program = self._make_program(self._request(args, kwargs, balanced))
            self._programs.put(key, program)
        self.__dict__["P_y"] = program.P_y
        return program(self, [each.block for each in balanced.values()])

    def whole(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the same from inputs that every worker has whole; collective.

        Each worker takes its block. Gradients are those of one replicated tensor: after
        `backward()` every worker has the whole gradient of an input.

        Returns:
            This worker's block of the result, on `P_y`.
        """
        cut_args, cut_kwargs = map_leaves(
            (args, kwargs), lambda x: self._cut(x) if isinstance(x, torch.Tensor) else x
        )
        return self(*cut_args, **cut_kwargs)

    def block_of(self, x: torch.Tensor) -> torch.Tensor:
        """Return this worker's block of an input that it has whole (see `kadril.nn.block_of`)."""
        return block_of(x, self.P_x)

    def whole_of(self, y: Any) -> Any:
        """Return the whole of the result, on each worker, as one replicated tensor; collective.

        See `kadril.nn.whole_of`.

        Args:
            y: result of the last call, nested as the model returns it.
        """
        places = iter(leaves(self.P_y))
        return map_leaves(
            y, lambda each: whole_of(each, where) if (where := next(places)) is not None else each
        )

    # Older names. In `kadril.ops`, scatter and gather are between one worker and all.
    scatter = block_of
    gather = whole_of

    def train(self, mode: bool = True) -> DistributedModel:
        """Set the mode, also of layers that stand for a second use of a module."""
        super().train(mode)
        for twin, module in self.__dict__.get("_second_twins", ()):
            twin.train(module.training)
        return self

    def _cut(self, x: torch.Tensor) -> torch.Tensor:
        if self.P_x.index is None:
            return block_of(x, self.P_x)
        layout = layout_on(self.P_x.shape, x.dim())
        return Cutter(Subgrids(self.P_x).partition(layout), "cut of an input")(x)

    def _balance(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, BalancedInput]:
        """Agree on all tensors among the arguments, by name; collective."""
        balanced = {}
        for name, x in tensors_by_name(self._names, args, kwargs):
            if name not in self._balancers:
                layout = layout_on(self.P_x.shape, x.dim())
                self._balancers[name] = InputBalancer(Subgrids(self.P_x).partition(layout), name)
            balanced[name] = self._balancers[name](x)
        return balanced

    def _key(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], balanced: Mapping[str, BalancedInput]
    ) -> tuple[Any, ...]:
        """Return everything that a program depends on."""
        inputs = iter(balanced.values())

        def shown(each: Any) -> Any:
            if isinstance(each, torch.Tensor):
                return next(inputs).sizes, each.dtype, each.device
            return each

        modes = tuple(each.training for each in self._twins_by_path.values())
        numbers = tuple(place.get(name) for _, place, name in self._numbers)
        given = repr(map_leaves((args, kwargs), shown))
        return given, modes, numbers, torch.is_grad_enabled()

    def _request(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], balanced: Mapping[str, BalancedInput]
    ) -> ProgramRequest:
        inputs = iter(balanced.values())

        def as_whole(each: Any) -> Any:
            if not isinstance(each, torch.Tensor):
                return each
            return torch.empty(next(inputs).sizes, dtype=each.dtype, device="meta")

        given = [each for each in leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        whole_args, whole_kwargs = map_leaves((tuple(args), dict(kwargs)), as_whole)
        modes = {path: each.training for path, each in self._twins_by_path.items()}
        device = given[0].device if given else torch.device("cpu")
        return ProgramRequest(whole_args, whole_kwargs, modes, device)


def tensors_by_name(
    names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors among some arguments, and their names for errors.

    Args:
        names: of the arguments of the model.
        args: arguments without name.
        kwargs: those with one.
    """
    known = [*names, *[f"argument {place}" for place in range(len(names), len(args))]]
    found = []
    for name, value in [*zip(known, args, strict=False), *kwargs.items()]:
        if isinstance(value, torch.Tensor):
            found.append((f"input {name!r}", value))
            continue
        tensors = [each for each in leaves(value) if isinstance(each, torch.Tensor)]
        found += [(f"tensor {place} of {name!r}", each) for place, each in enumerate(tensors)]
    return found
