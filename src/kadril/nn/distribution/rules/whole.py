"""Calls that have no partitioned form, or none along some dims: they need operands whole.

    operands are whole        workers are replicas, and all do the same         as it is
    operands are split        gathered first, and replicas from there on        `gather=True`

What is gathered has to fit into the memory of each worker, so who distributes a model is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from kadril.nn.distribution.call import Call, Decision, Refused, Rule
from kadril.nn.distribution.layout import Layout, axes_of, without
from kadril.nn.distribution.pointwise import as_it_is, runner
from kadril.nn.distribution.reduce import along
from kadril.nn.distribution.rules.mode import in_mode

__all__ = ["along_whole", "ask_to_gather", "on_replicas"]


def ask_to_gather(call: Call, wants: Mapping[fx.Node, Layout], why: str) -> None:
    """Make sure that operands may be gathered, where they are.

    Args:
        call: which needs them.
        wants: layouts in which operands are needed.
        why: there is no other way.

    Raises:
        Refused: they may not; says what that would cost.
    """
    gathered = {
        node: want for node, want in wants.items() if axes_of(call.layout(node)) - axes_of(want)
    }
    if not gathered or call.may_gather:
        return
    num_bytes = sum(block_bytes(call, node, want) for node, want in gathered.items())
    raise Refused(
        f"{why}; distribute(..., gather=True) lets it gather what it needs: every worker then holds"
        f" {in_words(num_bytes)} for it, with the example's shapes"
    )


def block_bytes(call: Call, node: fx.Node, layout: Layout) -> int:
    """Size of the largest block of an operand in some layout."""
    num = 1
    for size, axis in zip(call.shape(node), layout, strict=True):
        num *= size if axis is None else -(-size // call.lengths[axis])
    dtype: torch.dtype = call.shapes[node].dtype
    return num * dtype.itemsize


def in_words(num_bytes: int) -> str:
    """A number of bytes, as people read it."""
    amount = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} GiB"


def along_whole(default: int | None = None, place: int = 1) -> Rule:
    """The rule for calls along dims that have to be whole, and are gathered only if that is asked.

    Args:
        default: the dim, where the call names none; None for all dims.
        place: of the dim among the arguments.
    """
    general = along(default, place)

    def rule(call: Call) -> Decision:
        decision = general(call)
        ask_to_gather(call, decision.wants, "it needs the whole of a dim that is split")
        return decision

    return rule


def on_replicas(call: Call) -> Decision:
    """A call of torch that knows nothing of partitions, with operands that are whole.

    Raises:
        Refused: it is not torch's own; or draws random numbers, which would differ among replicas;
            or operands are split, and must not be gathered.
    """
    refuse_others(call)
    wants = {each: without(layout, range(len(layout))) for each, layout in layouts_of(call).items()}
    drawn = random_calls(call)
    if drawn:
        raise Refused(f"it draws random numbers ({drawn[0]}), and replicas would draw different")
    ask_to_gather(call, wants, "there is no partitioned form of it")
    gives = whole_layout(call.result)
    if call.module is None:
        return as_it_is(call, wants, gives)
    return Decision(wants, gives, lambda lines: call.module)  # type: ignore[arg-type,return-value]


def layouts_of(call: Call) -> dict[fx.Node, Layout]:
    """The operands, and their layouts.

    Raises:
        Refused: there is none; or a list of tensors is handed on as a whole.
    """
    if not call.operands:
        raise Refused("there is no partitioned form of it")
    found = {}
    for node in call.node.all_input_nodes:
        if call.is_tensor(node):
            found[node] = call.layout(node)
        elif call.layouts[node] is not None:
            raise Refused("there is no partitioned form of it, for a list of tensors")
    return found


def refuse_others(call: Call) -> None:
    """Refuse what is not torch's own, and may do anything.

    Raises:
        Refused: it is not.
    """
    if call.module is not None:
        home = type(call.module).__module__
    elif call.node.op == "call_method":
        home = "torch"
    else:
        home = getattr(call.node.target, "__module__", None) or "torch"
    if home.partition(".")[0] not in ("torch", "_operator", "math"):
        raise Refused("there is no partitioned form of it")


def whole_layout(result: Any) -> Any:
    """Layouts for results that replicas have."""
    if isinstance(result, torch.Tensor):
        return (None,) * result.dim()
    return [whole_layout(each) for each in result] if isinstance(result, (list, tuple)) else None


class RandomCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes down which operations draw random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at an operation, and do it."""
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def random_calls(call: Call) -> list[str]:
    """The operations of a call that draw random numbers, in training; found on the meta device."""
    args, kwargs = call.example_of((tuple(call.node.args), dict(call.node.kwargs)))
    seen = RandomCalls()
    with torch.no_grad(), seen:
        if call.module is None:
            runner(call.node)(*args, **kwargs)
        else:
            with in_mode(call.module, True):
                run_on_meta(call.module, args, kwargs)
    return seen.found


def run_on_meta(module: nn.Module, args: Any, kwargs: Any) -> None:
    """Call a module with parameters and buffers that have no memory."""
    state = [*module.named_parameters(), *module.named_buffers()]
    on_meta = {name: torch.empty_like(each, device="meta") for name, each in state}
    functional_call(module, on_meta, args, kwargs)
