"""The plain plan: every parameter has one owner, whose `.grad` becomes the reduced gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch.utils.hooks import RemovableHandle

from kadril.errors import StateError
from kadril.sharded.graph.registry import register_plan
from kadril.sharded.ownership.partition_rules import owners_of
from kadril.transport.base import Transport

__all__ = ["OwnerPlan", "owners_by_rule"]


class OwnerPlan:
    """Reduces each gradient to one rank; a `GradientPlan`.

        grad on the owner = postscale * sum_r(prescale * grad_r)
        grad elsewhere    = None

    With factor f, prescale is 1 / f and postscale is f / size (or f for a sum), so that every f
    gives the same result but for what is rounded.

    Args:
        named_parameters: name and parameter, as `model.named_parameters()` gives them; the same
            names on all ranks.
        owners: rank of each name. Names that are left out are not reduced.
        transport: of the ranks that share the gradients. The plan uses it in the backward pass
            only, and does not close it.
        is_mean: divide by the number of ranks.
        gradient_predivide_factor: f above.

    Raises:
        ValueError: an owner that does not exist, a name without a parameter, or a factor of 0.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
        owners: Mapping[str, int],
        transport: Transport,
        *,
        is_mean: bool = True,
        gradient_predivide_factor: float = 1.0,
    ) -> None:
        named = dict(named_parameters)
        check_owners(named, owners, transport.size)
        if not gradient_predivide_factor > 0:
            raise ValueError(
                f"gradient_predivide_factor is {gradient_predivide_factor}; it has to be positive"
            )
        self.names = tuple(name for name in named if name in owners)
        self.rank = transport.rank
        self.size = transport.size
        self.owners = {name: owners[name] for name in self.names}
        self.transport = transport
        self.prescale = 1.0 / gradient_predivide_factor
        self.postscale = gradient_predivide_factor / (transport.size if is_mean else 1)
        self._parameters = {name: named[name] for name in self.names}
        # Ids are safe as keys: the parameters are kept above.
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._hooks: dict[str, RemovableHandle] = {}
        self.registration = register_plan(self)

    @property
    def key(self) -> str:
        """Key by which compiled graphs find this plan."""
        return self.registration.key

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """Return the name of a parameter."""
        return self._names.get(id(parameter))

    def parameter_of(self, name: str) -> torch.Tensor:
        """Return the parameter of a name."""
        return self._parameters[name]

    def owner_of(self, name: str) -> int:
        """Return the rank that gets the gradient."""
        return self.owners[name]

    def reduce_gradient(
        self, name: str, gradient: torch.Tensor, label: str, *, is_given: bool = False
    ) -> None:
        """Reduce a gradient to its owner, in place there; collective."""
        self.transport.reduce(
            gradient.contiguous(),
            self.owners[name],
            prescale=self.prescale,
            postscale=self.postscale,
            name=label,
        )

    def note_dropped(self, name: str) -> None:
        """Watch for gradients from outside of compiled graphs, which nobody would reduce."""
        if name in self._hooks:
            return

        def refuse(parameter: torch.Tensor) -> None:
            was_dropped = name in self.registration.dropped
            self.registration.dropped.discard(name)
            # Autograd calls hooks for what a graph has dropped, too: there is no gradient then.
            if parameter.grad is None or not was_dropped:
                return
            raise StateError(
                f"rank {self.rank}: parameter {name!r} got a gradient outside of the compiled"
                f" graphs, which drop it here since rank {self.owners[name]} owns it. The owner"
                " would miss this rank's part of it. Move the code that uses the parameter into"
                " the compiled model, or use POS_Trainer, which reduces such parts too"
            )

        self._hooks[name] = self._parameters[name].register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            refuse
        )

    def close(self) -> None:
        """Release the parameters; graphs compiled for this plan raise `StateError` from now."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        del self.registration


def check_owners(named: Mapping[str, torch.Tensor], owners: Mapping[str, int], size: int) -> None:
    """Raise `ValueError` for names and ranks that do not exist."""
    for name, owner in owners.items():
        if name not in named:
            raise ValueError(f"owners names {name!r}, which is not a parameter")
        if not 0 <= owner < size:
            raise ValueError(
                f"owners gives {name!r} to rank {owner}; there are ranks 0..{size - 1}"
            )


def owners_by_rule(
    named: Mapping[str, torch.Tensor], size: int, rule: str = "greedy"
) -> dict[str, int]:
    """Choose the owner of each parameter that needs a gradient, by "greedy" or "largest_first"."""
    trained = {name: each for name, each in named.items() if each.requires_grad}
    sizes = [parameter.numel() for parameter in trained.values()]
    return dict(zip(trained, owners_of(rule, sizes, [False] * len(sizes), size), strict=True))
