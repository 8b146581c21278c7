"""Exchanges that are under way together, as tiers need them to overlap; on every network."""

from __future__ import annotations

import numpy as np
from conformance import TRANSPORTS

from kadril.testing import ranks
from kadril.transport.buffer import Memory
from kadril.transport.call import Call
from kadril.transport.network_group import Completion
from kadril.transport.network_transport import NetworkTransport
from kadril.world import World

NUM_EXCHANGES = 4


@ranks(2, 3, transports=TRANSPORTS[1:4], timeout=100.0)
def test_several_exchanges_are_started_before_the_first_is_completed(world: World) -> None:
    """Packets of one size between the same two ranks must not take each other's place."""
    transport = world.transport
    assert isinstance(transport, NetworkTransport)
    others = [rank for rank in range(world.size) if rank != world.rank]
    for count in (1, 300_000):
        received: list[dict[int, Memory]] = []
        completions: list[Completion] = []
        call = Call("several exchanges")
        with transport._calling(call):
            transport._agree(call)
            for number in range(NUM_EXCHANGES):
                mine = np.full(count, 10 * world.rank + number, np.uint8)
                received.append({peer: np.zeros(count, np.uint8) for peer in others})
                completions.append(
                    transport._start_exchange(
                        [(peer, mine) for peer in others], list(received[-1].items())
                    )
                )
            for completion in completions:
                completion()
        for number, memories in enumerate(received):
            for peer, memory in memories.items():
                assert np.unique(memory).tolist() == [10 * peer + number]
    world.transport.barrier()
