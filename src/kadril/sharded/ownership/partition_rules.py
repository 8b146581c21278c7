"""Rules that give whole parameters to ranks.

    flat            no owners: every bucket is cut evenly (ownership_plan.py)
    greedy          in the order of the list, each to the rank that has the fewest elements so far
    largest_first   the same, the largest parameter first

In a small model an embedding may have more elements than everything else, so that `greedy` and
`largest_first` leave one of many ranks with several times its share; `flat` never does. Optimizers
that look at a parameter as a matrix need it whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["RULES", "owners_of"]

# By rule: what parameters are sorted by before they are given away, from their number of elements.
SORT_KEYS: dict[str, Callable[[int], int]] = {
    "greedy": lambda size: 0,  # as they come
    "largest_first": lambda size: -size,
}

RULES = ("flat", *SORT_KEYS)


def owners_of(
    rule: str, sizes: Sequence[int], is_frozen: Sequence[bool], num_ranks: int
) -> list[int]:
    """Return the owner of each parameter; frozen ones are assigned after all others.

    Args:
        rule: one of `SORT_KEYS`.
        sizes: number of elements of each parameter.
        is_frozen: whether each parameter asks for no gradient.
        num_ranks: number of ranks.

    Raises:
        KeyError: the rule has no owners, or there is no such rule.
    """
    sort_key = SORT_KEYS[rule]
    order = sorted(range(len(sizes)), key=lambda place: (is_frozen[place], sort_key(sizes[place])))
    loads = [0] * num_ranks
    owners = [0] * len(sizes)
    for place in order:
        owner = loads.index(min(loads))
        owners[place] = owner
        loads[owner] += sizes[place]
    return owners
