"""The decorator that runs a test on ranks. It needs no pytest: the plugin finds what it noted."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

__all__ = ["RanksOptions", "ranks", "ranks_options"]

Function = TypeVar("Function", bound=Callable[..., Any])

ATTRIBUTE = "__kadril_ranks__"


@dataclasses.dataclass(frozen=True)
class RanksOptions:
    """Options of a test on ranks, which runs with every size on every transport."""

    sizes: tuple[int, ...]
    transports: tuple[str, ...]
    timeout: float
    options: dict[str, object]


def ranks(
    *sizes: int,
    transports: Sequence[str] = ("shm",),
    timeout: float = 60.0,
    **options: object,
) -> Callable[[Function], Function]:
    """Run a test in every rank of worlds of these sizes.

    pytest sees one test for each size and transport, and for each `pytest.mark.parametrize` as
    usual. The body runs in every rank, with the rank's `kadril.World` as argument `world`; other
    arguments are made in the session, fixtures included, and sent to the ranks, so they have to be
    picklable. The test fails if it fails on any rank, and is skipped if all ranks skip it.

    Example:
        ```python
        from kadril.testing import ranks

        @ranks(1, 2, 4)
        def test_sum_of_ranks(world):
            total = torch.tensor([world.rank])
            world.transport.allreduce(total)
            assert total.item() == sum(range(world.size))
        ```

    Args:
        sizes: of the worlds, 1 to 16 each.
        transports: "shm", "c10d", "mpi:openmpi", "mpi:mpich", "tiered".
        timeout: seconds after which a rank that has not ended is asked for its stacks and killed.
        options: options of `kadril.config.Config` for this world, such as `patience=0.5`; and
            `hosts`, the ranks of each host for tiers: "3+2", or "round robin 2", the default.

    Raises:
        ValueError: a size or transport that does not exist.
        TypeError: the function has no argument `world`.
    """
    from kadril.testing.worlds import world_key

    if not sizes:
        raise ValueError("@ranks needs at least one size, such as @ranks(1, 2)")
    for transport in transports:
        for size in sizes:
            world_key(transport, size, options)
    asked = RanksOptions(sizes, tuple(transports), timeout, options)

    def note(function: Function) -> Function:
        if "world" not in inspect.signature(function).parameters:
            raise TypeError(
                f"{function.__qualname__} runs on ranks, so it needs an argument `world`"
            )
        setattr(function, ATTRIBUTE, asked)
        return function

    return note


def ranks_options(function: object) -> RanksOptions | None:
    """Return what `@ranks` asked for a function, or None."""
    asked = getattr(function, ATTRIBUTE, None)
    return asked if isinstance(asked, RanksOptions) else None
