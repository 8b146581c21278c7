"""Rules for elements that are chosen by number: `x[:, [2, 0]]`, `x[:, index]`, `index_select`.

The dim that is chosen from has to be whole, and every worker chooses from its block.

    x (n, c, h | h, w)   x[:, [2, 0]]   -> (n, 2, h | h, w)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from kadril.nn.distribution.layout import Layout, without
from kadril.nn.distribution.rules.call import Call, Decision, Refused
from kadril.nn.distribution.rules.functions.pointwise import as_it_is
from kadril.nn.distribution.rules.whole_operands import ask_to_gather

__all__ = ["choose", "index_select", "is_choice"]


def index_select(call: Call) -> Decision:
    """Decide on `index_select(x, dim, index)`."""
    source, *_ = call.operands
    layout = call.layout(source)
    dim = call.argument(1, "dim") % len(layout)
    want = without(layout, [dim])
    return chosen_from(call, source, want, want)


def is_choice(entry: Any) -> bool:
    """Whether a part of an index is a list of numbers, or a tensor."""
    return isinstance(entry, (list, torch.Tensor))


def choose(call: Call, source: fx.Node, entries: list[Any]) -> Decision:
    """Decide on `x[:, numbers]`: one list or tensor of numbers, and otherwise only `:`.

    Raises:
        Refused: there is more than that in the index.
    """
    rest = [entry for entry in entries if not is_choice(entry)]
    if len(rest) != len(entries) - 1 or any(entry not in (slice(None), Ellipsis) for entry in rest):
        raise Refused("indexing by a list or a tensor, and by something other than `:` besides")
    layout = call.layout(source)
    place = next(number for number, entry in enumerate(entries) if is_choice(entry))
    before_end = Ellipsis in entries[:place]
    dim = len(layout) - (len(entries) - place) if before_end else place
    chosen = torch.as_tensor(entries[place])
    if chosen.dtype == torch.bool:
        raise Refused("indexing by a mask: how many elements it takes depends on values")
    want = without(layout, [dim])
    gives: Layout = (*want[:dim], *(None,) * chosen.dim(), *want[dim + 1 :])
    return chosen_from(call, source, want, gives)


def chosen_from(call: Call, source: fx.Node, want: Layout, gives: Layout) -> Decision:
    """Decide to run the call as it is, with whole indices.

    Raises:
        Refused: the dim is split, and must not be gathered.
    """
    wants: dict[fx.Node, Layout] = {
        node: (None,) * len(call.layout(node)) for node in call.operands
    }
    wants[source] = want
    ask_to_gather(call, wants, "it chooses by number from a dim that is split")
    return as_it_is(call, wants, gives)
