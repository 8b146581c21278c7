"""The graph pass: gradients are reduced to their owners inside the compiled backward graph.

A compiled backward pass hands out all gradients together, at its end. Hooks come too late there to
give memory back: only an edit of the graph itself can.

    trainer = kadril.sharded.POS_Trainer(model.named_parameters(), "adam", {"lr": 1e-3})
    model = torch.compile(model, backend="kadril")

| file | what |
|---|---|
| gradient_plan.py | the protocol: who owns which gradient, and how it gets there |
| trainer_plan.py | the plan of a trainer, which hands gradients to its carrier (../reduction) |
| owner_plan.py | a plan without a trainer: each gradient is reduced to one rank, in place |
| registry.py | plans under keys, by which compiled graphs find them |
| graph_gradients.py | which nodes of a backward graph make the gradients of which parameters |
| reduce_pass.py, operators.py | the pass, and the operators that it puts into the graph |
| backend.py, options.py, variants.py | `torch.compile(model, backend="kadril")` |
| optimized_model.py, backward_pass.py | the same by the names of MXNet's pass |
| example_run.py | runs a model once, to have it compiled |
| explain_graph.py | bytes live in the graphs of a model, before and after the pass |
| explanation.py, graph_explanation.py | its results: of a model, of one graph |
| liveness.py, picture.py | how they are counted and drawn |

Names are imported when first used: most trainings need none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kadril.sharded.graph.backend import kadril_backend, register_backend
    from kadril.sharded.graph.backward_pass import backward
    from kadril.sharded.graph.explain_graph import explain
    from kadril.sharded.graph.explanation import Explanation
    from kadril.sharded.graph.gradient_plan import GradientPlan
    from kadril.sharded.graph.graph_explanation import GraphExplanation
    from kadril.sharded.graph.optimized_model import optimize_for
    from kadril.sharded.graph.options import CompileOptions, backward_options, graph_pass_options
    from kadril.sharded.graph.owner_plan import OwnerPlan
    from kadril.sharded.graph.registry import Registration, register_plan

__all__ = [
    "CompileOptions",
    "Explanation",
    "GradientPlan",
    "GraphExplanation",
    "OwnerPlan",
    "Registration",
    "backward",
    "backward_options",
    "explain",
    "graph_pass_options",
    "kadril_backend",
    "optimize_for",
    "register_backend",
    "register_plan",
]

HOMES = {
    "CompileOptions": "options",
    "Explanation": "explanation",
    "GradientPlan": "gradient_plan",
    "GraphExplanation": "graph_explanation",
    "OwnerPlan": "owner_plan",
    "Registration": "registry",
    "backward": "backward_pass",
    "backward_options": "options",
    "explain": "explain_graph",
    "graph_pass_options": "options",
    "kadril_backend": "backend",
    "optimize_for": "optimized_model",
    "register_backend": "backend",
    "register_plan": "registry",
}


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(importlib.import_module(f"kadril.sharded.graph.{HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
