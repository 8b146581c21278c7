"""Options of the graph pass, as the compiler and as the backward pass take them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

from kadril.sharded.graph.registry import Registration, registration

__all__ = ["CompileOptions", "Inner", "Order", "backward_options", "graph_pass_options"]

Inner: TypeAlias = Literal["inductor", "eager"]
Order: TypeAlias = Literal["graph", "parameters"]


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """Options of `torch.compile(model, backend="kadril", options={...})`.

    Attributes:
        inner: who runs the graphs: torch's "inductor", or "eager", node by node.
        plan: key of the plan that says who owns what; where None, the trainer that knows the
            parameters is found by them.
        partition_grad: drop the gradients that this rank does not own (phase 2). Without it they
            stay, unreduced.
        order: of the reductions: as the "graph" makes the gradients, so that each is sent as soon
            as it is there; or by "parameters", last one first, where ranks run different graphs.
        inductor: settings of `torch._inductor.config` for these graphs.
    """

    inner: Inner = "inductor"
    plan: str | None = None
    partition_grad: bool = True
    order: Order = "graph"
    inductor: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, choices in (("inner", get_args(Inner)), ("order", get_args(Order))):
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(
                    f"{name} is {value!r}; it is one of {', '.join(map(repr, choices))}"
                )
        if self.inner != "inductor" and self.inductor:
            raise ValueError(f"settings of inductor are given, but inner is {self.inner!r}")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> CompileOptions:
        """Read options.

        Takes those that a trainer's `generate_graph_pass_options()` gives, too.

        Raises:
            ValueError: an unknown option, or owners that are not the plan's.
        """
        fields = {field.name for field in dataclasses.fields(cls)}
        described = {"owners", "rank", "num_ranks"}
        unknown = sorted(options.keys() - fields - described)
        if unknown:
            raise ValueError(
                f"unknown option(s) {', '.join(unknown)}; there are"
                f" {', '.join(sorted(fields | described))}"
            )
        made = cls(**{name: value for name, value in options.items() if name in fields})
        check_description(made, options)
        return made


def check_description(chosen: CompileOptions, options: Mapping[str, Any]) -> None:
    """Raise `ValueError` where the owners in the options are not those of the plan.

    They are there to be read; the plan decides. So changing them in the options has no effect, and
    nobody should believe that it had one.
    """
    given = {name: options[name] for name in ("owners", "rank", "num_ranks") if name in options}
    if not given:
        return
    if chosen.plan is None:
        raise ValueError(
            f"option {next(iter(given))!r} describes a plan, but there is no option 'plan'; take"
            " all of trainer.generate_graph_pass_options()"
        )
    real = graph_pass_options(registration(chosen.plan))
    for name, value in given.items():
        if value != real[name]:
            raise ValueError(
                f"option {name!r} is not what the trainer has: {value!r} instead of {real[name]!r}."
                " Owners are chosen when the trainer is made"
            )


def graph_pass_options(found: Registration) -> dict[str, Any]:
    """Return keywords of `optimize_for`: the plan, and for the reader what is in it."""
    plan = found.plan
    return {
        "plan": found.key,
        # Where gradients are cut a plan may still say who has most of each.
        "owners": getattr(plan, "owners", None)
        or {name: plan.owner_of(name) for name in plan.names},
        "rank": plan.rank,
        "num_ranks": plan.size,
    }


def backward_options(found: Registration) -> dict[str, Any]:
    """Return options of `backward`: the plan, and that gradients of other owners are dropped."""
    return {"plan": found.key, "partition_grad": True, "current_rank": found.plan.rank}
