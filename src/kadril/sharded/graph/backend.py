"""`torch.compile(model, backend="kadril")`: compile, with the reductions inside the backward graph.

    model --dynamo--> forward graph --AOTAutograd--> forward, backward --pass--> inner compiler

The inner compiler is torch's inductor, or "eager", which runs the graphs node by node.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch._functorch import config as functorch_config

from kadril.errors import StateError, UnsupportedError
from kadril.sharded.graph.options import CompileOptions, Inner
from kadril.sharded.graph.reduce_pass import reduce_gradients
from kadril.sharded.graph.registry import Registration, find_plan, registration
from kadril.sharded.graph.variants import Variants

__all__ = ["compile_graph", "input_names", "kadril_backend", "register_backend"]

logger = logging.getLogger("kadril")

NAME = "kadril"

# Settings of inductor by which it frees the memory of a gradient and does not write to it again. So
# a plan may keep using a gradient after the call that gave it; to copy what is wanted later took a
# tenth of a backward pass.
NO_REUSE = {"allow_buffer_reuse": False, "inplace_buffers": False, "memory_planning": False}


def kadril_backend(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of dynamo, as a backend of `torch.compile`; see `CompileOptions`.

    Raises:
        ValueError: an unknown option, or a mode.
        StateError: the graph trains parameters that no trainer knows.
    """
    if mode is not None:
        raise ValueError(
            f"mode={mode!r} is for torch's own backend; set what you need of inductor by"
            ' options={"inductor": {...}}'
        )
    chosen = CompileOptions.of(options or {})
    places = trained_places(module, inputs)
    if choose_plan(chosen, [each for each, _ in places]) is None:
        return compile_graph(module, inputs, chosen, edit=None)

    def identify(given: Sequence[Any]) -> tuple[Registration, tuple[str | None, ...]]:
        found = choose_plan(chosen, [each for each, _ in trained_places(module, given)])
        assert found is not None  # noqa: S101 - the parameters are there, known or not
        return found, tuple(input_names(module, given, found))

    given_places = [place for _, place in places if place is not None]
    compiler = functools.partial(compile_reducing, chosen)
    return Variants(module, inputs, given_places, identify, compiler)


def compile_reducing(
    options: CompileOptions,
    module: fx.GraphModule,
    inputs: Sequence[Any],
    found: Registration,
    names: Sequence[str | None],
) -> Callable[..., Any]:
    """Compile a graph whose backward graph reduces the gradients of the inputs that have names."""
    key = found.key

    def edit(graph: fx.Graph) -> None:
        # By its key: compiled code, which may live as long as the process, must not keep a trainer.
        known = registration(key)
        gradients = reduce_gradients(
            graph,
            names,
            known,
            partition_grad=options.partition_grad,
            order=options.order,
        )
        logger.debug(
            "rank %d: %d gradients are reduced in a backward graph", known.plan.rank, len(gradients)
        )

    return compile_graph(module, inputs, options, edit)


def compile_graph(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    options: CompileOptions,
    edit: Callable[[fx.Graph], None] | None,
) -> Callable[..., Any]:
    """Compile a graph of dynamo; `edit` changes each backward graph before the inner compiler.

    Raises:
        UnsupportedError: torch is too old.
    """
    check_torch()
    compiler = compile_eagerly if options.inner == "eager" else compile_with_inductor
    with functorch_config.patch(compile_settings(options.inner)):
        return compiler(module, inputs, options, edit or (lambda graph: None))


def check_torch() -> None:
    """Raise `UnsupportedError` for a torch whose backward graphs come too late to be changed."""
    from torch.fx import graph

    if not hasattr(graph, "_BoxedCodeGen") or not hasattr(
        functorch_config, "force_non_lazy_backward_lowering"
    ):
        raise UnsupportedError(
            f"reductions in compiled backward graphs need torch 2.13, and this is"
            f" {torch.__version__}. Train without torch.compile, or compile with another backend:"
            " gradients are then reduced by hooks"
        )


def compile_settings(inner: Inner) -> dict[str, bool]:
    """Return the settings of AOTAutograd for an inner compiler."""
    settings = {
        # Its cache is keyed by the graph before the edit: with it a rank would load the graph of
        # another rank, where others are the owners. Inductor's own cache sees the edited graph.
        "enable_autograd_cache": False,
        "enable_remote_autograd_cache": False,
        # Not at the first backward pass, where the compiler's memory would meet the gradients and
        # peers would wait.
        "force_non_lazy_backward_lowering": True,
        # A view is made again in the backward graph, so its base is what is kept. Otherwise the
        # base is kept a second time in another form: of a ReLU before a linear layer inductor
        # writes a mask, element by element, which took a sixth of a transformer's forward pass.
        # Node by node there are no masks, and a view more is a call more.
        "recompute_views": inner == "inductor",
    }
    return {name: value for name, value in settings.items() if hasattr(functorch_config, name)}


def compile_eagerly(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    options: CompileOptions,
    edit: Callable[[fx.Graph], None],
) -> Callable[..., Any]:
    """Compile a graph so that Python runs the nodes of both graphs."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    def run_backward(backward: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        edit(backward.graph)
        return run_boxed(backward, _)

    compiler = aot_autograd(
        fw_compiler=run_boxed,
        bw_compiler=run_backward,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return compiler(module, inputs)


def run_boxed(module: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    """Make a function of a graph; it empties its argument list, so values are freed after use."""
    from torch.fx.graph import _BoxedCodeGen

    module.graph.set_codegen(_BoxedCodeGen())
    module.recompile()
    forward = module.forward

    def run(arguments: list[Any]) -> Any:
        return forward(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def compile_with_inductor(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    options: CompileOptions,
    edit: Callable[[fx.Graph], None],
) -> Callable[..., Any]:
    """Compile a graph by inductor, which makes C++ of both graphs."""
    from torch._inductor import config as inductor_config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def compile_inner(graph: fx.GraphModule, examples: Sequence[Any], **arguments: Any) -> Any:
        if not arguments.get("is_backward", False):
            return compile_fx_inner(graph, examples, **arguments)
        edit(graph.graph)
        graph.recompile()
        with inductor_config.patch(NO_REUSE):
            return compile_fx_inner(graph, examples, **arguments)

    compiled: Any = compile_fx(
        module,
        inputs,
        inner_compile=compile_inner,
        config_patches=dict(options.inductor) or None,
    )
    return cast("Callable[..., Any]", compiled)


def trained_places(
    module: fx.GraphModule, inputs: Sequence[Any]
) -> list[tuple[torch.Tensor, int | None]]:
    """Return the parameters that get gradients, and their inputs; None if the module has it."""
    if not torch.is_grad_enabled():
        return []
    num_held = len(forward_inputs(module, ()))
    return [
        (each, place - num_held if place >= num_held else None)
        for place, each in enumerate(forward_inputs(module, inputs))
        if isinstance(each, torch.nn.Parameter) and each.requires_grad
    ]


def choose_plan(options: CompileOptions, parameters: Sequence[torch.Tensor]) -> Registration | None:
    """Return the plan that the options name, or that knows the parameters; None if not needed."""
    if not parameters:
        return None
    if options.plan is not None:
        return registration(options.plan)
    found = find_plan(parameters)
    if found is None:
        shapes = ", ".join(str(tuple(parameter.shape)) for parameter in parameters[:4])
        raise StateError(
            f"no trainer knows the {len(parameters)} parameters of this graph, of shapes {shapes}"
            f"{', ...' if len(parameters) > 4 else ''}, so there is no one to reduce their"
            " gradients to. Make the trainer before the first call of the compiled model:"
            " trainer = kadril.sharded.POS_Trainer(model.named_parameters(), ...)"
        )
    return found


def input_names(
    module: fx.GraphModule, inputs: Sequence[Any], found: Registration
) -> list[str | None]:
    """Return the name of the parameter at each input of the forward graph, None for others."""
    return [
        found.plan.name_of(each) if isinstance(each, torch.Tensor) else None
        for each in forward_inputs(module, inputs)
    ]


def forward_inputs(module: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """Return what AOTAutograd takes as inputs: what the module holds by itself comes first."""
    held: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    held.update(module.named_buffers(remove_duplicate=False))
    return [*held.values(), *inputs]


def register_backend() -> None:
    """Make the backend known to `torch.compile` by its name, unless it is.

    An installed kadril says so by an entry point, which torch looks up by itself.
    """
    from torch import _dynamo as dynamo

    if NAME not in dynamo.list_backends(exclude_tags=()):
        dynamo.register_backend(kadril_backend, name=NAME)
