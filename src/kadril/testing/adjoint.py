"""The adjoint test: F and F* are adjoint if <F x, y> == <x, F* y>, summed over all ranks.

    rank 0   rank 1   rank 2                      rank 0   rank 1   rank 2
      x0       x1       x2       -- F -->           .        .        .      dot  y0, y1, y2
      .        .        .        <-- F* --          y0       y1       y2
     dot  x0, x1, x2

Both sides are sums over all elements of all ranks, taken in float64. With integer values of
moderate size (`integer_valued`) nothing is rounded anywhere, so the two are compared with `==`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from kadril.testing.failure import name_ranks

if TYPE_CHECKING:
    from kadril.world import World

__all__ = ["Tensors", "check_adjoint", "check_autograd_adjoint", "integer_valued"]

# What a rank gives or gets: a tensor, several, or nothing where it takes no part.
Tensors: TypeAlias = torch.Tensor | Sequence[torch.Tensor] | None

Operator: TypeAlias = Callable[[Any], Any]

# From here on float64 does not hold every integer, and a difference of one may be lost.
EXACT_LIMIT = 2.0**53


def check_adjoint(
    world: World,
    forward: Operator,
    adjoint: Operator,
    x: Tensors,
    y: Tensors,
    *,
    exact: bool = True,
    bound: float | None = None,
) -> None:
    """Assert, on every rank, that `adjoint` is the adjoint of `forward`; collective over the world.

    Operators get copies, so they may work in place.

    Example:
        ```python
        @ranks(1, 2, 4)
        def test_broadcast_and_sum(world):
            x = integer_valued((5,), torch.float64, seed=1, rank=world.rank) if world.rank == 0 else
            None y = integer_valued((5,), torch.float64, seed=2, rank=world.rank)
            check_adjoint(world, broadcast, sum_reduce, x, y)
        ```

    Args:
        world: its ranks are those of the operator.
        forward: F, from what is like `x` to what is like `y`.
        adjoint: F*, from what is like `y` to what is like `x`.
        x: this rank's part of a point in the domain; None where it has none.
        y: this rank's part of a point in the range; None where it has none.
        exact: compare with `==`; `x` and `y` should be integer-valued.
        bound: compare with a relative error instead: |<F x, y> - <x, F* y>| <= bound * (the sum of
            the absolute values of all products). For n additions in a type of precision eps, n *
            eps.

    Raises:
        AssertionError: on every rank, with both numbers, their difference, and each rank's share.
        ValueError: neither exact nor a bound; exact, but the numbers are too large to be exact; or
            an operator gave other shapes than `x` and `y` have.
    """
    check_mode(exact, bound)
    image = forward(copy_of(x))
    preimage = adjoint(copy_of(y))
    compare(world, (image, y), (x, preimage), bound, cut=False)


def check_autograd_adjoint(
    world: World,
    function: Operator,
    x: Tensors,
    y: Tensors,
    *,
    exact: bool = True,
    bound: float | None = None,
) -> None:
    """Assert, on every rank, that the backward pass of a linear function or module is its adjoint.

    As `check_adjoint`, with the gradients of `x`, for gradients `y` of what the function returns,
    as F* y. A rank whose result has no connection to its `x` counts as having sent back zeros, and
    is named.

    Raises:
        AssertionError: on every rank.
        ValueError: as in `check_adjoint`.
    """
    check_mode(exact, bound)
    inputs = [tensor.requires_grad_() for tensor in parts_of(copy_of(x))]
    image = function(None if x is None else inputs[0] if isinstance(x, torch.Tensor) else inputs)
    seeds = parts_of(copy_of(y))
    outputs = parts_of(image)
    pairs = [(out, seed) for out, seed in zip(outputs, seeds, strict=False) if out.requires_grad]
    if pairs:
        torch.autograd.backward([out for out, _ in pairs], [seed for _, seed in pairs])
    gradients = [torch.zeros_like(part) if part.grad is None else part.grad for part in inputs]
    cut = len(pairs) < len(outputs) or any(part.grad is None for part in inputs)
    compare(world, (image, y), (x, gradients), bound, cut=cut)


def integer_valued(
    shape: int | Sequence[int],
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    rank: int = 0,
) -> torch.Tensor:
    """Return a tensor of small whole numbers that seed and rank decide.

    Sums of such numbers, and of their products, are exact in any order: values are -8 to 8, and
    -2 to 2 in types of 8 and 16 bits, where bfloat16 holds sums of up to 64 products exactly and
    int8 of up to 31. Unsigned types have no negative ones; bool has both values; complex types have
    whole real and imaginary parts.
    """
    size = (shape,) if isinstance(shape, int) else tuple(shape)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + rank)
    limit = 2 if dtype.itemsize <= 2 else 8

    def draw(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high + 1, size, generator=generator)

    if dtype == torch.bool:
        return draw(0, 1).to(dtype)
    if dtype.is_complex:
        return torch.complex(draw(-limit, limit).double(), draw(-limit, limit).double()).to(dtype)
    low = -limit if dtype.is_signed else 0
    return draw(low, limit).to(dtype)


def check_mode(exact: bool, bound: float | None) -> None:
    """Raise where nothing would be checked."""
    if bound is None and not exact:
        raise ValueError("give a bound, or leave exact=True; a test needs one of them")


def compare(
    world: World,
    left: tuple[Tensors, Tensors],
    right: tuple[Tensors, Tensors],
    bound: float | None,
    *,
    cut: bool,
) -> None:
    """Gather both dot products from all ranks and compare them, alike on every rank."""
    shares = [Share(*row) for row in gather(world, local_share(left, right, cut))]
    misshapen = [rank for rank, share in enumerate(shares) if share.misshapen]
    if misshapen:
        raise ValueError(
            f"adjoint test on rank {world.rank}: F x must have the shape of y, and F* y that of x;"
            f" it is not so on {name_ranks(misshapen)}"
        )
    size = sum(share.size for share in shares)
    if bound is None and size >= EXACT_LIMIT:
        raise ValueError(
            f"adjoint test on rank {world.rank}: the products sum up to {size:g} in absolute value,"
            " so float64 does not hold them exactly; use smaller numbers, as integer_valued gives,"
            " or a bound"
        )
    lefts = sum(share.left for share in shares)
    rights = sum(share.right for share in shares)
    allowed = 0.0 if bound is None else bound * size
    if not abs(lefts - rights) <= allowed:  # so that NaN fails
        raise AssertionError(explain(world, shares, lefts, rights, allowed))


class Share(NamedTuple):
    """One rank's part of both sums, as the numbers that travel."""

    left_real: float
    left_imaginary: float
    right_real: float
    right_imaginary: float
    size: float  # sum of the absolute values of the products, of the larger side
    misshapen: float  # 1 where an operator gave other shapes
    cut: float  # 1 where no gradient came back

    @property
    def left(self) -> complex:
        """This rank's part of <F x, y>."""
        return complex(self.left_real, self.left_imaginary)

    @property
    def right(self) -> complex:
        """This rank's part of <x, F* y>."""
        return complex(self.right_real, self.right_imaginary)


def local_share(left: tuple[Tensors, Tensors], right: tuple[Tensors, Tensors], cut: bool) -> Share:
    """This rank's part of both sums."""
    if not (same_shapes(*left) and same_shapes(*right)):
        return Share(0.0, 0.0, 0.0, 0.0, 0.0, 1.0, float(cut))
    (left_sum, left_size), (right_sum, right_size) = dot(*left), dot(*right)
    size = max(left_size, right_size)
    sums = (left_sum.real, left_sum.imag, right_sum.real, right_sum.imag)
    return Share(*sums, size, 0.0, float(cut))


def explain(
    world: World, shares: Sequence[Share], left: complex, right: complex, allowed: float
) -> str:
    """Return what went wrong, in numbers."""
    lines = [
        f"not adjoint, seen from rank {world.rank}:",
        f"    <F x, y>  = {show(left)}",
        f"    <x, F* y> = {show(right)}",
        f"    difference  {show(left - right)}, allowed {allowed:g}",
        "each rank's share of the two sums:",
    ]
    for rank, share in enumerate(shares):
        cut = "  (no gradient reached x)" if share.cut else ""
        lines.append(f"    rank {rank}: {show(share.left)} and {show(share.right)}{cut}")
    return "\n".join(lines)


def show(number: complex) -> str:
    """Return a number in full, without an imaginary part that it does not have."""
    return repr(number.real) if number.imag == 0 else repr(number)


def same_shapes(a: Tensors, b: Tensors) -> bool:
    """Whether two sides of a dot product fit."""
    return [part.shape for part in parts_of(a)] == [part.shape for part in parts_of(b)]


def dot(a: Tensors, b: Tensors) -> tuple[complex, float]:
    """Local <a, b> in double precision, and the sum of the absolute values of its products."""
    total, size = 0j, 0.0
    for left, right in zip(parts_of(a), parts_of(b), strict=True):
        products = left.detach().to(torch.complex128) * right.detach().to(torch.complex128).conj()
        total += complex(products.sum().item())
        size += float(products.abs().sum().item())
    return total, size


def gather(world: World, numbers: Sequence[float]) -> list[list[float]]:
    """Return the numbers of every rank, on every rank."""
    ours = torch.tensor(numbers, dtype=torch.float64)
    everyones = torch.empty(world.size, len(numbers), dtype=torch.float64)
    world.transport.allgatherv(ours, everyones.view(-1), [len(numbers)] * world.size)
    return [[float(number) for number in row] for row in everyones.tolist()]


def parts_of(tensors: Tensors) -> list[torch.Tensor]:
    """Return the tensors of one rank, as a list."""
    if tensors is None:
        return []
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def copy_of(tensors: Tensors) -> Any:
    """Return a copy that an operator may overwrite, of the same form."""
    if tensors is None:
        return None
    if isinstance(tensors, torch.Tensor):
        return tensors.detach().clone()
    return [tensor.detach().clone() for tensor in tensors]
