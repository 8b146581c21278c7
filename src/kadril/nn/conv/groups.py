"""Grouped convolution of a block of channels: which groups a worker has a part of.

    4 groups of 3 channels on both sides; the input over 2 workers, the output over 3

    inputs    | 0 0 0 1 1 1 | 2 2 2 3 3 3 |            each number is the group of a channel
    outputs   | 0 0 0 1 | 1 1 2 2 | 2 3 3 3 |

The worker with the first inputs and the second outputs has a part of group 1, and of no other: two
of its outputs, all of its inputs. Whole groups next to each other are one grouped convolution;
outputs that no group connects to the inputs at hand are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from kadril.partition import Interval

__all__ = ["Piece", "convolve_pieces", "pieces_of"]


class Piece(NamedTuple):
    """A convolution between some channels.

    Attributes:
        outputs: among the outputs of the worker.
        inputs: among the inputs of the worker.
        columns: among the inputs of a group.
        num_groups: whole groups, or 1 where it is a part of one.
    """

    outputs: Interval
    inputs: Interval
    columns: Interval
    num_groups: int


def pieces_of(
    outputs: Interval, inputs: Interval, out_channels: int, in_channels: int, groups: int
) -> list[Piece]:
    """What a worker has to do, in the order of its outputs.

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


def convolve_pieces(
    x: torch.Tensor,
    weight: torch.Tensor,
    pieces: Sequence[Piece],
    spatial: Sequence[int],
    convolve: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor],
) -> torch.Tensor:
    """The part of the output that the inputs at hand give.

    Args:
        x: the inputs of the worker.
        weight: the rows of its outputs, with all columns of a group.
        pieces: what to do.
        spatial: sizes of the spatial dims of the output.
        convolve: from inputs, weight and number of groups to outputs.
    """
    num_outputs = weight.shape[0]
    if [piece.outputs.size for piece in pieces] == [num_outputs]:
        return convolve_piece(x, weight, pieces[0], convolve)

    def zeros(num_channels: int) -> torch.Tensor:
        return x.new_zeros((x.shape[0], num_channels, *spatial))

    parts = []
    done = 0
    for piece in pieces:
        parts.append(zeros(piece.outputs.start - done))
        parts.append(convolve_piece(x, weight, piece, convolve))
        done = piece.outputs.stop
    # Without elements, but a part of the graph: the backward pass has to get to both, on all ranks.
    ties = x[:0].sum() + weight[:0].sum()
    parts.append(zeros(num_outputs - done) + ties)
    return torch.cat(parts, dim=1)


def convolve_piece(
    x: torch.Tensor,
    weight: torch.Tensor,
    piece: Piece,
    convolve: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor],
) -> torch.Tensor:
    """The outputs of one piece."""
    return convolve(
        x[:, piece.inputs.start : piece.inputs.stop],
        weight[piece.outputs.start : piece.outputs.stop, piece.columns.start : piece.columns.stop],
        piece.num_groups,
    )
