"""Rules for calls that have no partitioned form, or none along some dims: operands must be whole.

    operands are whole        workers are replicas, and all do the same         as it is
    operands are split        gathered first, and replicas from there on        `gather=True`

What is gathered has to fit into the memory of each worker, so users have to allow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.func import functional_call

from kadril.nn.distribution.layout import Layout, axes_of, whole_layout, without
from kadril.nn.distribution.module_mode import in_mode
from kadril.nn.distribution.rules.call import Call, Decision, Refused, Rule
from kadril.nn.distribution.rules.functions.along_dims import along
from kadril.nn.distribution.rules.functions.pointwise import as_it_is, runner
from kadril.nn.distribution.side_effects import Observer

__all__ = ["along_whole", "ask_to_gather", "on_replicas"]


def ask_to_gather(call: Call, wants: Mapping[fx.Node, Layout], why: str) -> None:
    """Check that operands that have to be gathered may be gathered.

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
    """Return the bytes of the largest block of an operand in some layout."""
    num = 1
    for size, axis in zip(call.shape(node), layout, strict=True):
        num *= size if axis is None else -(-size // call.lengths[axis])
    dtype: torch.dtype = call.shapes[node].dtype
    return num * dtype.itemsize


def in_words(num_bytes: int) -> str:
    """Return a number of bytes as text, such as "4 MiB"."""
    amount = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} GiB"


def along_whole(default: int | None = None, place: int = 1) -> Rule:
    """Return the rule for calls along dims that have to be whole, and are gathered only if allowed.

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
    """Decide to run a call of torch as it is, with whole operands, on all replicas.

    Raises:
        Refused: it is not torch's own; or draws random numbers, which would differ among replicas;
            or operands are split, and must not be gathered.
    """
    refuse_others(call)
    wants = {each: without(layout, range(len(layout))) for each, layout in layouts_of(call).items()}
    drawn = random_calls(call)
    if drawn:
        raise Refused(
            f"it draws random numbers ({drawn[0]}), and replicas would draw different ones"
        )
    ask_to_gather(call, wants, "it has no partitioned form")
    gives = whole_layout(call.result)
    if call.module is None:
        return as_it_is(call, wants, gives)
    return Decision(wants, gives, lambda subgrids: call.module)  # type: ignore[arg-type,return-value]


def layouts_of(call: Call) -> dict[fx.Node, Layout]:
    """Return the operands and their layouts.

    Raises:
        Refused: there is none; or a list of tensors is handed on as a whole.
    """
    if not call.operands:
        raise Refused("it has no partitioned form")
    found = {}
    for node in call.node.all_input_nodes:
        if call.is_tensor(node):
            found[node] = call.layout(node)
        elif call.layouts[node] is not None:
            raise Refused("it has no partitioned form for a list of tensors")
    return found


def refuse_others(call: Call) -> None:
    """Refuse a call that is not torch's own, since it may do anything.

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
        raise Refused("it has no partitioned form")


def random_calls(call: Call) -> list[str]:
    """Return the operations of a call that draw random numbers in training."""
    args, kwargs = call.example_of((tuple(call.node.args), dict(call.node.kwargs)))
    observer = Observer()
    with torch.no_grad(), observer:
        if call.module is None:
            runner(call.node)(*args, **kwargs)
        else:
            with in_mode(call.module, True):
                run_on_meta(call.module, args, kwargs)
    return observer.draws


def run_on_meta(module: nn.Module, args: Any, kwargs: Any) -> None:
    """Call a module with parameters and buffers that have no memory."""
    state = [*module.named_parameters(), *module.named_buffers()]
    on_meta = {name: torch.empty_like(each, device="meta") for name, each in state}
    functional_call(module, on_meta, args, kwargs)
