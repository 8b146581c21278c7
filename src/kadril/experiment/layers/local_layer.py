"""Local layers: each output is made of a small field of the image.

An image lies as one row: channel by channel, each row by row. `ifmshape` is the size of the maps
that the layer gets, in the file that of the whole image; after `adjust_for_dist()` that of the
view, and every other size follows from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kadril.experiment.global_array import GlobalArray
from kadril.experiment.layers.layer import BaseLayer, check_given

__all__ = ["LocalLayer", "LocalLayerDist", "ViewLayerDist", "as_pair"]


def as_pair(shape: Sequence[int], what: str) -> tuple[int, int]:
    """Return rows and columns.

    Raises:
        ValueError: there are not two of them, or one is below 1.
    """
    if len(shape) != 2 or min(shape) < 1:
        raise ValueError(f"{what} has rows and columns, both at least 1; got {list(shape)}")
    return int(shape[0]), int(shape[1])


class LocalLayer(BaseLayer):
    """A layer on images: sizes of maps and filters.

    Attributes:
        nifm, nofm: channels of the input and of the output.
        ifmshape, ofmshape: rows and columns of their maps, on this rank.
        fshape: rows and columns of a field.
        stride: from one field to the next.
        ifmheight, ifmwidth, ofmheight, ofmwidth, fheight, fwidth: the same, one by one.
        ifmsize, ofmsize: pixels of a map. fsize: inputs of an output.
        global_ifmshape, global_ofmshape: of the whole image.
        keeps_size: whether the layer pads, and has as many outputs as inputs.
    """

    keeps_size = False

    def set_sizes(
        self,
        nifm: int,
        nofm: int,
        ifmshape: Sequence[int],
        fshape: Sequence[int],
        stride: int,
    ) -> None:
        """Take the sizes of the whole image.

        Raises:
            ValueError: fields are larger than the image, or sizes are not at least 1.
        """
        check_given(self.name, nifm=nifm, nofm=nofm, ifmshape=ifmshape, fshape=fshape)
        if min(nifm, nofm, stride) < 1:
            raise ValueError(f"{self.name}: nifm, nofm and stride must be at least 1")
        self.nifm, self.nofm, self.stride = nifm, nofm, stride
        self.fshape = self.fheight, self.fwidth = as_pair(fshape, f"{self.name}: fshape")
        self.take_shape(as_pair(ifmshape, f"{self.name}: ifmshape"))
        self.global_ifmshape, self.global_ofmshape = self.ifmshape, self.ofmshape

    def take_shape(self, ifmshape: tuple[int, int]) -> None:
        """Take the size of the maps that this rank computes on; all others follow."""
        self.ifmshape = self.ifmheight, self.ifmwidth = ifmshape
        outputs = [
            size if self.keeps_size else (size - field) // self.stride + 1
            for size, field in zip(ifmshape, self.fshape, strict=True)
        ]
        if min(outputs) < 1:
            raise ValueError(
                f"{self.name}: fields of {self.fheight} x {self.fwidth} on an image of"
                f" {self.ifmheight} x {self.ifmwidth}"
            )
        self.ofmshape = self.ofmheight, self.ofmwidth = outputs[0], outputs[1]
        self.ifmsize = self.ifmheight * self.ifmwidth
        self.ofmsize = self.ofmheight * self.ofmwidth
        self.fsize = self.nifm * self.fheight * self.fwidth
        self.nin = self.nifm * self.ifmsize
        self.nout = self.nofm * self.ofmsize

    def adjust_for_dist(self) -> None:
        """Take the sizes of the view that `.input` gives, and all that follow from them."""
        if self.input is not None:
            rows, columns = self.input.local_array.ifmshape
            self.take_shape((rows, columns))

    def as_maps(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return rows of inputs as maps: batch x channels x rows x columns."""
        return inputs.reshape(len(inputs), self.nifm, self.ifmheight, self.ifmwidth)

    def as_output_maps(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return rows of outputs as maps."""
        return outputs.reshape(len(outputs), self.nofm, self.ofmheight, self.ofmwidth)


class LocalLayerDist(LocalLayer):
    """Mark of the distributed local layers; derive from it and from the plain layer.

    `fprop` gets this rank's block and takes the view of it, `bprop` likewise:

        def fprop(self, inputs_):
            inputs = self.input.get_fprop_view(inputs_)
            super().fprop(inputs)
    """

    @property
    def view(self) -> GlobalArray:
        """The `.input`.

        Raises:
            ValueError: there is none; the model's `adjust_for_dist()` makes it.
        """
        if self.input is None:
            raise ValueError(
                f"{self.name} has no .input yet: call adjust_for_dist() of the model, or give it a"
                " GlobalArray"
            )
        return self.input


class ViewLayerDist(LocalLayerDist):
    """Distributed layers that do what the plain ones do, on the view of this rank's block."""

    def fprop(self, inputs_: torch.Tensor) -> torch.Tensor:
        """Make `output` of this rank's block."""
        return super().fprop(self.view.get_fprop_view(inputs_))

    def bprop(
        self, error: torch.Tensor, inputs_: torch.Tensor, epoch: int = 0, momentum: Any = None
    ) -> None:
        """Make `berror`, of the view, and update weights."""
        super().bprop(error, self.view.chunk_of(inputs_), epoch, momentum)
