"""Sums are laid into gradients that nobody else holds, and into no others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gradient_kit import assert_same, backward
from sharded_kit import OPTIMIZERS, make_parameters, mean_of_step, one_process, plain, pull_of

from kadril.sharded import POS_Trainer
from kadril.testing import ranks
from kadril.world import World

NAME, OPTIONS = OPTIMIZERS[2]
# Each but the small ones fills a bucket of its own.
SHAPES = ((300_007,), (280_000,), (3, 5), (290_000,), (600, 500), (270_000,), (11,))
NUM_STEPS = 3

KEEPERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the gradient": lambda gradient: gradient,
    "what has its memory": lambda gradient: gradient.detach(),
    "a view of it": lambda gradient: gradient.flatten()[1:],
}


def expect(size: int) -> list[torch.nn.Parameter]:
    means = [mean_of_step(step, size, shapes=SHAPES) for step in range(NUM_STEPS)]
    return one_process(plain(NAME, OPTIONS), means, SHAPES)[0]


@pytest.mark.shared_memory("sums of outboxes lie in gradients")
@ranks(2, 3, 4)
def test_sums_lie_in_gradients(world: World) -> None:
    check_that_sums_lie_in_gradients(world)


@pytest.mark.shared_memory("sums of outboxes lie in gradients")
@ranks(2)
def test_sums_lie_in_gradients_beside_compiled_code(world: World) -> None:
    """Once torch has compiled anything, a caller keeps a reference to each argument it passes."""
    assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)) == 2
    check_that_sums_lie_in_gradients(world)


def check_that_sums_lie_in_gradients(world: World) -> None:
    parameters = make_parameters(SHAPES)
    ranges = []

    def note(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        begin = parameter.grad.data_ptr()
        ranges.append(range(begin, begin + parameter.grad.nbytes))

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(note)
    trainer = POS_Trainer(parameters, NAME, OPTIONS, world=world)
    for step in range(NUM_STEPS):
        ranges.clear()
        backward(parameters, pull_of(world.rank, step, world.size, SHAPES))
        trainer.allreduce_grads()
        sums = [bucket.gradients for bucket in trainer.shards.buckets if bucket.count]
        inside = [any(each.data_ptr() in one for one in ranges) for each in sums]
        assert sum(inside) >= len(sums) - 1, "only that of small gradients lies elsewhere"
        # No two of them lie in the same place.
        places = sorted((each.data_ptr(), each.nbytes) for each in sums)
        for (begin, length), (after, _) in itertools.pairwise(places):
            assert begin + length <= after
        trainer.update()
    assert_same(parameters, expect(world.size))


@ranks(2, 3)
def test_gradients_that_hooks_keep_stay_as_they_are(world: World) -> None:
    for kept_as, keep in KEEPERS.items():
        parameters = make_parameters(SHAPES)
        kept: list[torch.Tensor] = []

        def keep_one(
            parameter: torch.Tensor, kept: list[torch.Tensor] = kept, keep: Any = keep
        ) -> None:
            kept.append(keep(parameter.grad))

        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(keep_one)
        trainer = POS_Trainer(parameters, NAME, OPTIONS, world=world)
        for step in range(NUM_STEPS):
            kept.clear()
            pull = pull_of(world.rank, step, world.size, SHAPES)
            backward(parameters, pull)
            trainer.step()
            given = {len(keep(each).flatten()): keep(each) for each in pull if each is not None}
            for each in kept:
                assert torch.equal(each, given[each.numel()]), (kept_as, step, each.shape)
        assert_same(parameters, expect(world.size))


@ranks(2)
def test_arrays_that_were_given_as_gradients_stay_as_they_are(world: World) -> None:
    """Torch has the only reference to such a tensor, and its memory is somebody else's."""
    parameters = make_parameters(SHAPES)
    trainer = POS_Trainer(parameters, NAME, OPTIONS, world=world)
    for step in range(NUM_STEPS):
        pull = [each for each in pull_of(world.rank, step, world.size, SHAPES) if each is not None]
        arrays = [each.numpy().copy() for each in pull]
        for parameter, array in zip(parameters, arrays, strict=True):
            parameter.grad = torch.from_numpy(array)
        trainer.step()
        for array, each in zip(arrays, pull, strict=True):
            assert np.array_equal(array, each.numpy())
    assert_same(parameters, expect(world.size))
