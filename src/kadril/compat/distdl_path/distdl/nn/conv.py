"""Convolutions whose class follows from their partitions.

only P_x                                  DistributedFeatureConv
P_x, P_y, P_w, one worker in space        DistributedChannelConv
P_x, P_y, P_w                             DistributedGeneralConv
"""

from __future__ import annotations

from typing import Any

from ..backends.mpi.partition import MPIPartition
from .conv_channel import (
    DistributedChannelConv1d,
    DistributedChannelConv2d,
    DistributedChannelConv3d,
)
from .conv_feature import (
    DistributedFeatureConv1d,
    DistributedFeatureConv2d,
    DistributedFeatureConv3d,
)
from .conv_general import (
    DistributedGeneralConv1d,
    DistributedGeneralConv2d,
    DistributedGeneralConv3d,
)

__all__ = ["DistributedConv1d", "DistributedConv2d", "DistributedConv3d"]


class DistributedConvSelector:
    """A class whose call returns the layer for some partitions.

    Args:
        P_x: of the input.
        P_y, P_w: of output and weights, by position or name; both or neither.
        others: see the class of the layer.
    """

    feature: Any
    channel: Any
    general: Any

    def __new__(cls, P_x: MPIPartition, *arguments: Any, **settings: Any) -> Any:
        """Return the layer.

        Raises:
            ValueError: only one of `P_y` and `P_w`.
        """
        rest = list(arguments)
        partitions = {}
        for name in ("P_y", "P_w"):
            given = settings.pop(name, None)
            if given is None and rest and (rest[0] is None or isinstance(rest[0], MPIPartition)):
                given = rest.pop(0)
            partitions[name] = given
        P_y, P_w = partitions["P_y"], partitions["P_w"]
        if (P_y is None) != (P_w is None):
            raise ValueError(f"{cls.__name__}: give both P_y and P_w, or neither")
        if P_y is None or P_w is None:
            return cls.feature(P_x, *rest, **settings)
        is_split = any(length > 1 for P in (P_x, P_y, P_w) for length in P.shape[2:])
        return (cls.general if is_split else cls.channel)(P_x, P_y, P_w, *rest, **settings)


class DistributedConv1d(DistributedConvSelector):
    """The convolution in one feature dim."""

    feature = DistributedFeatureConv1d
    channel = DistributedChannelConv1d
    general = DistributedGeneralConv1d


class DistributedConv2d(DistributedConvSelector):
    """The convolution in two feature dims."""

    feature = DistributedFeatureConv2d
    channel = DistributedChannelConv2d
    general = DistributedGeneralConv2d


class DistributedConv3d(DistributedConvSelector):
    """The convolution in three feature dims."""

    feature = DistributedFeatureConv3d
    channel = DistributedChannelConv3d
    general = DistributedGeneralConv3d
