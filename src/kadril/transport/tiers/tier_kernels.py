"""The kernels of one reduction: inside a host, between tiers, and in the last tier.

Inputs are scaled inside a host, where the kernel reads them. The result is scaled in the last tier,
so that bits are those of one host. Where partial sums are rounded to 16 bits on their way, each of
them is scaled before instead, as often rounded as it would be otherwise:

    float16, average of 60000 on 2 + 2 ranks
    scaled at the end    120000 -> infinity   120000 -> infinity      infinity / 4
    scaled inside        120000 / 4 = 30000   30000                   60000
"""

from __future__ import annotations

from typing import NamedTuple

from kadril.transport.network_transport import Kernel
from kadril.transport.operands import OPS

__all__ = ["TierKernels"]

SHORT = ("float16", "bfloat16")


class TierKernels(NamedTuple):
    """Kernels of each tier.

    Attributes:
        inside: of the ranks of a host.
        between: of what is neither the first tier nor the last.
        last: of the last tier.
    """

    inside: Kernel
    between: Kernel
    last: Kernel

    @classmethod
    def of(cls, kernel: Kernel, num_tiers: int, *, is_rounded: bool = False) -> TierKernels:
        """Return the kernels of a reduction.

        Args:
            kernel: the reduction.
            num_tiers: above that inside a host.
            is_rounded: whether partial sums are rounded to 16 bits on their way.
        """
        op = OPS[kernel.op_code]
        commutes = op == "sum" or (op in ("min", "max") and kernel.postscale > 0)
        is_short = is_rounded or kernel.dtype.name in SHORT
        is_scaled_inside = not num_tiers or (is_short and commutes)
        plain = kernel._replace(prescale=1.0, postscale=1.0)
        if is_scaled_inside:
            return cls(kernel, plain, plain)
        return cls(kernel._replace(postscale=1.0), plain, kernel._replace(prescale=1.0))
