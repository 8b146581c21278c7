"""Check that layers go together, with each other and with the data that they are given."""

from __future__ import annotations

from collections.abc import Sequence

from kadril.experiment.errors import ExperimentError
from kadril.experiment.layers.fully_connected import LayerWithNoBias
from kadril.experiment.layers.layer import BaseLayer
from kadril.experiment.layers.local_layer import LocalLayer

__all__ = ["check_layer_sizes"]


class Maps:
    """Input of a layer: a number of maps of some size, or a number of values.

    Attributes:
        source: what makes them.
        count: maps; the numbers where `shape` is None.
        shape: rows and columns of a map.
    """

    def __init__(self, source: str, count: int, shape: tuple[int, ...] | None = None) -> None:
        self.source, self.count, self.shape = source, count, shape

    @property
    def numel(self) -> int:
        """Numbers in all."""
        rows, columns = self.shape or (1, 1)
        return self.count * rows * columns


def check_layer_sizes(
    name: str, layers: Sequence[BaseLayer], image_shape: Sequence[int] | None = None
) -> None:
    """Refuse layers of which one is given something else than it takes.

    Sizes are those of whole images. Nothing is known of what follows a layer of another kind than
    those of this package.

    Args:
        name: of the model, for errors.
        layers: in their order.
        image_shape: channels, rows and columns of the data; unknown where None.

    Raises:
        ExperimentError: names both sides.
    """
    given: Maps | None = None
    if image_shape is not None:
        channels, *shape = (1, *image_shape)[-3:]
        given = Maps("the dataset", channels, tuple(shape))
    for layer in layers:
        if isinstance(layer, LocalLayer):
            if given is not None:
                check_maps(name, given, layer)
            given = Maps(layer.name, layer.nofm, layer.global_ofmshape)
        elif isinstance(layer, LayerWithNoBias):
            num_outputs, num_inputs = layer.whole_shape
            if given is not None and given.numel != num_inputs:
                raise ExperimentError(
                    f"{name}: {layer.name} takes {num_inputs} inputs, and gets {given.numel}"
                )
            given = Maps(layer.name, num_outputs)
        else:
            given = None


def check_maps(name: str, given: Maps, layer: LocalLayer) -> None:
    """Refuse what a layer on images is given, if it is of another size."""
    if given.shape is None:
        raise ExperimentError(
            f"{name}: {layer.name} is a layer on images, and follows {given.source}, which makes no"
            " images"
        )
    if (given.count, given.shape) != (layer.nifm, layer.global_ifmshape):
        raise ExperimentError(
            f"{name}: {given.source} makes {given.count} maps of {given.shape}, and {layer.name}"
            f" takes {layer.nifm} of {layer.global_ifmshape}"
        )
