"""The code of one graph, for each set of parameters that it is called with.

torch runs the code that it has compiled for one module with others of its class too: the layers of
a loop, a second model. It compares shapes, not identities. But gradients go to their owners by
name, and to the trainer that knows the parameters now. So these are looked up in every call, and
the graph is compiled again for others:

    layers[0] --+               layers.0.weight -> code, compiled when dynamo made the graph
    layers[1] --+--> one graph  layers.1.weight -> code, compiled in the first call
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from kadril.sharded.graph.registry import Registration, living_serials, num_changes

__all__ = ["Variants"]

Code: TypeAlias = Callable[..., Any]
Names: TypeAlias = tuple[str | None, ...]

# Of a registration, the names of the inputs, and their shapes if the code is for these only.
Key: TypeAlias = tuple[int, Names, object]


class Variants:
    """A graph of dynamo, to be called as the code that is compiled of it.

    Args:
        module: the graph.
        inputs: as dynamo gives them.
        places: of the inputs that are trained parameters; in every call they are.
        identify: the plan that knows the parameters among some inputs, and the names of all.
        compiler: compiles the graph for some inputs, a plan and names.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        inputs: Sequence[Any],
        places: Sequence[int],
        identify: Callable[[Sequence[Any]], tuple[Registration, Names]],
        compiler: Callable[[fx.GraphModule, Sequence[Any], Registration, Names], Code],
    ) -> None:
        self._module = copy_of(module)
        self._is_dynamic = is_dynamic(module)
        self._places = tuple(places)
        self._identify = identify
        self._compiler = compiler
        found, names = identify(inputs)
        first = compiler(module, inputs, found, names)
        self._made: dict[Key, Code] = {(found.serial, names, None): first}
        # By the identities of the parameters. While the plans are the same ones, they hold them. It
        # holds no plan: compiled code may live as long as the process.
        self._known: dict[tuple[int, ...], tuple[weakref.ref[Registration], Names]] = {}
        self._num_changes = -1

    def __call__(self, *inputs: Any) -> Any:
        """Run the code for these inputs."""
        if self._num_changes != num_changes():
            self._forget()
        identities = tuple([id(inputs[place]) for place in self._places])
        place, names = self._known.get(identities, (None, ()))
        found = None if place is None else place()
        if found is None:
            found, names = self._identify(inputs)
            self._known[identities] = (weakref.ref(found), names)
        code = self._made.get((found.serial, names, None))
        return (code or self._made_for(found, names, inputs))(*inputs)

    def _made_for(self, found: Registration, names: Names, inputs: Sequence[Any]) -> Code:
        """Return code for other parameters than those that dynamo has seen.

        That is compiled outside of dynamo, which alone knows how sizes hang together; so it is for
        the sizes at hand, where they may change.
        """
        key = (found.serial, names, sizes_of(inputs) if self._is_dynamic else None)
        if key not in self._made:
            self._made[key] = self._compiler(copy_of(self._module), inputs, found, names)
        return self._made[key]

    def _forget(self) -> None:
        """Forget who knows which parameter: plans have come, gone or changed."""
        self._num_changes = num_changes()
        self._known.clear()
        living = living_serials()
        self._made = {key: code for key, code in self._made.items() if key[0] in living}


def copy_of(module: fx.GraphModule) -> fx.GraphModule:
    """Copy a graph for a compiler, which may change what it gets."""
    made = fx.GraphModule(module, copy.deepcopy(module.graph))
    made.meta = module.meta
    return made


def is_dynamic(module: fx.GraphModule) -> bool:
    """Whether a graph is for more than one size of its inputs."""
    values = [
        node.meta.get("example_value") for node in module.graph.nodes if node.op == "placeholder"
    ]
    return any(
        any(isinstance(size, torch.SymInt) for size in each.shape)
        if isinstance(each, torch.Tensor)
        else isinstance(each, torch.SymInt | torch.SymFloat | torch.SymBool)
        for each in values
    )


def sizes_of(inputs: Sequence[Any]) -> object:
    """Return the sizes of inputs, for which code may be made."""
    return tuple(
        (tuple(each.shape), each.stride()) if isinstance(each, torch.Tensor) else each
        for each in inputs
    )
