"""Groups, predivision, compression: what the arguments of the optimizer do to a reduction."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from gradient_kit import backward, combined
from training_kit import all_ranks, assert_gradients, make_parameters, momentum_sgd, pull_of

import kadril.torch as hvd
from kadril.errors import NotInitializedError
from kadril.testing import ranks
from kadril.world import World


@ranks(2, 3)
def test_groups_of_parameters_are_reduced_together(world: World) -> None:
    hvd.init()
    parameters = make_parameters()
    for groups in (1, 3, 100, [parameters[:2], [parameters[4], parameters[5]]], [[parameters[4]]]):
        optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Sum, groups=groups)
        for step in range(2):
            optimizer.zero_grad()
            backward(parameters, pull_of(world.rank, step))
            optimizer.step()
            assert_gradients(parameters, combined(all_ranks(step)))


@ranks(2, 4)
def test_groups_with_predivision(world: World) -> None:
    """The grouped way of Horovod forgot the predivide factor."""
    hvd.init()
    for factor in (0.5, 2.0, 4.0):
        for groups in (None, 2):
            parameters = make_parameters()
            optimizer = hvd.DistributedOptimizer(
                momentum_sgd(parameters), gradient_predivide_factor=factor, groups=groups
            )
            backward(parameters, pull_of(world.rank))
            optimizer.step()
            assert_gradients(parameters, combined(all_ranks(), world.size))


@ranks(2)
def test_predivision_keeps_small_floats_in_range(world: World) -> None:
    """The sum of two halves of 60000 is in range of float16 where the sum of two 60000 is not."""
    hvd.init()
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.float16))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([parameter], lr=1.0), gradient_predivide_factor=2.0
    )
    (parameter * 60000).sum().backward()
    optimizer.synchronize()
    assert torch.equal(parameter.grad, torch.full((3,), 60000.0, dtype=torch.float16))


@ranks(2)
def test_the_old_name_of_groups_works_and_warns(world: World) -> None:
    hvd.init()
    parameters = make_parameters()
    with pytest.warns(DeprecationWarning, match="num_groups is deprecated"):
        optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Sum, num_groups=2)
    backward(parameters, pull_of(world.rank))
    optimizer.step()
    assert_gradients(parameters, combined(all_ranks()))


@ranks(2, 3)
def test_compression_of_what_fits_loses_nothing(world: World) -> None:
    """Small integers are exact in 11 and in 8 bits, and so are their sums."""
    hvd.init()
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        for groups in (None, 2):
            parameters = make_parameters()
            optimizer = hvd.DistributedOptimizer(
                momentum_sgd(parameters), compression=compression, op=hvd.Sum, groups=groups
            )
            for step in range(2):
                optimizer.zero_grad()
                backward(parameters, pull_of(world.rank, step))
                optimizer.step()
                assert_gradients(parameters, combined(all_ranks(step)))


@ranks(2)
def test_compression_rounds_each_way_once(world: World) -> None:
    """1 + 2^-11 is not in float16; it travels as 1 (ties to even), and the sum comes back as 2."""
    hvd.init()
    for shape in ((5,), (100_000,)):
        parameter = torch.nn.Parameter(torch.zeros(shape))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([parameter], lr=1.0), compression=hvd.Compression.fp16, op=hvd.Sum
        )
        (parameter * (1 + 2.0**-11)).sum().backward()
        optimizer.synchronize()
        assert torch.equal(parameter.grad, torch.full(shape, 2.0))
        assert parameter.grad.dtype == torch.float32


def test_compressors_give_back_what_they_got() -> None:
    for compressor in (hvd.Compression.fp16, hvd.Compression.bf16):
        for dtype in (torch.float32, torch.float64):
            tensor = torch.tensor([1.0, -2.5, 0.0], dtype=dtype)
            small, context = compressor.compress(tensor)
            assert small.element_size() == 2
            assert torch.equal(compressor.decompress(small, context), tensor)
            assert compressor.decompress(small, context).dtype == dtype
        for dtype in (torch.int64, torch.float16, torch.bfloat16, torch.bool, torch.complex64):
            tensor = torch.ones(3, dtype=dtype)
            same, context = compressor.compress(tensor)
            assert same is tensor
            assert compressor.decompress(same, context).dtype == dtype
    tensor = torch.ones(3)
    same, context = hvd.Compression.none.compress(tensor)
    assert hvd.Compression.none.decompress(same, context) is tensor


class Negated(hvd.Compression.none):  # type: ignore[name-defined, misc]
    """A compressor of a user."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        return -tensor, 7

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: int) -> torch.Tensor:
        assert ctx == 7
        return -tensor


@ranks(2)
def test_a_compressor_of_ones_own(world: World) -> None:
    hvd.init()
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), compression=Negated, op=hvd.Sum)
    backward(parameters, pull_of(world.rank))
    optimizer.step()
    assert_gradients(parameters, combined(all_ranks()))


def check_before_init() -> None:
    """Check the errors in a process that has no world."""
    parameters = make_parameters()
    names = [(f"p{place}", parameter) for place, parameter in enumerate(parameters)]
    cases: list[dict[str, Any]] = [
        {"named_parameters": [*names, names[0]]},
        {"named_parameters": names[:-1]},
        {"backward_passes_per_step": 0},
    ]
    for options in cases:
        with pytest.raises(ValueError) as caught:
            hvd.DistributedOptimizer(momentum_sgd(parameters), **options)
        assert not isinstance(caught.value, NotInitializedError), caught.value
    with pytest.raises(TypeError, match="takes a torch optimizer"):
        hvd.DistributedOptimizer(parameters)
    with pytest.raises(NotInitializedError, match=r"hvd\.init\(\)"):
        hvd.DistributedOptimizer(momentum_sgd(parameters), names)


def test_arguments_are_looked_at_before_the_world() -> None:
    """A name twice was not told before init(); the missing init() was."""
    program = "import test_training_groups; test_training_groups.check_before_init()"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {program}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@ranks(2)
def test_names_of_parameters(world: World) -> None:
    """Programs look names up by parameter in `optimizer._parameter_names`."""
    hvd.init()
    for op in (hvd.Average, hvd.Adasum):
        parameters = make_parameters()
        names = [(f"p{place}", parameter) for place, parameter in enumerate(parameters)]
        optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), names, op=op)
        assert optimizer._parameter_names == {parameter: name for name, parameter in names}
        assert optimizer._parameter_names[parameters[1]] == "p1"
        unnamed = hvd.DistributedOptimizer(momentum_sgd(make_parameters()), op=op)
        assert len(set(unnamed._parameter_names.values())) == len(parameters)


@ranks(1, 2)
def test_arguments_that_make_no_sense(world: World) -> None:
    hvd.init()
    parameters = make_parameters()
    optimizer = momentum_sgd(parameters)
    names = [(f"p{place}", parameter) for place, parameter in enumerate(parameters)]
    cases = [
        ({"named_parameters": [*names, names[0]]}, "names twice: p0"),
        ({"named_parameters": names[:-1]}, "does not name 1 of the optimizer's 6"),
        ({"named_parameters": parameters}, "give pairs of name and parameter"),
        ({"backward_passes_per_step": 0}, "at least 1"),
        ({"backward_passes_per_step": -1}, "at least 1"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "needs op=hvd.Average, not Sum"),
        ({"gradient_predivide_factor": 0.0}, "must be positive"),
        ({"op": 17}, "is no reduction"),
        ({"groups": -1}, "must not be negative"),
        ({"num_groups": -1}, "must not be negative"),
        ({"groups": parameters}, "list of lists"),
        ({"groups": parameters[0]}, "list of lists"),
        ({"groups": [["p0"]]}, "give parameters"),
        ({"groups": [[torch.zeros(3)]]}, "no parameter of the optimizer"),
        ({"groups": [[parameters[0]], [parameters[0]]]}, "in a group already"),
    ]
    for options, message in cases:
        if world.size == 1 and "already" in message:
            continue  # nothing is grouped in a world of one
        with pytest.raises(ValueError, match=message):
            hvd.DistributedOptimizer(optimizer, **options)
        assert type(optimizer) is torch.optim.SGD
    with pytest.raises(TypeError, match="takes a torch optimizer"):
        hvd.DistributedOptimizer(parameters)
    # None of this has left a hook behind.
    optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Sum)
    backward(parameters, pull_of(world.rank))
    optimizer.step()
    assert_gradients(parameters, combined(all_ranks()))
