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

__all__ = ["TransposedWindow", "Window"]


class Window(NamedTuple):
    """The window of a convolution.

    Attributes:
        kernel: elements of the kernel.
        stride: from one output to the next, in inputs.
        dilation: from one element of the kernel to the next, in inputs.
        before: elements of padding before the first input.
        after: elements of padding after the last input.
    """

    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def reach(self) -> int:
        """Inputs from the first to the last that one output is made of."""
        return self.dilation * (self.kernel - 1) + 1

    def output_size(self, size: int) -> int:
        """Outputs for so many inputs; 0 where the window is wider than the padded dim."""
        return max(0, (size + self.before + self.after - self.reach) // self.stride + 1)

    def inputs_of(self, outputs: Interval) -> Interval:
        """What these outputs are made of; below 0, and from the size on, is padding."""
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
    """

    kernel: int
    stride: int
    dilation: int
    padding: int
    output_padding: int

    @property
    def reach(self) -> int:
        """Outputs from the first to the last that one input goes into."""
        return self.dilation * (self.kernel - 1) + 1

    def output_size(self, size: int) -> int:
        """Outputs for so many inputs."""
        spread = (size - 1) * self.stride + self.reach
        return max(0, spread - 2 * self.padding + self.output_padding)

    def outputs_of(self, inputs: Interval) -> Interval:
        """From the first to the last output that these inputs go into."""
        start = self.stride * inputs.start - self.padding
        return Interval(start, start + self.stride * (inputs.size - 1) + self.reach)

    def inputs_of(self, outputs: Interval) -> Interval:
        """Inputs that have all these outputs between them, and leave out none that has a part.

        An output that no input goes into (stride wider than the kernel, output padding) has
        an input beside it all the same, so that `outputs_of` the result holds all of `outputs`.
        Below 0, and from the size on, inputs are zeros.
        """
        first = outputs.start + self.padding
        last = outputs.stop - 1 + self.padding
        # Input i goes into stride * i ... stride * i + reach - 1, before the cut of the padding.
        start = min(-((self.reach - 1 - first) // self.stride), first // self.stride)
        stop = 1 + max(last // self.stride, -((self.reach - 1 - last) // self.stride))
        return Interval(start, stop)
