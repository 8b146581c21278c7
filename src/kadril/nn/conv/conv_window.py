"""The window of a convolution along one dim: which inputs an output is made of, and the reverse.

    kernel 3, stride 2, dilation 1, padding 1 before

    input      -1 | 0 1 2 3 4 5 6 7
    output 0   [- - -]
    output 1        [- - -]                    outputs 1..2 need inputs 1..5
    output 2            [- - -]

A transposed convolution is the adjoint: an input reaches the outputs that it would be made of.
All of it is arithmetic on the global tensor; every rank does it for all ranks.
"""

from __future__ import annotations

from typing import NamedTuple

from kadril.partition import Interval

__all__ = ["FIRST_SPATIAL", "ConvWindow", "TransposedWindow"]

FIRST_SPATIAL = 2  # dim of a tensor, and axis of P_x; before it are the batch and the channels


class ConvWindow(NamedTuple):
    """The window of a convolution.

    Attributes:
        kernel: elements of the kernel.
        stride: from one output to the next, in inputs.
        dilation: from one element of the kernel to the next, in inputs.
        before: elements of padding before the first input.
        after: elements of padding after the last input.
        is_whole: whether the dim is not split, and torch's own convolution does the padding:
            nothing has to be copied for it.
    """

    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    is_whole: bool = False

    @property
    def reach(self) -> int:
        """Inputs from the first to the last that one output is made of."""
        return self.dilation * (self.kernel - 1) + 1

    def output_size(self, size: int) -> int:
        """Return the number of outputs; 0 where the window is wider than the padded dim."""
        return max(0, (size + self.before + self.after - self.reach) // self.stride + 1)

    def inputs_of(self, outputs: Interval, size: int) -> Interval:
        """Return what some outputs are made of; below 0, and from the size on, is padding."""
        return Interval(0, size) if self.is_whole else self.span(outputs)

    def span(self, outputs: Interval) -> Interval:
        """Return the first to the last input of some outputs, also where torch does the padding."""
        start = self.stride * outputs.start - self.before
        return Interval(start, start + self.stride * (outputs.size - 1) + self.reach)


class TransposedWindow(NamedTuple):
    """The window of a transposed convolution.

    Attributes:
        kernel: elements of the kernel.
        stride: from one input to the next, in outputs.
        dilation: from one element of the kernel to the next, in outputs.
        padding: outputs that are cut off at both ends.
        output_padding: outputs more at the last end.
        is_whole: whether the dim is not split: then torch's own convolution does it all.
    """

    kernel: int
    stride: int
    dilation: int
    padding: int
    output_padding: int
    is_whole: bool = False

    @property
    def reach(self) -> int:
        """Outputs from the first to the last that one input goes into."""
        return self.dilation * (self.kernel - 1) + 1

    def output_size(self, size: int) -> int:
        """Return the number of outputs for so many inputs."""
        return max(0, self.covered_size(size) + self.output_padding)

    def covered_size(self, size: int) -> int:
        """Return the number of outputs without output padding; less than 0 if too many are cut."""
        return (size - 1) * self.stride + self.reach - 2 * self.padding

    def outputs_of(self, inputs: Interval) -> Interval:
        """Return the first to the last output that these inputs go into."""
        start = self.stride * inputs.start - self.padding
        return Interval(start, start + self.stride * (inputs.size - 1) + self.reach)

    def inputs_of(self, outputs: Interval, size: int) -> Interval:
        """Return an interval of inputs that holds every input which contributes to `outputs`.

        It is wide enough that `outputs_of` it covers them: an output that no input goes into
        (stride wider than the kernel, output padding) has an input beside it nevertheless.
        Below 0, and from the size on, inputs are zeros.
        """
        if self.is_whole:
            return Interval(0, size)
        first = outputs.start + self.padding
        last = outputs.stop - 1 + self.padding
        # Input i goes into stride * i ... stride * i + reach - 1, before the cut of the padding.
        start = min(-((self.reach - 1 - first) // self.stride), first // self.stride)
        stop = 1 + max(last // self.stride, -((self.reach - 1 - last) // self.stride))
        return Interval(start, stop)
