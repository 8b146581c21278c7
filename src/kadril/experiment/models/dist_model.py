"""The base of distributed models: towers, and layers that know their part.

Each rank has its part of every image, and makes its part of every layer's output. A layer on images
gets a `GlobalArray` as its `.input`; a fully connected one gets the columns of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kadril.experiment.errors import ExperimentError
from kadril.experiment.global_array import GlobalArray
from kadril.experiment.layers.fully_connected import LayerWithNoBiasDist
from kadril.experiment.layers.layer import BaseLayer, Learned, WeightLayer, learn_together
from kadril.experiment.layers.local_layer import LocalLayer
from kadril.experiment.models.layer_sizes import check_layer_sizes
from kadril.experiment.models.model import Model
from kadril.experiment.towers import Towers, choose_grid
from kadril.partition import balanced_intervals
from kadril.partition.partition import world_partition

__all__ = ["DistModel"]


class DistModel(Model):
    """Base of the distributed models; derive from it, and from the plain model.

    Args:
        grid: ranks along the rows and columns of images; the squarest that fits where None.
        groups: how many grids there are; each takes its part of every batch.
        settings: of the plain model.
    """

    def __init__(
        self, *, grid: Sequence[int] | None = None, groups: int = 1, **settings: Any
    ) -> None:
        super().__init__(**settings)
        if groups < 1:
            raise ValueError(f"there is at least one group of towers, not {groups}")
        self.grid = grid
        self.groups = groups

    def make_towers(self, image_shape: Sequence[int] | None = None) -> Towers:
        """Arrange the ranks of the world; collective over it.

        Args:
            image_shape: channels, rows and columns of the data.

        Raises:
            GridError: some rank would have no part of a layer; names the grids that fit.
        """
        shapes = [shape for layer in self.sequence for shape in shapes_of(layer)]
        if image_shape is not None:
            shapes.append((image_shape[-2], image_shape[-1]))
        if not shapes:
            raise ExperimentError(
                f"{self.name} has no layer on images: give adjust_for_dist() the image_shape of the"
                " data"
            )
        smallest = [min(along) for along in zip(*shapes, strict=True)]
        num_ranks = world_partition().size
        if num_ranks % self.groups:
            raise ExperimentError(
                f"{self.name}: {num_ranks} ranks cannot be {self.groups} groups of as many each"
            )
        chosen = choose_grid(num_ranks // self.groups, smallest, self.name, self.grid)
        return Towers(chosen, self.groups)

    def adjust_for_dist(
        self, image_shape: Sequence[int] | None = None, towers: Towers | None = None
    ) -> None:
        """Give each layer its part; collective over the world.

        Args:
            image_shape: channels, rows and columns of the data; needed where the first layer is
                fully connected.
            towers: the ranks, where they were arranged before.

        Raises:
            GridError: see `make_towers`.
            ExperimentError: a layer is not distributed, or one does not match the one before.
        """
        check_layer_sizes(self.name, self.sequence, image_shape)
        self.towers = towers or self.make_towers(image_shape)
        before: BaseLayer | None = None
        for layer in self.sequence:
            self._check_is_dist(layer)
            layer.towers = self.towers
            if isinstance(layer, LocalLayer):
                self._give_input(layer, before)
            elif isinstance(layer, LayerWithNoBiasDist):
                self._give_columns(layer, before, image_shape)
            layer.adjust_for_dist()
            before = layer

    def bprop(
        self,
        targets: torch.Tensor,
        inputs: torch.Tensor,
        epoch: int = 0,
        momentum: Any = None,
        batch_size: int | None = None,
        num_layers: int | None = None,
    ) -> None:
        """Run the layers backwards; updates are summed over ranks together. See `Model.bprop`."""
        collected: list[Learned] = []
        layers = [layer for layer in self.sequence if isinstance(layer, WeightLayer)]
        for layer in layers:
            layer.collected = collected
        try:
            super().bprop(targets, inputs, epoch, momentum, batch_size, num_layers)
        finally:
            for layer in layers:
                layer.collected = None
        learn_together(collected)

    def _check_is_dist(self, layer: BaseLayer) -> None:
        name = type(layer).__name__
        is_ours = type(layer).__module__.startswith("kadril.experiment.layers")
        if is_ours and not name.endswith("Dist"):
            raise ExperimentError(
                f"{self.name}: layer {layer.pos} ({layer.name}) is a {name}, which knows nothing of"
                f" other ranks; use {name}Dist"
            )

    def _give_input(self, layer: LocalLayer, before: BaseLayer | None) -> None:
        h = w = -1
        if isinstance(before, LocalLayer):
            h, w = before.ofmheight, before.ofmwidth
        layer.input = GlobalArray(layer, h, w, lcn_layer_flag=layer.keeps_size)

    def _give_columns(
        self, layer: LayerWithNoBiasDist, before: BaseLayer | None, image: Sequence[int] | None
    ) -> None:
        if self.towers is None:
            raise AssertionError("ranks are arranged before layers")
        if isinstance(before, LocalLayer):
            (rows, columns), (height, width) = before.global_ofmshape, before.ofmshape
            top, left = output_corner(before)
            maps = torch.arange(before.nofm * rows * columns).view(before.nofm, rows, columns)
            layer.in_indices = maps[:, top : top + height, left : left + width].flatten()
        elif before is None:
            if image is None:
                raise ExperimentError(
                    f"{self.name}: {layer.name} is the first layer: give adjust_for_dist() the"
                    " image_shape of the data"
                )
            channels, rows, columns = (1, *image)[-3:]
            maps = torch.arange(channels * rows * columns).view(channels, rows, columns)
            down, across = self.towers.part_of((rows, columns))
            layer.in_indices = maps[:, slice(*down), slice(*across)].flatten()
        elif layer.worth_splitting:
            share = balanced_intervals(layer.nin, self.towers.size)[self.towers.rank]
            layer.in_indices = torch.arange(*share)
            layer.share = slice(*share)


def shapes_of(layer: BaseLayer) -> list[tuple[int, int]]:
    """Return rows and columns of a layer's whole input and output, if it is one on images."""
    if not isinstance(layer, LocalLayer):
        return []
    return [layer.global_ifmshape, layer.global_ofmshape]


def output_corner(layer: LocalLayer) -> tuple[int, int]:
    """Return the first row and column of this rank's outputs, in the whole output."""
    if layer.input is None:
        raise AssertionError("a distributed layer on images has an .input")
    row, column = layer.input.local_array.top_left_output
    return row, column
