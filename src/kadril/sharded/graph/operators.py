"""The operators that the pass puts into a backward graph.

    token = begin_gradients(key, total)
    copy = copy_gradient(gradient)                              the owner, where others read it too
    reduce_gradient_(copy, token, key, name, 0, total)          the owner: in place
    send_gradient(gradient, token, key, name, 1, total, ...)    everyone else
    give_gradient_(gradient, token, key, name, 2, total)        the same, where it is not read again

Those that send mutate the token. So none is dead code where its gradient is dropped, and no
compiler may change their order, although they have nothing else in common. The token also holds
how far the pass has come; an operator that finds another number there than its own was moved, and
says so instead of mixing gradients.

What becomes of a gradient is the plan's business. That of a trainer sends it to its owners as hooks
do, and waits for nobody. An `OwnerPlan` reduces it with all ranks at the same time: the transport
compares the label of each call, which has the name, the place and the total in it.

They are declared by their schemas. `torch.library.custom_op` does so by annotations, but costs 40
microseconds in each call, once for every parameter in every pass, where this costs 4.
"""

from __future__ import annotations

import torch

from kadril.errors import MismatchError, UnsupportedError
from kadril.sharded.graph.registry import Registration, registration
from kadril.sharded.ownership.gradient_memory import raw_grad

__all__ = [
    "BEGIN",
    "COPY",
    "GIVE",
    "REDUCE",
    "SEND",
    "begin_gradients",
    "copy_gradient",
    "give_gradient_",
    "reduce_gradient_",
    "send_gradient",
]


# Keeps the operators declared.
LIBRARY = torch.library.Library("kadril", "FRAGMENT")  # type: ignore[no-untyped-call]

CALL = "Tensor(b!) token, str key, str name, int place, int total"
SCHEMAS = (
    "begin_gradients(str key, int total) -> Tensor",
    "copy_gradient(Tensor gradient) -> Tensor",
    f"reduce_gradient_(Tensor(a!) gradient, {CALL}) -> ()",
    f"send_gradient(Tensor gradient, {CALL}, bool is_dropped) -> ()",
    f"give_gradient_(Tensor(a!) gradient, {CALL}) -> ()",
)


def begin_gradients(key: str, total: int) -> torch.Tensor:
    """Make a token for one run of a graph with `total` gradients."""
    registration(key)  # raises before anything is sent
    return torch.zeros(1, dtype=torch.int64)


def copy_gradient(gradient: torch.Tensor) -> torch.Tensor:
    """Return a copy in one piece. Copies of torch are left out by compilers, which know them."""
    return gradient.clone(memory_format=torch.contiguous_format)


def reduce_gradient_(
    gradient: torch.Tensor, token: torch.Tensor, key: str, name: str, place: int, total: int
) -> None:
    """Replace a gradient by the reduced one, on its owner."""
    found = registration(key)
    take_turn(found, token, name, place)
    whole = gradient if gradient.is_contiguous() else gradient.contiguous()
    reduce_with(found, whole, name, place, total)
    if whole is not gradient:
        gradient.copy_(whole)


def send_gradient(
    gradient: torch.Tensor,
    token: torch.Tensor,
    key: str,
    name: str,
    place: int,
    total: int,
    is_dropped: bool,
) -> None:
    """Send a gradient: to its owner, or each rank its part.

    Args:
        gradient: stays as it is.
        token: of this run.
        key: of the plan.
        name: of the parameter.
        place: of this operator among all of the graph.
        total: number of them.
        is_dropped: whether the graph does not hand the gradient out.
    """
    send(gradient, token, key, name, place, total, is_dropped=is_dropped, is_given=False)


def give_gradient_(
    gradient: torch.Tensor, token: torch.Tensor, key: str, name: str, place: int, total: int
) -> None:
    """Send a gradient that the graph neither reads again nor hands out, memory and all."""
    send(gradient, token, key, name, place, total, is_dropped=True, is_given=True)


def send(
    gradient: torch.Tensor,
    token: torch.Tensor,
    key: str,
    name: str,
    place: int,
    total: int,
    *,
    is_dropped: bool,
    is_given: bool,
) -> None:
    """Send a gradient, or keep it where the graph was told to."""
    found = registration(key)
    take_turn(found, token, name, place)
    is_kept = is_dropped and found.keeps_local
    if is_kept:
        parameter = found.plan.parameter_of(name)
        before = raw_grad(parameter)
        # A copy: other nodes of the graph may still read the gradient.
        parameter.grad = gradient.clone() if before is None else before.add_(gradient)
    elif is_dropped:
        found.dropped.add(name)
    if not is_kept or found.plan.owner_of(name) is not None:
        reduce_with(found, gradient, name, place, total, is_given=is_given)


def declare() -> None:
    """Make the operators known to torch."""
    for schema in SCHEMAS:
        LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    functions = (begin_gradients, copy_gradient, reduce_gradient_, send_gradient, give_gradient_)
    for function in functions:
        LIBRARY.impl(function.__name__, function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake("kadril::begin_gradients", fake_token, lib=LIBRARY)
    torch.library.register_fake("kadril::copy_gradient", copy_gradient, lib=LIBRARY)
    for name in ("reduce_gradient_", "send_gradient", "give_gradient_"):
        torch.library.register_fake(f"kadril::{name}", lambda *_: None, lib=LIBRARY)


def fake_token(key: str, total: int) -> torch.Tensor:
    """Stand for a token while a graph is compiled."""
    return torch.empty(1, dtype=torch.int64)


declare()

# As nodes of a graph have them.
BEGIN = torch.ops.kadril.begin_gradients.default
COPY = torch.ops.kadril.copy_gradient.default
REDUCE = torch.ops.kadril.reduce_gradient_.default
SEND = torch.ops.kadril.send_gradient.default
GIVE = torch.ops.kadril.give_gradient_.default


def take_turn(found: Registration, token: torch.Tensor, name: str, place: int) -> None:
    """Advance the token, or raise where a compiler has changed the order."""
    turn = int(token)
    if turn != place:
        raise UnsupportedError(
            f"rank {found.plan.rank}: the compiler moved the reduction of {name!r}: it is number"
            f" {place} of its graph and ran as number {turn}. Nothing was sent. Compile with"
            ' options={"inner": "eager"}, and report the model that this happened with'
        )
    token.add_(1)


def reduce_with(
    found: Registration,
    gradient: torch.Tensor,
    name: str,
    place: int,
    total: int,
    *,
    is_given: bool = False,
) -> None:
    """Reduce through the plan; where ranks disagree, say what that means for graphs."""
    try:
        label = f"gradient {place + 1} of {total}: {name}"
        found.plan.reduce_gradient(name, gradient, label, is_given=is_given)
    except MismatchError as error:
        raise MismatchError(
            f"{error}\nThe backward graphs of the ranks are not the same: this rank came with the"
            f" gradient of {name!r}, number {place + 1} of {total}. Run the same layers on all"
            ' ranks, or train without compiling; where only the order differs, options={"order":'
            ' "parameters"} makes it independent of the graph',
            error.calls,
        ) from error
