"""Memory in the arena: handed out as tensors, given back, and an error where there is none."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from kadril.errors import NoRoomError
from kadril.testing import ranks
from kadril.transport.shared_memory import SharedMemory
from kadril.world import World


def shared(world: World) -> SharedMemory:
    assert world.transport.shared_memory is not None
    return world.transport.shared_memory


@ranks(2)
def test_shared_memory_is_zeroed_and_typed(world: World) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.complex128, torch.bool, torch.uint16):
        tensor = world.shared_empty((3, 5), dtype)
        assert tensor.shape == (3, 5)
        assert tensor.dtype == dtype
        assert not tensor.any()
        assert shared(world).segment.contains(tensor.data_ptr(), tensor.nbytes)
    assert world.shared_empty(0).numel() == 0
    assert world.shared_empty(()).shape == ()


@ranks(2)
def test_memory_goes_back_when_its_last_view_dies(world: World) -> None:
    gc.collect()
    before = shared(world).segment.num_allocated_bytes
    tensor = world.shared_empty(1 << 20)
    view: object = tensor.view(1024, 1024)[3:5].numpy()
    assert shared(world).segment.num_allocated_bytes == before + (4 << 20)
    del tensor
    gc.collect()
    assert shared(world).segment.num_allocated_bytes == before + (4 << 20)
    del view
    gc.collect()
    assert shared(world).segment.num_allocated_bytes == before


def resident_shared_kilobytes() -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("RssShmem"))


@ranks(2)
def test_freed_memory_leaves_the_machine(world: World) -> None:
    """The pages are punched out of the segment, not only marked as free."""
    before = resident_shared_kilobytes()
    tensor = world.shared_empty(16 << 20)
    tensor.fill_(1)
    assert resident_shared_kilobytes() - before >= 60 << 10
    del tensor
    gc.collect()
    assert resident_shared_kilobytes() - before < 4 << 10


@ranks(2)
def test_no_room_names_bytes_and_remedy_and_hurts_nobody(world: World) -> None:
    """More than the machine has: an error here, where touching it would have been a SIGBUS."""
    needed = 1 << 44
    with pytest.raises(NoRoomError) as caught:
        world.shared_empty(needed // 4)
    assert caught.value.needed == needed
    assert caught.value.available is not None
    assert "17,592,186,044,416 bytes" in str(caught.value)
    x = torch.ones(2)
    world.transport.allreduce(x)
    assert x.tolist() == [2.0, 2.0]


@ranks(2, shared_capacity=8 << 20)
def test_a_full_heap_names_the_option(world: World) -> None:
    with pytest.raises(NoRoomError, match="KADRIL_SHARED_CAPACITY"):
        world.shared_empty(9 << 20, torch.uint8)


@ranks(2, shared_backing="named")
def test_the_named_fallback_leaves_no_name(world: World) -> None:
    """Gloo's shared-memory all-reduce left files after SIGKILL: here the name is gone at once."""
    link = str(Path(f"/proc/self/fd/{shared(world).segment.descriptor}").readlink())
    assert link.startswith("/dev/shm/kadril-")  # noqa: S108
    assert link.endswith(" (deleted)")
    x = world.shared_empty(100_000)
    x.fill_(world.rank + 1)
    world.transport.allreduce(x)
    assert x.eq(3).all()


@ranks(2)
def test_the_segment_has_no_name_and_cannot_shrink(world: World) -> None:
    descriptor = shared(world).segment.descriptor
    assert str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("/memfd:kadril")
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 4096)


@ranks(2, 3)
def test_mixed_memory_takes_the_staged_way(world: World) -> None:
    """Some ranks give shared memory, some do not: the way is agreed on, and the result the same."""
    for count in (5, 200_000):
        mine = world.shared_empty(count) if world.rank == 0 else torch.empty(count)
        mine.copy_(torch.arange(count) % 1000 + world.rank)
        world.transport.allreduce(mine)
        expected = (torch.arange(count) % 1000) * world.size + sum(range(world.size))
        assert torch.equal(mine, expected.float())


@ranks(2)
@pytest.mark.big
@pytest.mark.long
def test_more_than_two_to_the_31_elements(world: World) -> None:
    """Gloo's shared-memory all-reduce counted bytes in an int."""
    count = 2**31 + 17
    x = np.full(count, world.rank + 1, dtype=np.uint8)
    x[-1] = 100 + world.rank
    world.transport.allreduce(x)
    assert x[-1] == 201
    assert x[0] == 3
    for begin in range(0, count, 1 << 28):
        block = x[begin : min(begin + (1 << 28), count - 1)]
        assert int(block.min()) == int(block.max()) == 3
