"""Rules for functions that are layers with parameters: `F.conv2d(x, weight)`, `F.layer_norm`, ...

    F.conv2d(x, w * mask, b, padding=1)      DistributedConv2d(P_x, ...), with these as parameters

A function becomes the partitioned twin of its layer. Parameters are given to it at every call: they
may be attributes, or have been computed in `forward`. Every worker uses the whole of them, and the
twin sums their gradients over the workers that the input is split over. So they are not aligned as
other operands are (`Decision.wants`), which would sum their gradients a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.func import functional_call
from torch.nn import functional

from kadril.nn.distribution.layout import Subgrids, axes_of
from kadril.nn.distribution.replicas import WholeGatherer
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Refused, Rule
from kadril.nn.distribution.rules.layer_table import LAYERS
from kadril.nn.distribution.rules.layers.layer_call import LayerCall

__all__ = ["PARAMETER_FUNCTIONS"]

# Parameters and buffers by name, and all other arguments.
Tensors = Mapping[str, torch.Tensor]
Settings = dict[str, Any]


class LayerFunction(NamedTuple):
    """A function that does what a layer does.

    Attributes:
        names: of its arguments, in order, after the input.
        tensors: those which are parameters or buffers of the layer, by the same names.
        build: the layer, on the meta device, from the input's number of dims, its number of
            channels, the tensors and the other arguments.
    """

    names: Sequence[str]
    tensors: Sequence[str]
    build: Callable[[torch.Size, Tensors, Settings], nn.Module]

    def arguments(self, call: Call) -> tuple[fx.Node, dict[str, fx.Node], Settings]:
        """Return the input, the tensors and the settings of a call.

        Raises:
            Refused: the input is not the first argument, or there are arguments too many.
        """
        names = ["input", *self.names]
        if len(call.node.args) > len(names):
            raise Refused(f"it has more than {len(names)} arguments")
        given = {**dict(zip(names, call.node.args, strict=False)), **call.node.kwargs}
        operand = given.pop("input", None)
        if not isinstance(operand, fx.Node) or not call.is_tensor(operand):
            raise Refused("its input is not a tensor")
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise Refused(f"{', '.join(unknown)}: not supported")
        tensors = {}
        for name in self.tensors:
            value = given.pop(name, None)
            if isinstance(value, fx.Node) and call.is_tensor(value):
                tensors[name] = value
        return operand, tensors, given


def decide(
    function: LayerFunction, call: Call, operand: fx.Node, tensors: Tensors, settings: Settings
) -> Decision:
    """Decide on the layer that does what a function does."""
    shape: torch.Size = call.shapes[operand].shape
    layer = function.build(shape, tensors, settings)
    for name in function.tensors:
        if name not in tensors and name in layer._parameters:
            layer._parameters[name] = None
    return LAYERS[type(layer)](LayerCall(call, layer, operand))


def rule_for(function: LayerFunction) -> Rule:
    """Return the rule for a function."""

    def rule(call: Call) -> Decision:
        operand, tensors, settings = function.arguments(call)
        if operand in tensors.values():
            raise Refused("a tensor is both its input and its parameter")
        decision = decide(
            function, call, operand, call.example_of(tensors), call.example_of(settings)
        )
        make = partial(make_function, function, call, operand, tensors)
        return decision._replace(
            make=make,
            args=(operand, tensors, settings),
            kwargs={},
            handled=frozenset(tensors.values()),
        )

    return rule


def make_function(
    function: LayerFunction,
    call: Call,
    operand: fx.Node,
    nodes: Mapping[str, fx.Node],
    subgrids: Subgrids,
) -> BlockFunction:
    """Make the twins of the layer, one for each combination of settings and parameter shapes."""
    made: dict[str, Any] = {}
    gather = {
        name: WholeGatherer(subgrids.partition(call.layout(node)), f"{name} of {call.name}")
        for name, node in nodes.items()
        if axes_of(call.layout(node))
    }

    def run(x: torch.Tensor, tensors: Tensors, settings: Settings) -> torch.Tensor:
        whole = {name: gather.get(name, same)(each) for name, each in tensors.items()}
        key = repr((settings, {name: (each.shape, each.dtype) for name, each in whole.items()}))
        if key not in made:
            made[key] = decide(function, call, operand, whole, settings).make(subgrids)
        y: torch.Tensor = functional_call(made[key], whole, (x,))
        return y

    return run


def same(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself."""
    return x


def like(tensor: torch.Tensor) -> dict[str, Any]:
    """Return `device` and `dtype` for a layer with such parameters, on the meta device."""
    return {"device": "meta", "dtype": tensor.dtype}


def build_conv(
    num_spatial: int, is_transposed: bool, shape: torch.Size, tensors: Tensors, settings: Settings
) -> nn.Module:
    """Build the layer of `F.conv*d`, or of `F.conv_transpose*d`."""
    weight = tensors["weight"]
    layer_class = getattr(nn, f"Conv{'Transpose' if is_transposed else ''}{num_spatial}d")
    # Dim 1 of a weight has the channels of one group: input ones, or output ones if transposed.
    channels = [weight.shape[0], weight.shape[1] * settings.get("groups", 1)]
    num_in, num_out = channels if is_transposed else reversed(channels)
    sizes = (num_in, num_out, tuple(weight.shape[2:]))
    made: nn.Module = layer_class(*sizes, bias="bias" in tensors, **like(weight), **settings)
    return made


def build_linear(shape: torch.Size, tensors: Tensors, settings: Settings) -> nn.Module:
    """Build the layer of `F.linear`."""
    weight = tensors["weight"]
    if weight.dim() != 2:
        raise Refused(f"its weight has {weight.dim()} dims; give it two")
    return nn.Linear(weight.shape[1], weight.shape[0], "bias" in tensors, **like(weight))


def build_embedding(shape: torch.Size, tensors: Tensors, settings: Settings) -> nn.Module:
    """Build the layer of `F.embedding`."""
    weight = tensors["weight"]
    return nn.Embedding(weight.shape[0], weight.shape[1], **settings, **like(weight))


def build_prelu(shape: torch.Size, tensors: Tensors, settings: Settings) -> nn.Module:
    """Build the layer of `F.prelu`."""
    return nn.PReLU(tensors["weight"].numel(), **like(tensors["weight"]))


def build_layer_norm(shape: torch.Size, tensors: Tensors, settings: Settings) -> nn.Module:
    """Build the layer of `F.layer_norm`."""
    return nn.LayerNorm(elementwise_affine="weight" in tensors, device="meta", **settings)


def build_rms_norm(shape: torch.Size, tensors: Tensors, settings: Settings) -> nn.Module:
    """Build the layer of `F.rms_norm`."""
    return nn.RMSNorm(elementwise_affine="weight" in tensors, device="meta", **settings)


def build_group_norm(shape: torch.Size, tensors: Tensors, settings: Settings) -> nn.Module:
    """Build the layer of `F.group_norm`."""
    affine = "weight" in tensors
    return nn.GroupNorm(num_channels=shape[1], affine=affine, device="meta", **settings)


def build_batch_norm(shape: torch.Size, tensors: Tensors, settings: Settings) -> nn.Module:
    """Build the layer of `F.batch_norm`, in the mode that is given."""
    layer_class = getattr(nn, f"BatchNorm{max(1, len(shape) - 2)}d")
    settings = {**settings}
    training = settings.pop("training", False)
    layer: nn.Module = layer_class(
        shape[1],
        affine="weight" in tensors,
        track_running_stats="running_mean" in tensors,
        device="meta",
        **settings,
    )
    layer._buffers["num_batches_tracked"] = None
    return layer.train(training)


def build_instance_norm(shape: torch.Size, tensors: Tensors, settings: Settings) -> nn.Module:
    """Build the layer of `F.instance_norm`.

    Raises:
        Refused: with running statistics.
    """
    if not settings.get("use_input_stats", True) or "running_mean" in tensors:
        raise Refused("it uses running statistics; only those of the input are supported")
    layer_class = getattr(nn, f"InstanceNorm{max(1, len(shape) - 2)}d")
    eps = settings.get("eps", 1e-5)
    made: nn.Module = layer_class(shape[1], eps, affine="weight" in tensors, device="meta")
    return made


AFFINE = ["weight", "bias"]
RUNNING = ["running_mean", "running_var", *AFFINE]
CONV = [*AFFINE, "stride", "padding", "dilation", "groups"]
CONV_TRANSPOSE = [*AFFINE, "stride", "padding", "output_padding", "groups", "dilation"]
EMBEDDING = ["padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"]
INSTANCE_NORM = [*RUNNING, "use_input_stats", "momentum", "eps"]

# By name in `torch.nn.functional`: functions of the same name elsewhere have other arguments.
SPECS: dict[str, LayerFunction] = {
    "linear": LayerFunction(AFFINE, AFFINE, build_linear),
    "embedding": LayerFunction(["weight", *EMBEDDING], ["weight"], build_embedding),
    "prelu": LayerFunction(["weight"], ["weight"], build_prelu),
    "layer_norm": LayerFunction(["normalized_shape", *AFFINE, "eps"], AFFINE, build_layer_norm),
    "rms_norm": LayerFunction(["normalized_shape", "weight", "eps"], ["weight"], build_rms_norm),
    "group_norm": LayerFunction(["num_groups", *AFFINE, "eps"], AFFINE, build_group_norm),
    "batch_norm": LayerFunction(
        [*RUNNING, "training", "momentum", "eps"], RUNNING, build_batch_norm
    ),
    "instance_norm": LayerFunction(INSTANCE_NORM, RUNNING, build_instance_norm),
}
for num in (1, 2, 3):
    SPECS[f"conv{num}d"] = LayerFunction(CONV, AFFINE, partial(build_conv, num, False))
    SPECS[f"conv_transpose{num}d"] = LayerFunction(
        CONV_TRANSPOSE, AFFINE, partial(build_conv, num, True)
    )

PARAMETER_FUNCTIONS: dict[Any, Rule] = {
    getattr(functional, name): rule_for(spec) for name, spec in SPECS.items()
}
