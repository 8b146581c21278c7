"""Layers whose weight is computed anew in each forward pass, from the parameters that are learned.

    torch.nn.utils.parametrizations.weight_norm(conv)     parametrizations.weight.original0, 1
    torch.nn.utils.parametrize.register_parametrization   parametrizations.weight.original
    torch.nn.utils.weight_norm(conv)                      weight_g, weight_v     (a hook)
    torch.nn.utils.spectral_norm(conv)                    weight_orig            (a hook)

The twin has the learned parameters under their own names. In each forward pass every worker
computes the weight from them, and gives it to the partitioned layer, which sums its gradient over
the workers; so the learned parameters get the whole gradient on each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from kadril.nn.distribution.layout import Subgrids
from kadril.nn.distribution.module_mode import in_mode
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Rule
from kadril.nn.distribution.rules.layers.layer_call import LayerCall

__all__ = ["computed_weights", "is_weight_hook", "parametrized", "plain_class"]

# From a module to its weight, by the name of the weight.
Computations = dict[str, Callable[[Any], torch.Tensor]]


def plain_class(module: nn.Module) -> type[nn.Module]:
    """Return the class that a module had before it was parametrized."""
    kind = type(module)
    if not parametrize.is_parametrized(module):
        return kind
    original: type[nn.Module] = kind.__bases__[0]
    return original


def computed_weights(module: nn.Module) -> Computations:
    """Return how weights are computed that are not parameters; empty for most modules."""
    found: Computations = {}
    if parametrize.is_parametrized(module):
        lists: Any = module.parametrizations
        found.update({name: partial(parametrized_weight, name) for name in lists})
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            found[hook.name] = hook.compute_weight
        elif isinstance(hook, SpectralNorm):
            found[hook.name] = partial(spectral_weight, hook)
    return found


def is_weight_hook(hook: object) -> bool:
    """Whether a hook does nothing but compute a weight."""
    return isinstance(hook, (WeightNorm, SpectralNorm))


def parametrized_weight(name: str, module: Any) -> torch.Tensor:
    """Compute the weight as `parametrize` does."""
    weight: torch.Tensor = module.parametrizations[name]()
    return weight


def spectral_weight(hook: SpectralNorm, module: Any, is_step: bool = True) -> torch.Tensor:
    """Compute the weight as `torch.nn.utils.spectral_norm` does; a step changes its buffers."""
    return hook.compute_weight(module, do_power_iteration=is_step and module.training)


def parametrized(rule: Rule) -> Rule:
    """Return the rule for a layer with computed weights, from the one for the plain layer."""

    def for_layer(call: Call) -> Decision:
        module = call.module
        if module is None:
            raise AssertionError("rules for modules are for modules")
        decision = rule(LayerCall(call, plain_layer(module), call.operand))
        return decision._replace(make=partial(make_parametrized, decision.make, module))

    return for_layer


def plain_layer(module: nn.Module) -> nn.Module:
    """Return a layer with the same settings, and a parameter for each computed weight."""
    kind = plain_class(module)
    computations = computed_weights(module)
    layer = kind.__new__(kind)
    layer.__dict__.update(module.__dict__)
    hidden = {"parametrizations"}
    layer._modules = {name: each for name, each in module._modules.items() if name not in hidden}
    layer._parameters = dict(module._parameters)
    layer._forward_pre_hooks = type(module._forward_pre_hooks)()
    for name in computations:
        layer.__dict__.pop(name, None)
        with torch.no_grad(), in_mode(module, False):  # no power iteration
            weight = getattr(module, name)
        on_meta = torch.empty(weight.shape, dtype=weight.dtype, device="meta")
        layer._parameters[name] = nn.Parameter(on_meta, requires_grad=False)
    return layer


def make_parametrized(
    make: Callable[[Subgrids], BlockFunction], module: nn.Module, subgrids: Subgrids
) -> BlockFunction:
    """Make the twin of a layer with computed weights."""
    for hook in module._forward_pre_hooks.values():
        # Tracing has called the hook, without data.
        if isinstance(hook, WeightNorm):
            setattr(module, hook.name, hook.compute_weight(module))
        elif isinstance(hook, SpectralNorm):
            setattr(module, hook.name, spectral_weight(hook, module, is_step=False))
    return ParametrizedTwin(module, make(subgrids))


class ParametrizedTwin(nn.Module):
    """A partitioned layer whose weights are computed in each forward pass.

    Args:
        module: the ordinary layer; its parameters, buffers and parametrizations are taken over.
        layer: the partitioned one, for weights that are parameters.
    """

    layer: Any

    def __init__(self, module: nn.Module, layer: Any) -> None:
        super().__init__()
        self._parameters = dict(module._parameters)
        self._buffers = dict(module._buffers)
        self._non_persistent_buffers_set = set(module._non_persistent_buffers_set)
        self._modules = dict(module._modules)
        self._computations = computed_weights(module)
        # Hidden, so that its parameters are not found twice.
        object.__setattr__(self, "layer", layer)
        self.train(module.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the weights, and call the layer with them; collective over its partition."""
        own = {**self._parameters, **self._buffers}
        names = {*self.layer._parameters, *self.layer._buffers}
        state = {name: each for name, each in own.items() if each is not None and name in names}
        state.update({name: compute(self) for name, compute in self._computations.items()})
        y: torch.Tensor = functional_call(self.layer, state, (x,))
        return y

    def train(self, mode: bool = True) -> ParametrizedTwin:
        """Set the mode, also of the partitioned layer."""
        super().train(mode)
        self.layer.train(mode)
        return self

    def extra_repr(self) -> str:
        """Show the layer that is called."""
        return repr(self.layer)
