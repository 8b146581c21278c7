"""Dimensions of a network in the words of DDL: X[xY[xZ[xW]]].

4x3        4 ranks on each of 3 hosts
4x3x2      4 ranks on each of 3 hosts in each of 2 racks
4x3x2x2    ... in each of 2 aisles
"""

from __future__ import annotations

import math
import re

from kadril.errors import ConfigError

__all__ = ["format_dimensions", "parse_dimensions"]


def parse_dimensions(text: str) -> tuple[int, ...]:
    """Read 4x3x1 as (4, 3, 1): ranks of a host, hosts of a rack, racks, aisles.

    Raises:
        ConfigError: it has another form.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,6}(x[1-9][0-9]{0,6}){0,3}", text):
        raise ConfigError(
            f"dimensions are X, XxY, XxYxZ or XxYxZxW, such as 4x3 for 4 ranks on each of 3 hosts;"
            f" got {text!r}"
        )
    return tuple(map(int, text.split("x")))


def format_dimensions(dimensions: tuple[int, ...]) -> str:
    """Return 4 x 3 = 12 for (4, 3): the arithmetic, for messages."""
    return f"{' x '.join(map(str, dimensions))} = {math.prod(dimensions)}"
