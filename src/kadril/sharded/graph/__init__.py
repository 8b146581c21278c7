"""The graph pass: gradients are reduced to their owners inside the compiled backward graph.

A compiled backward pass hands out all gradients together, at its end. Hooks come too late there to
give memory back: only an edit of the graph itself can.

    trainer = kadril.sharded.POS_Trainer(model.named_parameters(), "adam", {"lr": 1e-3})
    model = torch.compile(model, backend="kadril")

| file | what |
|---|---|
| plan.py, owners.py | who owns which gradient, and how it gets there |
| op.py | the operators in the graph |
| gradients.py, reduce_pass.py | the pass |
| options.py, backend.py, variants.py | `torch.compile(model, backend="kadril")` |
| optimized_model.py, backward_pass.py | the same by the names of MXNet's pass |
| liveness.py, explanation.py, picture.py | bytes live in a graph, before and after |

Names are imported when first used: most trainings need none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kadril.sharded.graph.backend import kadril_backend, register_backend
    from kadril.sharded.graph.backward_pass import backward
    from kadril.sharded.graph.explanation import Explanation, GraphExplanation, explain
    from kadril.sharded.graph.optimized_model import optimize_for
    from kadril.sharded.graph.options import CompileOptions, backward_options, graph_pass_options
    from kadril.sharded.graph.owners import OwnerPlan
    from kadril.sharded.graph.plan import GradientPlan, Registration, register_plan

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
    "GradientPlan": "plan",
    "GraphExplanation": "explanation",
    "OwnerPlan": "owners",
    "Registration": "plan",
    "backward": "backward_pass",
    "backward_options": "options",
    "explain": "explanation",
    "graph_pass_options": "options",
    "kadril_backend": "backend",
    "optimize_for": "optimized_model",
    "register_backend": "backend",
    "register_plan": "plan",
}


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(importlib.import_module(f"kadril.sharded.graph.{HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
