"""The life of a group on a network transport: it is left once, whoever leaves it and how often."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

import pytest
import torch

from kadril.config import Config
from kadril.errors import ClosedError, KadrilError, PeerLost, Revoked
from kadril.transport.network_group import Packet
from kadril.transport.network_transport import NetworkTransport


class BrokenTransport(NetworkTransport):
    """Two ranks that cannot meet; notes how often this one leaves.

    Attributes:
        left: what it has left with, each time.
        on_meet, on_leave: called there, in another thread, which is waited for.
    """

    kind = "broken"

    def __init__(self) -> None:
        super().__init__(0, 2, (0, 1), Config())
        self.left: list[KadrilError | None] = []
        self.on_meet: Callable[[], None] | None = None
        self.on_leave: Callable[[], None] | None = None

    def _meet(self, record: torch.Tensor) -> torch.Tensor:
        in_another_thread(self.on_meet)
        raise PeerLost("rank 1 is lost", rank=1, operation="barrier")

    def _start_exchange(self, sends: Sequence[Packet], recvs: Sequence[Packet]) -> NoReturn:
        raise AssertionError("nobody has met")

    def _leave(self, failure: KadrilError | None) -> None:
        self.left.append(failure)
        in_another_thread(self.on_leave)


def in_another_thread(work: Callable[[], None] | None) -> None:
    if work is not None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()


def test_a_call_that_fails_in_a_closed_group_does_not_leave_again() -> None:
    """MPI's board counted one group less for each time, and was freed while others used it."""
    transport = BrokenTransport()
    transport.on_meet = transport.close
    with pytest.raises(PeerLost):
        transport.barrier()
    assert transport.left == [None]
    with pytest.raises(ClosedError):
        transport.barrier()


def test_threads_that_leave_together_leave_once() -> None:
    transport = BrokenTransport()
    transport.on_leave = transport.close  # while the call that has failed is just leaving
    with pytest.raises(PeerLost):
        transport.barrier()
    transport.revoke("too late")
    transport.close()
    assert [type(failure) for failure in transport.left] == [PeerLost]


def test_a_revoked_group_is_closed_in_silence() -> None:
    transport = BrokenTransport()
    transport.revoke("enough")
    with pytest.raises(Revoked, match="enough"):
        transport.barrier()
    transport.close()
    assert [type(failure) for failure in transport.left] == [Revoked]
