"""State of a layer whose weight is split: saved and loaded as that of the ordinary layer.

    P_w = 2 x 2            weight (out x in x kernel)      state_dict, on every rank

    +-------+-------+
    | 0, 0  | 0, 1  |      one block each          -->     the whole weight, the whole bias
    +-------+-------+                              <--
    | 1, 0  | 1, 1  |      bias: the first column
    +-------+-------+

So what was saved on one partition can be loaded on any other, or without one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from kadril.partition import Interval, Partition

__all__ = ["SplitParameters", "SplitWeight", "collect_whole"]


class SplitWeight(NamedTuple):
    """Blocks of the parameters, and the workers that hold them.

    Attributes:
        P_w: batch x out x in x spatial...; copies along the batch and the spatial axes.
        rows: output channels at each position along the output axis.
        columns: input channels of a group at each position along the input axis.
        shape: of the whole weight.
        has_bias: whether there is a bias; it is with the first position along the input axis.
    """

    P_w: Partition
    rows: list[Interval]
    columns: list[Interval]
    shape: tuple[int, ...]
    has_bias: bool

    def place(self) -> tuple[int, int] | None:
        """Return this rank's position along output and input axis; None outside of `P_w`."""
        return None if self.P_w.index is None else (self.P_w.index[1], self.P_w.index[2])

    def names(self) -> Sequence[str]:
        """Return the names of the parameters."""
        return ("weight", "bias") if self.has_bias else ("weight",)

    def full_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole parameter."""
        return self.shape if name == "weight" else self.shape[:1]

    def block(self, name: str, whole: torch.Tensor) -> torch.Tensor | None:
        """Return this rank's block of a parameter, as a view; None where it has none."""
        place = self.place()
        if place is None or (name == "bias" and place[1] != 0):
            return None
        return whole[self._slices(name, *place)]

    def _slices(self, name: str, row: int, column: int) -> tuple[slice, ...]:
        rows, columns = self.rows[row], self.columns[column]
        slices = (slice(rows.start, rows.stop), slice(columns.start, columns.stop))
        return slices if name == "weight" else slices[:1]

    def collect(self, name: str, mine: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
        """Return a whole parameter on every rank; collective over the world.

        Args:
            name: "weight" or "bias".
            mine: this rank's block of it.
            like: has its dtype and device.
        """
        places = [
            self._slices(name, *place) if name == "weight" or place[1] == 0 else None
            for place in itertools.product(range(len(self.rows)), range(len(self.columns)))
        ]
        block = like.new_empty(0) if mine is None else mine.detach()
        return collect_whole(
            self.P_w, [1, 2], block, places, self.full_shape(name), f"{name} of a split layer"
        )

    def slice_state(
        self,
        state: dict[str, torch.Tensor],
        prefix: str,
        strict: bool,
        missing: list[str],
        errors: list[str],
    ) -> None:
        """Replace whole parameters in a state by the blocks of this rank.

        Args:
            state: what is loaded, in which keys are replaced, or taken out where there is no block.
            prefix: of the layer.
            strict: whether a parameter that is not there is an error.
            missing: gets the names of those.
            errors: gets what is wrong with others.
        """
        for name in self.names():
            key = prefix + name
            whole = state.pop(key, None)
            if whole is None:
                if strict:
                    missing.append(key)
            elif tuple(whole.shape) != self.full_shape(name):
                errors.append(
                    f"size mismatch for {key}: {tuple(whole.shape)} in the state, and"
                    f" {self.full_shape(name)} in the whole layer"
                )
            else:
                block = self.block(name, whole)
                if block is not None:
                    state[key] = block.clone()


def collect_whole(
    P: Partition,
    axes: Sequence[int],
    mine: torch.Tensor,
    places: Sequence[tuple[slice, ...] | None],
    shape: Sequence[int],
    what: str,
) -> torch.Tensor:
    """Return a whole parameter on every rank; collective over the world.

    Args:
        P: whose workers hold the blocks.
        axes: along which blocks differ.
        mine: the block of this rank; without elements where it has none.
        places: of the blocks of all workers along these axes; None where one has none.
        shape: of the whole.
        what: name of the layer in errors.
    """
    whole = mine.new_empty(shape)
    if P.active:
        counts = [0 if place is None else whole[place].numel() for place in places]
        flat = whole.new_empty(sum(counts))
        block = mine.contiguous().view(-1)
        P.axis_group(axes).transport.allgatherv(block, flat, counts, name=what)
        for part, place in zip(torch.split(flat, counts), places, strict=True):
            if place is not None:
                whole[place] = part.view(whole[place].shape)
    if len(P.root.ranks) > P.size:
        P.root.transport.broadcast(whole, P.root.ranks.index(P.ranks[0]), name=what)
    return whole


class SplitParameters(torch.nn.Module):
    """Base of a layer, before the torch layer, whose parameters may be split.

    Attributes:
        split: who holds which block; None where the layer has whole parameters, as torch's.
        like: has the dtype and the device of parameters, where they are split.
    """

    split: SplitWeight | None = None
    like: torch.Tensor

    def _keep_blocks(self, split: SplitWeight, source: torch.nn.Module) -> None:
        """Hold blocks of the parameters of a layer, instead of whole ones."""
        self.split = split
        # Follows the layer to other dtypes and devices where there is no parameter that would.
        like = source.get_parameter("weight").detach().new_empty(0)
        self.register_buffer("like", like, persistent=False)
        for name in split.names():
            whole = source.get_parameter(name)
            block = split.block(name, whole.detach())
            parameter = None
            if block is not None:
                parameter = torch.nn.Parameter(block.clone(), requires_grad=whole.requires_grad)
            self.register_parameter(name, parameter)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        """Save whole parameters; where they are split, collective over the world."""
        if self.split is None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            return
        for name in self.split.names():
            mine = getattr(self, name)
            destination[prefix + name] = self.split.collect(name, mine, self.like)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load whole parameters, or this rank's blocks of them."""
        is_split = self.split is not None
        if self.split is not None:
            self.split.slice_state(state_dict, prefix, strict, missing_keys, error_msgs)
        # Which whole parameters are missing was found above, also on ranks that have no block.
        super()._load_from_state_dict(
            state_dict,
            prefix,
            local_metadata,
            strict,
            [] if is_split else missing_keys,
            unexpected_keys,
            error_msgs,
        )
