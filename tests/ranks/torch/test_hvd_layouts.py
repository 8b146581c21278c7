"""Tensors of every layout: strided, transposed, expanded, empty, 0-dim, conjugated, parameters."""

from __future__ import annotations

import torch
from exact import same, torch_dtype
from hvd_model import DTYPE_NAMES, given, reduced
from hvd_stage import everywhere, on_shm

import kadril.torch as hvd
from kadril.world import World


def filled(rank: int) -> torch.Tensor:
    """6 x 8 numbers of which no two are the same, within a rank or between four."""
    return torch.arange(48.0).reshape(6, 8) * 4 + rank


def layouts(matrix: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same memory seen in several ways; none is contiguous."""
    return {
        "transposed": matrix.t(),
        "columns": matrix[:, 2:5],
        "every other row": matrix[::2],
        "every other column": matrix[:, 1::2],
        "permuted": matrix.reshape(2, 3, 8).permute(2, 0, 1),
        "diagonal": matrix.diagonal(),
    }


@everywhere
def test_strided_inputs(world: World) -> None:
    total = sum(filled(rank) for rank in range(world.size))
    assert isinstance(total, torch.Tensor)
    for what, view in layouts(filled(world.rank)).items():
        result = hvd.allreduce(view, op=hvd.Sum)
        assert torch.equal(result, layouts(total)[what]), what
        result = hvd.broadcast(view, world.size - 1)
        assert torch.equal(result, layouts(filled(world.size - 1))[what]), what
        result = hvd.allgather(view)
        parts = [layouts(filled(rank))[what] for rank in range(world.size)]
        assert torch.equal(result, torch.cat(parts)), what


@everywhere
def test_strided_memory_in_place(world: World) -> None:
    total = sum(filled(rank) for rank in range(world.size))
    assert isinstance(total, torch.Tensor)
    for what in layouts(total):
        matrix, reference = filled(world.rank), filled(world.rank)
        view = layouts(matrix)[what]
        assert hvd.allreduce_(view, op=hvd.Sum) is view
        layouts(reference)[what].copy_(layouts(total)[what])
        # Also what lies between the elements of the view is as it was.
        assert torch.equal(matrix, reference), what
        matrix, reference = filled(world.rank), filled(world.rank)
        view = layouts(matrix)[what]
        assert hvd.broadcast_(view, world.size - 1) is view
        layouts(reference)[what].copy_(layouts(filled(world.size - 1))[what])
        assert torch.equal(matrix, reference), what


@on_shm
def test_strided_inputs_of_the_splitting_ops(world: World) -> None:
    size, rank = world.size, world.rank
    wide = torch.arange(5.0 * 12).reshape(5, 12) + 100 * rank
    result = hvd.reducescatter(wide.t(), op=hvd.Sum)
    total = sum(torch.arange(5.0 * 12).reshape(5, 12).t() + 100 * other for other in range(size))
    assert isinstance(total, torch.Tensor)
    assert torch.equal(result, total.chunk(size)[rank])
    result = hvd.alltoall(wide.t())
    parts = [
        (torch.arange(5.0 * 12).reshape(5, 12).t() + 100 * other).chunk(size)[rank]
        for other in range(size)
    ]
    assert torch.equal(result, torch.cat(parts))


@on_shm
def test_every_dtype_strided(world: World) -> None:
    for name in DTYPE_NAMES:
        doubled = torch.zeros(2, 21, dtype=torch_dtype(name))
        doubled[0] = given(name, "sum", world.rank, 21)
        column = doubled.t()[:, 0]
        assert not column.is_contiguous() or column.numel() < 2 or column.stride() == (1,)
        interleaved = torch.zeros(21, 2, dtype=torch_dtype(name))
        interleaved[:, 0] = given(name, "sum", world.rank, 21)
        result = hvd.allreduce(interleaved[:, 0], op=hvd.Sum, name=name)
        assert same(result.contiguous(), reduced(name, "sum", range(world.size), 21)), name


@everywhere
def test_expanded_tensors(world: World) -> None:
    tensor = torch.tensor([[float(world.rank + 1)]]).expand(3, 4)
    total = sum(range(1, world.size + 1))
    assert hvd.allreduce(tensor, op=hvd.Sum).tolist() == [[total] * 4] * 3
    assert hvd.allgather(tensor).shape == (3 * world.size, 4)
    assert hvd.broadcast(tensor, 0).tolist() == [[1.0] * 4] * 3
    assert tensor.tolist() == [[world.rank + 1.0] * 4] * 3


@everywhere
def test_tensors_without_dimensions(world: World) -> None:
    total = sum(range(1, world.size + 1))
    for dtype in (torch.float32, torch.float16, torch.int64, torch.uint8, torch.complex64):
        tensor = torch.tensor(world.rank + 1, dtype=dtype)
        result = hvd.allreduce(tensor, op=hvd.Sum)
        assert (result.shape, result.item()) == ((), total)
        result = hvd.broadcast(tensor, world.size - 1)
        assert (result.shape, result.item()) == ((), world.size)
        hvd.broadcast_(tensor, 0)
        assert (tensor.shape, tensor.item()) == ((), 1)
    flag = torch.tensor(world.rank == 0)
    assert hvd.allreduce(flag, op=hvd.Sum).item() is True
    assert hvd.broadcast(flag, 0).item() is True


@everywhere
def test_tensors_without_elements(world: World) -> None:
    for shape in ((0,), (0, 3), (3, 0), (2, 0, 5)):
        for dtype in (torch.float32, torch.bool, torch.int16):
            tensor = torch.zeros(shape, dtype=dtype)
            result = hvd.allreduce(tensor, op=hvd.Sum)
            assert (result.shape, result.dtype) == (shape, dtype)
            assert hvd.allreduce_(tensor, op=hvd.Max) is tensor
            assert hvd.broadcast(tensor, 0).shape == shape
            rows = shape[0] * world.size
            assert hvd.allgather(tensor).shape == (rows, *shape[1:])
    for shape in ((0,), (0, 3), (12, 0)):
        mine = shape[0] // world.size
        assert hvd.reducescatter(torch.zeros(shape)).shape == (mine, *shape[1:])
        assert hvd.alltoall(torch.zeros(shape)).shape == shape
    # Between them, one that has some.
    handles = [hvd.allreduce_async(torch.zeros(0), name="a", op=hvd.Sum)]
    handles += [hvd.allreduce_async(torch.ones(2), name="b", op=hvd.Sum)]
    handles += [hvd.allreduce_async(torch.zeros(0), name="c", op=hvd.Sum)]
    results = [hvd.synchronize(handle).tolist() for handle in handles]
    assert results == [[], [world.size] * 2, []]


@on_shm
def test_lazy_conjugates_and_negatives(world: World) -> None:
    """`x.conj()` shares its memory with x; sent as that memory it would be x."""
    tensor = torch.full((4,), complex(world.rank, 1.0))
    total = complex(sum(range(world.size)), -world.size)
    assert hvd.allreduce(tensor.conj(), op=hvd.Sum).tolist() == [total] * 4
    assert hvd.broadcast(tensor.conj(), 0).tolist() == [complex(0.0, -1.0)] * 4
    assert hvd.allgather(tensor.conj()[:1]).tolist() == [
        complex(rank, -1.0) for rank in range(world.size)
    ]
    imaginary = tensor.conj().imag
    assert imaginary.is_neg()
    assert hvd.allreduce(imaginary, op=hvd.Sum).tolist() == [-world.size] * 4
    assert hvd.allreduce_(imaginary, op=hvd.Sum).tolist() == [-world.size] * 4
    assert tensor.imag.tolist() == [world.size] * 4


@on_shm
def test_leaves_that_require_grad_in_place(world: World) -> None:
    # torch refuses in-place changes of leaves outside of no_grad; a broadcast of parameters is one.
    parameter = torch.nn.Parameter(torch.full((2, 3), float(world.rank + 1)))
    hvd.broadcast_(parameter, world.size - 1)
    assert parameter.tolist() == [[world.size] * 3] * 2
    assert parameter.is_leaf
    assert parameter.requires_grad
    hvd.synchronize(hvd.broadcast_async_(parameter, 0))
    hvd.allreduce_(parameter, op=hvd.Sum)
    assert parameter.tolist() == [[world.size**2] * 3] * 2
    assert parameter.grad_fn is None


@on_shm
def test_memory_that_is_not_aligned(world: World) -> None:
    memory = torch.zeros(81, dtype=torch.uint8)
    for offset in (0, 4, 12):
        tensor = memory[offset : offset + 40].view(torch.float32)
        tensor.fill_(world.rank + 1)
        hvd.allreduce_(tensor, op=hvd.Sum)
        assert tensor.tolist() == [sum(range(1, world.size + 1))] * 10
