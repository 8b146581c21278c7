"""The window of a pooling along one dim: which inputs an output is made of, and how many they are.

    kernel 3, stride 2, padding 1, 8 inputs, ceil_mode

    input      -1 | 0 1 2 3 4 5 6 7 | 8 9
    output 0   [- - -]                              2 inputs, 3 with padding
    output 1        [- - -]
    output 4                    [- - -]             1 input, 2 with padding: 9 is beyond that

With `ceil_mode` a last window may go beyond the padding, if it begins before the end of the input.
All of it is arithmetic on the global tensor; every rank does it for all ranks.
"""

from __future__ import annotations

from typing import NamedTuple

from kadril.partition import Interval

__all__ = ["PoolWindow"]


class PoolWindow(NamedTuple):
    """The window of a pooling.

    Attributes:
        kernel: inputs that one output is made of.
        stride: from one output to the next, in inputs.
        padding: before the first input, and after the last.
        dilation: from one input of a window to the next.
        ceil_mode: whether a window may go beyond the padding at the end.
        is_whole: whether the dim is not split. Then torch's own pooling does the padding, and
            nothing has to be copied for it.
    """

    kernel: int
    stride: int
    padding: int
    dilation: int
    ceil_mode: bool
    is_whole: bool

    @property
    def reach(self) -> int:
        """Inputs from the first to the last of a window."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def torch_padding(self) -> int:
        """Padding that is left to torch's own pooling."""
        return self.padding if self.is_whole else 0

    def output_size(self, size: int) -> int:
        """Return the number of outputs; less than 1 where the window is wider than the input."""
        steps = size + 2 * self.padding - self.reach
        if not self.ceil_mode:
            return steps // self.stride + 1
        last = -(-steps // self.stride)
        return last + (last * self.stride < size + self.padding)

    def inputs_of(self, outputs: Interval, size: int) -> Interval:
        """Return what some outputs are made of; below 0, and from the size on, is padding."""
        if self.is_whole:
            return Interval(0, size)
        start = self.stride * outputs.start - self.padding
        return Interval(start, start + self.stride * (outputs.size - 1) + self.reach)

    def counts(self, outputs: Interval, size: int, *, with_padding: bool) -> list[int]:
        """Count the inputs in the window of each output; padding where asked, what is beyond never.

        For windows without dilation.
        """
        low, high = (-self.padding, size + self.padding) if with_padding else (0, size)
        return [
            (Interval(low, high) & Interval(start, start + self.kernel)).size
            for start in (
                self.stride * output - self.padding for output in range(outputs.start, outputs.stop)
            )
        ]
