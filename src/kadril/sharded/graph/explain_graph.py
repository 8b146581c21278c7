"""`explain`: the backward graphs of a model before and after the pass, with the bytes live in them.

backward graph 1, rank 0 of 2: 4 gradients, 2 of them dropped
peak 36.0 MiB -> 22.5 MiB, handed out 36.0 MiB -> 18.0 MiB

node              operator             made    before     after
mm                mm.default        9.0 MiB   9.0 MiB   9.0 MiB  gradient of 1.weight, of rank 1
send_gradient     send_gradient           -         -   9.0 MiB  1.weight -> rank 1, then freed
"""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from kadril.errors import StateError
from kadril.sharded.graph.backend import compile_graph, input_names
from kadril.sharded.graph.example_run import example_of, original, run_example
from kadril.sharded.graph.explanation import Explanation
from kadril.sharded.graph.gradient_plan import GradientPlan
from kadril.sharded.graph.graph_explanation import GraphExplanation
from kadril.sharded.graph.graph_gradients import ParameterGradient
from kadril.sharded.graph.liveness import NodeMemory, live_memory
from kadril.sharded.graph.operators import GIVE, REDUCE, SEND
from kadril.sharded.graph.options import CompileOptions
from kadril.sharded.graph.owner_plan import owners_by_rule
from kadril.sharded.graph.reduce_pass import reduce_gradients
from kadril.sharded.graph.registry import Registration, find_plan, registration

__all__ = ["explain"]


class ShownPlan:
    """A `GradientPlan` that is only looked at, and moves nothing."""

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        owners: Mapping[str, int | None],
        rank: int,
        size: int,
    ) -> None:
        if not 0 <= rank < size:
            raise ValueError(f"rank is {rank}; there are ranks 0..{size - 1}")
        self.names = tuple(owners)
        self.owners = dict(owners)
        self.rank = rank
        self.size = size
        self._parameters = dict(parameters)
        self._names = {id(parameters[name]): name for name in owners}

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """Return the name of a parameter."""
        return self._names.get(id(parameter))

    def parameter_of(self, name: str) -> torch.Tensor:
        """Return the parameter of a name."""
        return self._parameters[name]

    def owner_of(self, name: str) -> int | None:
        """Return the rank that would get the gradient."""
        return self.owners[name]

    def reduce_gradient(
        self, name: str, gradient: torch.Tensor, label: str, *, is_given: bool = False
    ) -> None:
        """Do nothing: the graph is not run."""

    def note_dropped(self, name: str) -> None:
        """Do nothing: the graph is not run."""

    def close(self) -> None:
        """Free the parameters: torch keeps every backend it was given, and so keeps this."""
        self._parameters.clear()


def explain(
    model: nn.Module,
    x: Any = None,
    *,
    rank: int = 0,
    num_ranks: int = 2,
    path: str | pathlib.Path | None = None,
    quiet: bool = False,
    **options: Any,
) -> Explanation:
    """Show what the graph pass makes of a model: its backward graphs before and after.

    Local: nothing is communicated or trained, and the model stays as it is. Bytes are those of the
    graph as AOTAutograd makes it; a compiler that fuses nodes needs less, before and after. What a
    trainer copies out of the graph, as its part of each gradient, is not in it.

    Args:
        model: to look at, itself or as it was compiled.
        x: an example: one argument, a tuple of arguments, or a mapping of keyword arguments. Where
            None, the one that `optimize_for` compiled the model for.
        rank: whose graph to show, where no trainer knows the model.
        num_ranks: of how many, where no trainer knows the model; each parameter then goes to the
            rank that has fewest elements so far.
        path: of a picture to write, .svg or .png.
        quiet: do not print.
        options: as for `optimize_for`, usually from `trainer.generate_graph_pass_options()`.

    Returns:
        What was printed, as numbers.

    Raises:
        ValueError: an unknown option or suffix, or no example.
        StateError: torch made no backward graph, though there are parameters to train.
    """
    chosen = CompileOptions.of(options)
    x = example_of(model) if x is None else x
    model = original(model)
    # Not the trainer's own registration: what is compiled here must not decide on its orders.
    plan = plan_to_show(model, chosen, rank, num_ranks)
    found = Registration("explain", plan)
    graphs: list[GraphExplanation] = []
    try:
        look_at(model, looking_backend(found, chosen, graphs), x)
    finally:
        plan.close()
    if not graphs:
        check_nothing_is_trained(model)
    explanation = Explanation(tuple(graphs), plan.rank, plan.size)
    if not quiet:
        print(explanation.text())  # noqa: T201 - what it is for
    if path is not None:
        explanation.save(path)
    return explanation


def look_at(model: nn.Module, backend: Callable[..., Any], x: Any) -> None:
    """Have a model compiled for an example, whatever was compiled before and will be after.

    Torch keeps what it compiles with the code of a function, and gives up on code that it has
    compiled 8 times. All modules of torch's own start from the same code, so this has its own,
    which goes with it. Where a model becomes several graphs, the code of the model is compiled
    too: that is told apart by `isolate_recompiles`, which torch has since 2.13.
    """
    from torch._dynamo import config

    def run(*arguments: Any, **named: Any) -> Any:
        return model(*arguments, **named)

    run.__code__ = run.__code__.replace()
    has_regions = "isolate_recompiles" in inspect.signature(torch.compile).parameters
    apart: dict[str, Any] = {"isolate_recompiles": True} if has_regions else {}
    limits = dict.fromkeys(("recompile_limit", "accumulated_recompile_limit"), sys.maxsize)
    with config.patch(limits):
        run_example(model, torch.compile(run, backend=backend, **apart), x)


def check_nothing_is_trained(model: nn.Module) -> None:
    """Raise `StateError` where a model without backward graphs has parameters to train."""
    names = [name for name, each in model.named_parameters() if each.requires_grad]
    if names:
        raise StateError(
            f"torch made no backward graph of this {type(model).__name__}, though"
            f" {len(names)} of its parameters need gradients, such as {names[0]!r}. Either what it"
            " returns for the example does not depend on them, or torch was told not to compile it"
            " (torch.compiler.disable, TORCHDYNAMO_DISABLE), or it failed to: TORCH_LOGS=dynamo"
            " shows why"
        )


def plan_to_show(model: nn.Module, options: CompileOptions, rank: int, num_ranks: int) -> ShownPlan:
    """Return the owners that a trainer has for the model, or those that one would choose."""
    parameters = dict(model.named_parameters())
    if options.plan is not None:
        known: Registration | None = registration(options.plan)
    else:
        known = find_plan(parameters.values())
    if known is None:
        return ShownPlan(parameters, owners_by_rule(parameters, num_ranks), rank, num_ranks)
    plan = known.plan
    owners = {name: plan.owner_of(name) for name in plan.names}
    return ShownPlan(
        {name: plan.parameter_of(name) for name in plan.names}, owners, plan.rank, plan.size
    )


def looking_backend(
    found: Registration, options: CompileOptions, graphs: list[GraphExplanation]
) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """Make a backend of `torch.compile` that keeps what it sees of backward graphs."""
    eagerly = dataclasses.replace(options, inner="eager", inductor={})

    def look(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        names = input_names(module, inputs, found)

        def edit(graph: fx.Graph) -> None:
            before = live_memory(graph)
            gradients = reduce_gradients(
                graph,
                names,
                found,
                partition_grad=options.partition_grad,
                order=options.order,
            )
            graphs.append(describe(graph, before, gradients, found.plan, options.partition_grad))

        return compile_graph(module, inputs, eagerly, edit)

    return look


def describe(
    graph: fx.Graph,
    before: Sequence[NodeMemory],
    gradients: Sequence[ParameterGradient],
    plan: GradientPlan,
    is_partitioned: bool,
) -> GraphExplanation:
    """Describe what the pass has made of a graph."""
    owners = {gradient.name: plan.owner_of(gradient.name) for gradient in gradients}
    notes = {gradient.node.name: f"gradient of {gradient.name}" for gradient in gradients}
    for node in graph.nodes:
        if node.target in (GIVE, REDUCE, SEND):
            name = node.args[3]
            notes[node.name] = reduction_note(name, owners[name], plan.rank, is_partitioned)
    return GraphExplanation(
        before=tuple(before),
        after=tuple(live_memory(graph)),
        owners=owners,
        rank=plan.rank,
        is_partitioned=is_partitioned,
        notes=notes,
    )


def reduction_note(name: str, owner: int | None, rank: int, is_partitioned: bool) -> str:
    """Describe what happens to a gradient, in a few words."""
    if owner == rank:
        return f"{name} -> this rank, kept"
    target = "a part to each rank" if owner is None else f"rank {owner}"
    return f"{name} -> {target}, {'freed' if is_partitioned else 'kept here unreduced'}"
