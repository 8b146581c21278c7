"""`optimize_for`: the graph pass by the name that it had in MXNet."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kadril.sharded.graph.backend import kadril_backend
from kadril.sharded.graph.example_run import remember, run_example
from kadril.sharded.graph.options import CompileOptions

__all__ = ["PASS", "optimize_for"]

PASS = "add_reduce_op"  # noqa: S105 - what the pass is called


def optimize_for(
    model: nn.Module,
    x: Any = None,
    backend: str = PASS,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    **options: Any,
) -> nn.Module:
    """Compile a model so that its backward graph reduces each gradient to its owner.

        options = trainer.generate_graph_pass_options()
        model = optimize_for(model, x, backend="add_reduce_op", **options)

    The same as `torch.compile(model, backend="kadril", options=options)`, compiled at once.

    Args:
        model: to compile; it keeps its parameters, and stays usable by itself.
        x: an example to compile for: one argument, a tuple of arguments, or a mapping of keyword
            arguments. Without it the model is compiled when it is first called. `explain(model)`
            takes it as its example.
        backend: "add_reduce_op".
        fullgraph: raise where the model cannot become one graph.
        dynamic: see `torch.compile`.
        options: those of `CompileOptions`, usually from `trainer.generate_graph_pass_options()`.

    Returns:
        The compiled model. Call this one.

    Raises:
        ValueError: another backend, or an unknown option.
        StateError: the trainer of the options is gone, or no trainer knows the parameters.
    """
    if backend != PASS:
        raise ValueError(f"backend is {backend!r}; the pass is called {PASS!r}")
    CompileOptions.of(options)  # what is wrong with them is said here, not at the first call
    compiled: nn.Module = torch.compile(  # type: ignore[assignment]
        model, backend=kadril_backend, options=options, fullgraph=fullgraph, dynamic=dynamic
    )
    if x is not None:
        run_example(model, compiled, x)
        remember(model, x)
    return compiled
