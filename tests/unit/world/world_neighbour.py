"""A rank that looks for neighbours, as a process: path, secret, rank and size are its arguments."""

from __future__ import annotations

import sys

from kadril.world.bootstrap.host_hub import HubBootstrap
from kadril.world.card import Card
from kadril.world.hub import Hub
from kadril.world.neighbours import meet_neighbours


def main(path: str, secret: str, rank: int, size: int) -> None:
    with Hub.open(
        path, bytes.fromhex(secret), rank, size, job="job", generation=0, timeout=20
    ) as hub:
        bootstrap = HubBootstrap(hub, job="job", generation=0, timeout=20)
        # All ranks have the card of rank 0, as clones of one virtual machine would.
        card = Card.unpack(bootstrap.exchange(Card.mine().pack())[0], 0)
        cards = [card] * size
        layout, mine = meet_neighbours(bootstrap, cards, timeout=20)
        with mine:
            sys.stdout.write(f"{layout.hosts} {mine.rank} {mine.size}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
