"""Plans of box gathers, run for all workers by one process: no ranks, no transport.

Every worker's box is compared with the same box of the global tensor, extended by index arithmetic;
and the adjoint with the sum over all workers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from random import Random

import pytest
import torch

from kadril.ops.box_plan import BoxPlan, WorkerBoxes, plan_boxes
from kadril.ops.edges import (
    EDGES,
    is_padded_by_torch,
    pick,
    source_interval,
    source_positions,
)
from kadril.ops.moves.packing import own_adjoint, peer_boxes
from kadril.partition import Interval, intervals_of
from kadril.partition.pairing import index_of
from kadril.testing import integer_valued

FILL = 7.0


def source_of(place: int, size: int, edge: str) -> int | None:
    """The element that one beyond the ends of a dim is a copy of; None for a constant."""
    if 0 <= place < size:
        return place
    if edge == "circular":
        return place % size
    if edge == "replicate":
        return 0 if place < 0 else size - 1
    if edge == "reflect":
        return -place if place < 0 else 2 * (size - 1) - place
    return None


def expected_box(x: torch.Tensor, box: Sequence[Interval], edges: Sequence[str]) -> torch.Tensor:
    """A box of the global tensor, element by element."""
    sources = [
        [source_of(place, size, edge) for place in range(each.start, each.stop)]
        for each, size, edge in zip(box, x.shape, edges, strict=True)
    ]
    y = torch.full([each.size for each in box], FILL, dtype=x.dtype)
    for place in itertools.product(*(range(each.size) for each in box)):
        found = [along[i] for along, i in zip(sources, place, strict=True)]
        if None not in found:
            y[place] = x[tuple(each for each in found if each is not None)]
    return y


def workers_of(plan: BoxPlan) -> list[WorkerBoxes]:
    return [plan.worker(index_of(rank, plan.shape)) for rank in range(math.prod(plan.shape))]


def block_of(x: torch.Tensor, mine: WorkerBoxes) -> torch.Tensor:
    return x[tuple(slice(each.start, each.stop) for each in mine.block)]


def gather_all(plan: BoxPlan, x: torch.Tensor) -> list[torch.Tensor]:
    """The boxes of all workers; what one receives is what the others send it, box by box."""
    workers = workers_of(plan)
    found = []
    for rank, mine in enumerate(workers):
        moves = mine.moves
        assert moves.out_shape is not None
        y = x.new_full(moves.out_shape, float("nan"))
        for edge in moves.edges:
            y[edge] = moves.fill
        for source, target in moves.copies:
            y[target] = block_of(x, mine)[source]
        sent = {
            peer: [box for to, box in peer_boxes(workers[peer].moves.sends) if to == rank]
            for peer, _ in moves.recvs
        }
        for peer, boxes in moves.recvs:
            assert len(boxes) == len(sent[peer])
            for target, source in zip(boxes, sent[peer], strict=True):
                y[target] = block_of(x, workers[peer])[source]
        assert not y.isnan().any(), "an element of the box comes from nowhere"
        found.append(mine.extend(y))
    return found


def adjoint_all(plan: BoxPlan, ys: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    """The sum of what goes back to the owners, for edges that the moves know by themselves."""
    workers = workers_of(plan)
    total = torch.zeros(list(sizes), dtype=torch.float64)
    for mine, y in zip(workers, ys, strict=True):
        block_of(total, mine).add_(own_adjoint(mine.moves, y))
        for peer, boxes in mine.moves.recvs:
            rank = workers.index(mine)
            sent = [box for to, box in peer_boxes(workers[peer].moves.sends) if to == rank]
            for target, source in zip(boxes, sent, strict=True):
                block_of(total, workers[peer])[source] += y[target]
    return total


def drawn_plan(random: Random) -> tuple[BoxPlan, list[int]]:
    """Any grid of up to 8 workers, uneven blocks, boxes that reach over several of them."""
    shape = random.choice([(1, 1), (2, 1), (1, 3), (4, 2), (2, 2), (1, 2, 3), (2, 2, 2), (3, 1, 1)])
    edges = [random.choice(EDGES) for _ in shape]
    blocks, boxes = [], []
    for length in shape:
        sizes = [random.randint(0, 3) for _ in range(length)]
        sizes[random.randrange(length)] += 3
        have = intervals_of(sizes)
        size = have[-1].stop
        blocks.append(have)
        starts = [random.randint(1 - size, size - 1) for _ in have]
        boxes.append([Interval(start, random.randint(start, 2 * size - 2)) for start in starts])
    plan = plan_boxes(shape, blocks, boxes, edges, fill=FILL, what="drawn")
    return plan, [along[-1].stop for along in blocks]


@pytest.mark.parametrize("seed", range(60))
def test_boxes_of_all_workers(seed: int) -> None:
    plan, sizes = drawn_plan(Random(seed))
    x = integer_valued(sizes, torch.float64, seed=seed)
    assert plan.sizes == sizes
    for mine, y in zip(workers_of(plan), gather_all(plan, x), strict=True):
        assert torch.equal(y, expected_box(x, mine.box, plan.edges)), (mine.index, plan)


@pytest.mark.parametrize("seed", range(40))
def test_the_adjoint_adds_up(seed: int) -> None:
    """<F x, y> == <x, F* y>: whole numbers, so that sums are exact."""
    random = Random(seed)
    plan, sizes = drawn_plan(random)
    edges = [edge if edge in ("zeros", "circular") else "zeros" for edge in plan.edges]
    plan = plan_boxes(plan.shape, plan.blocks, plan.boxes, edges, what="drawn")
    x = integer_valued(sizes, torch.float64, seed=seed)
    boxes = gather_all(plan, x)
    ys = [integer_valued(box.shape, torch.float64, seed=rank) for rank, box in enumerate(boxes)]
    forward = sum((box * y).sum() for box, y in zip(boxes, ys, strict=True))
    assert forward == (x * adjoint_all(plan, ys, sizes)).sum()


def test_nothing_moves_where_each_has_its_box() -> None:
    blocks = [intervals_of([2]), intervals_of([4, 4])]
    inside = [[Interval(0, 2)], [Interval(0, 3), Interval(5, 8)]]
    plan = plan_boxes((1, 2), blocks, inside, what="inside")
    assert plan.is_local
    x = torch.arange(8).view(2, 4)
    mine = plan.worker((0, 1))
    assert mine.cut(x).tolist() == [[1, 2, 3], [5, 6, 7]]
    assert mine.cut(x).data_ptr() == x[:, 1:].data_ptr()  # a view
    assert not mine.moves.sends
    across = [[Interval(0, 2)], [Interval(0, 5), Interval(5, 8)]]
    assert not plan_boxes((1, 2), blocks, across, what="across").is_local
    # What is reflected may lie in the worker's own block: it is copied there, and nothing moves.
    beyond = [[Interval(0, 2)], [Interval(-2, 3), Interval(5, 10)]]
    assert plan_boxes((1, 2), blocks, beyond, ["zeros", "reflect"], what="beyond").is_local
    assert not plan_boxes((1, 2), blocks, beyond, what="beyond").is_local


def test_torch_pads_batches_as_indices_do() -> None:
    """Two ways to make a box of its sources: torch's padding, and indices along each dim."""
    blocks = [intervals_of([2]), intervals_of([1]), intervals_of([3, 4]), intervals_of([5])]
    boxes = [
        [Interval(0, 2)],
        [Interval(0, 1)],
        [Interval(-2, 5), Interval(4, 9)],
        [Interval(-1, 7)],
    ]
    x = integer_valued((2, 1, 7, 5), torch.float64, seed=1)
    for edge in ("reflect", "replicate"):
        plan = plan_boxes((1, 1, 2, 1), blocks, boxes, ["zeros", "zeros", edge, edge], what="pad")
        for mine in workers_of(plan):
            sources = expected_box(x, mine.source, plan.edges)
            assert is_padded_by_torch(sources, plan.edges)
            y = mine.extend(sources)
            assert torch.equal(y, pick(sources, mine.positions))
            assert torch.equal(y, expected_box(x, mine.box, plan.edges))


def test_too_few_elements_beyond_the_end() -> None:
    blocks, boxes = [intervals_of([2, 2])], [[Interval(-4, 2), Interval(2, 4)]]
    with pytest.raises(ValueError, match=r"op: dim 0 has 4 elements, too few for 4 .*reflect"):
        plan_boxes((2,), blocks, boxes, "reflect", what="op")
    for edge in ("zeros", "circular", "replicate"):
        assert plan_boxes((2,), blocks, boxes, edge, what="op").boxes == boxes


def test_sources_are_one_interval_to_the_edge() -> None:
    for edge in ("reflect", "replicate"):
        for start, stop in itertools.combinations(range(-6, 13), 2):
            needed = Interval(start, stop)
            asked = source_interval(needed, 7, edge)
            positions = source_positions(needed, 7, edge)
            if positions is None:
                assert asked == needed
                continue
            assert asked & Interval(0, 7) == asked
            places = [place + asked.start for place in positions]
            assert places == [source_of(each, 7, edge) for each in range(start, stop)]
            assert all(asked.start <= place < asked.stop for place in places)
