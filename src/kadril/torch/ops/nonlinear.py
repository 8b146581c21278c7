"""Gradients of the reductions that are not linear: Min, Max, Product and Adasum.

With y = postscale * reduce_s(prescale * x_s), G = sum_s g_s the gradients of all y_s, and p and q
the two factors, rank r gets

    Min, Max     p q G               where r owns the extreme value, zero elsewhere; the lowest rank
                                     that has the value owns it
    Product      p q G prod_{s != r} (p x_s)
    Adasum       p q D_r^T G         D_r is the derivative of Adasum(p x_0, p x_1, ...) by its r-th
                                     argument; where that is zero, its coefficient counts as fixed

These are computed of tensors that keep their graph: G is an all-reduce, the values of other ranks
come by a gather with the sum as its adjoint, and the rest is torch's. So they can be differentiated
again, and the gradients of the values of other ranks go back to them. Who owns an extreme value is
a constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril.shared_engine.process_sets import ProcessSet
from kadril.shared_engine.reduce_ops import Adasum, Min, Product, Sum
from kadril.torch.ops.allgather import stack_all
from kadril.torch.ops.allreduce import run
from kadril.torch.ops.grouped_allreduce import reduce_all
from kadril.torch.ops.staging import conductor_of

__all__ = ["gradients_of"]


def gradients_of(
    tensors: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    op: int,
    scales: tuple[float, float],
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    """The gradients of the inputs of a reduction, as at the top of this file; collective.

    Args:
        tensors: this rank's inputs, with their graph.
        gradients: of the results, with their graph.
        op: Min, Max, Product or Adasum.
        scales: prescale and postscale.
        process_set: the ranks that took part.
    """
    prescale, postscale = scales
    totals = reduce_all(gradients, Sum, process_set)
    rule = {Product: through_product, Adasum: through_adasum}.get(op)
    results = []
    for tensor, total in zip(tensors, totals, strict=True):
        scaled = tensor * prescale if prescale != 1.0 else tensor
        if rule is None:
            result = total * owner_mask(scaled.detach(), op, process_set)
        else:
            result = rule(scaled, total, process_set)
        results.append(result * (prescale * postscale))
    return results


def owner_mask(tensor: torch.Tensor, op: int, process_set: ProcessSet) -> torch.Tensor:
    """Mask the elements where this rank is the lowest with the extreme value; collective."""
    conductor = conductor_of(process_set)
    extreme = run(tensor, op, 1.0, 1.0, process_set)
    # A NaN is the extreme value of all ranks that have one.
    has_it = (tensor == extreme) | (tensor.isnan() & extreme.isnan())
    claims = torch.where(has_it, conductor.rank, conductor.size).to(torch.int32)
    return run(claims, Min, 1.0, 1.0, process_set) == conductor.rank


def through_product(
    tensor: torch.Tensor, total: torch.Tensor, process_set: ProcessSet
) -> torch.Tensor:
    """A gradient times the product over all ranks but this; exact also where factors are zero."""
    conductor = conductor_of(process_set)
    everyone = stack_all(tensor, process_set)
    others = torch.ones_like(tensor)
    for rank in range(conductor.size):
        if rank != conductor.rank:
            others = others * everyone[rank]
    # Torch's gradient of a product of complex numbers has the conjugate of the other factor.
    return total * others.conj().resolve_conj()


def through_adasum(
    tensor: torch.Tensor, total: torch.Tensor, process_set: ProcessSet
) -> torch.Tensor:
    """A gradient through Adasum, by torch's derivative of the same tree in one process."""
    is_recorded = torch.is_grad_enabled()
    everyone = stack_all(tensor, process_set)
    with torch.enable_grad():
        if not everyone.requires_grad:
            everyone = everyone.detach().requires_grad_()
        # The engine takes products in float64 too.
        combined = adasum(list(everyone.double()))
        (result,) = torch.autograd.grad(
            combined, everyone, total.double(), create_graph=is_recorded
        )
    own: torch.Tensor = result[conductor_of(process_set).rank]
    return own


def adasum(level: list[torch.Tensor]) -> torch.Tensor:
    """Combine neighbours, then neighbours of the results, until one is left; an odd one waits."""
    while len(level) > 1:
        pairs = [adasum_of_two(*level[i : i + 2]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


def adasum_of_two(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Combine two vectors: half of what each has along the other, and all of the rest."""
    dot = (a * b).sum()
    return a * adasum_share(a, dot) + b * adasum_share(b, dot)


def adasum_share(a: torch.Tensor, dot: torch.Tensor) -> torch.Tensor:
    """The coefficient of one of two vectors with this dot product; 1 for a vector of zeros."""
    norm = (a * a).sum()
    is_positive = norm > 0
    one = torch.ones_like(norm)
    # Both branches are differentiated, so neither may divide by zero.
    return torch.where(is_positive, 1 - dot / (2 * torch.where(is_positive, norm, one)), one)
