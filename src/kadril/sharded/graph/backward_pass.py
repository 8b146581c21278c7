"""`backward`: a backward pass that keeps or drops the gradients of other owners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kadril.sharded.graph.registry import Registration, registration

__all__ = ["backward"]

OPTIONS = ("current_rank", "partition_grad", "plan")


def backward(
    loss: torch.Tensor,
    backward_option: Mapping[str, Any] | None = None,
    *,
    gradient: torch.Tensor | None = None,
    retain_graph: bool = False,
) -> None:
    """Run `loss.backward()` of a model compiled with the graph pass.

        backward_options = trainer.generate_backward_options()
        backward(loss, backward_option=backward_options)

    | partition_grad | after it, where another rank owns a parameter |
    |---|---|
    | True | `.grad` is None, and its memory was given back during the pass |
    | False | `.grad` is this rank's own gradient, for a look at it; costs a copy |

    Where each rank owns a part, False hands the gradients to the trainer in `.grad` instead.

    Without options it is `loss.backward()`, which does what the model was compiled for.

    Args:
        loss: what to differentiate.
        backward_option: from `trainer.generate_backward_options()`.
        gradient: see `Tensor.backward`.
        retain_graph: see `Tensor.backward`.

    Raises:
        ValueError: unknown options, or those of another rank.
        StateError: the trainer of the options is gone.
        MismatchError: ranks run different backward graphs; on all ranks.
    """
    if backward_option is None:
        torch.autograd.backward(loss, gradient, retain_graph=retain_graph)
        return
    found = check_options(backward_option)
    is_partitioned = bool(backward_option.get("partition_grad", True))
    before, found.keeps_local = found.keeps_local, not is_partitioned
    try:
        torch.autograd.backward(loss, gradient, retain_graph=retain_graph)
    finally:
        found.keeps_local = before
    if is_partitioned:
        drop_gradients(found)


def check_options(options: Mapping[str, Any]) -> Registration:
    """Return the plan that the options name."""
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown or "plan" not in options:
        what = f"unknown option(s) {', '.join(unknown)}" if unknown else "there is no option 'plan'"
        raise ValueError(f"{what}; take all of trainer.generate_backward_options()")
    found = registration(options["plan"])
    rank = options.get("current_rank", found.plan.rank)
    if rank != found.plan.rank:
        raise ValueError(
            f"the options are those of rank {rank}, this is rank {found.plan.rank}; each rank takes"
            " its own trainer.generate_backward_options()"
        )
    return found


def drop_gradients(found: Registration) -> None:
    """Drop what a model that was compiled without phase 2 has left."""
    plan = found.plan
    for name in plan.names:
        if plan.owner_of(name) not in (plan.rank, None):
            plan.parameter_of(name).grad = None
