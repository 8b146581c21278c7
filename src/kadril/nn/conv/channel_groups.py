"""Grouped convolution of a block of channels: which groups a worker has a part of.

    4 groups of 3 channels on both sides; the input over 2 workers, the output over 3

    inputs    | 0 0 0 1 1 1 | 2 2 2 3 3 3 |            each number is the group of a channel
    outputs   | 0 0 0 1 | 1 1 2 2 | 2 3 3 3 |

The worker with the first inputs and the second outputs has a part of group 1, and of no other: two
of its outputs, all of its inputs. Whole groups next to each other are one grouped convolution;
outputs that no group connects to the inputs at hand are zeros.

The weight of a transposed convolution has inputs for rows, and outputs of a group for columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from kadril.partition import Interval

__all__ = ["Piece", "convolve_pieces", "pieces_of", "transposed_pieces_of"]


class Piece(NamedTuple):
    """A convolution between some channels.

    Attributes:
        outputs: among the outputs of the worker.
        inputs: among the inputs of the worker.
        columns: among the inputs of a group; among its outputs where transposed.
        num_groups: whole groups, or 1 where it is a part of one.
    """

    outputs: Interval
    inputs: Interval
    columns: Interval
    num_groups: int


def pieces_of(
    outputs: Interval, inputs: Interval, out_channels: int, in_channels: int, groups: int
) -> list[Piece]:
    """Return the convolutions that a worker has to do, in the order of its outputs.

    Args:
        outputs: channels of the whole output that the worker computes.
        inputs: channels of the whole input that it has.
        out_channels: of the whole output.
        in_channels: of the whole input.
        groups: into which both are divided.
    """
    num_out, num_in = out_channels // groups, in_channels // groups
    pieces: list[Piece] = []
    is_last_whole = False
    for group in range(groups):
        rows = outputs & Interval(group * num_out, (group + 1) * num_out)
        columns = inputs & Interval(group * num_in, (group + 1) * num_in)
        if not rows.size or not columns.size:
            is_last_whole = False
            continue
        is_whole = rows.size == num_out and columns.size == num_in
        piece = Piece(
            rows.shifted(-outputs.start),
            columns.shifted(-inputs.start),
            columns.shifted(-group * num_in),
            1,
        )
        if is_whole and is_last_whole:
            last = pieces.pop()
            piece = Piece(
                Interval(last.outputs.start, piece.outputs.stop),
                Interval(last.inputs.start, piece.inputs.stop),
                piece.columns,
                last.num_groups + 1,
            )
        pieces.append(piece)
        is_last_whole = is_whole
    return pieces


def transposed_pieces_of(
    outputs: Interval, inputs: Interval, out_channels: int, in_channels: int, groups: int
) -> list[Piece]:
    """Return the pieces of a transposed convolution; see `pieces_of`."""
    return [
        Piece(piece.inputs, piece.outputs, piece.columns, piece.num_groups)
        for piece in pieces_of(inputs, outputs, in_channels, out_channels, groups)
    ]


def convolve_pieces(
    x: torch.Tensor,
    weight: torch.Tensor,
    pieces: Sequence[Piece],
    shape: Sequence[int],
    convolve: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor],
    *,
    is_transposed: bool = False,
) -> torch.Tensor:
    """Compute the part of the output that the inputs at hand give.

    Args:
        x: the inputs of the worker.
        weight: the rows of its outputs, with all columns of a group; of its inputs where
            transposed.
        pieces: convolutions of groups of channels, in their order.
        shape: channels and spatial sizes of the output.
        convolve: from inputs, weight and number of groups to outputs.
        is_transposed: whether the weight is that of a transposed convolution.
    """
    num_outputs, *spatial = shape

    def convolved(piece: Piece) -> torch.Tensor:
        rows = piece.inputs if is_transposed else piece.outputs
        return convolve(
            x[:, piece.inputs.start : piece.inputs.stop],
            weight[rows.start : rows.stop, piece.columns.start : piece.columns.stop],
            piece.num_groups,
        )

    def zeros(num_channels: int) -> torch.Tensor:
        return x.new_zeros((x.shape[0], num_channels, *spatial))

    if [piece.outputs.size for piece in pieces] == [num_outputs]:
        return convolved(pieces[0])
    parts = []
    done = 0
    for piece in pieces:
        parts.append(zeros(piece.outputs.start - done))
        parts.append(convolved(piece))
        done = piece.outputs.stop
    # Without elements, but a part of the graph: the backward pass has to get to both, on all ranks.
    ties = x[:0].sum() + weight[:0].sum()
    parts.append(zeros(num_outputs - done) + ties)
    return torch.cat(parts, dim=1)
