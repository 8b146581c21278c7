"""Picture of a layer with split channels: input, weight and output, and messages between.

       x on P_x               w on P_w               y on P_y
    +-----+-----+          +-----+-----+          +-----------+
    |  0  |  1  |  ----->  |  0  |  1  |  ----->  |     0     |      to the weights: a broadcast
    |  :  |  :  |          +-----+-----+          +-----------+      to the output: a sum
    +-----+-----+          |  2  |  3  |          |     2     |
                           +-----+-----+          +-----------+

Halos are exchanged on P_x before that. All of it is read off the plans of the layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from kadril.nn.conv.conv_layer import ConvLayer
from kadril.nn.conv.split_form import SplitForm
from kadril.nn.drawing.picture import Picture, balanced_structure, look_at_halo
from kadril.ops.box_plan import box_at
from kadril.ops.broadcast import PairedPartitions
from kadril.partition import Interval
from kadril.partition.pairing import index_of

__all__ = ["ChannelPicture", "Message", "look_at_channels"]


class Message(NamedTuple):
    """A message between workers of two partitions.

    Attributes:
        source: world rank of the sender.
        target: world rank of the receiver.
        num_elements: of the message.
    """

    source: int
    target: int
    num_elements: int


class ChannelPicture(NamedTuple):
    """Blocks and messages of a layer with split channels, for one tensor.

    Attributes:
        halo: of the input: blocks, and the exchange before the broadcast.
        weights: world ranks, and their block of the weight: output and input channels. Of workers
            with the same block, the first.
        outputs: world ranks, and their block of the output.
        output_shape: of the global output.
        shapes: of P_x, P_w and P_y.
        broadcasts: messages from the input to the weights.
        sums: messages from the weights to the output.
    """

    halo: Picture
    weights: list[tuple[int, list[Interval]]]
    outputs: list[tuple[int, list[Interval]]]
    output_shape: tuple[int, ...]
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    broadcasts: list[Message]
    sums: list[Message]


def look_at_channels(split_layer: ConvLayer, shape: Sequence[int]) -> ChannelPicture:
    """Describe what a layer with split channels does with a tensor whose blocks are balanced.

    Raises:
        TypeError: its channels are not split.
        ValueError: the tensor does not match the layer.
    """
    layer = split_layer.form
    if not isinstance(layer, SplitForm):
        raise TypeError(f"the channels of {split_layer.what} are not split")
    structure = balanced_structure(layer.P_x, shape)
    spatial = layer.gather.make_plan(structure).outputs[2:]
    halo = look_at_halo(layer.gather, structure, layer.what, shape)
    given = [math.prod(each.size for each in view.result or ()) for view in halo.views]
    blocks = [structure.blocks(layer.what)[0], layer.outputs, *spatial]
    outputs = [
        (rank, box_at(blocks, index_of(worker, layer.P_y.shape)))
        for worker, rank in enumerate(layer.P_y.ranks)
    ]
    taken = [math.prod(each.size for each in box) for _, box in outputs]
    return ChannelPicture(
        halo,
        weights_of(layer),
        outputs,
        tuple(each[-1].stop for each in blocks),
        (layer.P_x.shape, layer.P_w.shape, layer.P_y.shape),
        [Message(*each) for each in messages_between(layer.broadcaster, given)],
        [
            Message(member, root, count)
            for root, member, count in messages_between(layer.reducer, taken)
        ],
    )


def weights_of(layer: SplitForm) -> list[tuple[int, list[Interval]]]:
    """Return the first worker with each block of the weight."""
    workers = layer.split.P_w
    found = []
    for worker, rank in enumerate(workers.ranks):
        batch, out_position, in_position, *spatial = index_of(worker, workers.shape)
        if not batch and not any(spatial):
            found.append((rank, [layer.outputs[out_position], layer.inputs[in_position]]))
    return found


def messages_between(
    partitions: PairedPartitions, counts: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Return the messages between roots and members: world ranks, and numbers of elements.

    Args:
        partitions: of a broadcast or a sum-reduce.
        counts: elements of each worker of the smaller partition.
    """
    if partitions.is_identity:
        return []
    roots, members = partitions.smaller.ranks, partitions.larger.ranks
    return [
        (roots[root], members[worker], counts[root])
        for root, workers in partitions.pairs
        for worker in workers
        if roots[root] != members[worker]
    ]
