"""The link between driver and ranks, over real sockets."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from kadril.bench.link import Link, LinkLost, connect, is_own, listen, make_address


@pytest.fixture
def links() -> Iterator[tuple[Link, Link]]:
    address = make_address()
    with listen(address) as listener:
        rank = connect(address)
        sock, _ = listener.accept()
        driver = Link(sock)
    try:
        yield driver, rank
    finally:
        driver.close()
        rank.close()


def test_messages_keep_their_order(links: tuple[Link, Link]) -> None:
    driver, rank = links
    for number in range(100):
        driver.send({"number": number})
    assert [rank.receive(5)["number"] for _ in range(100)] == list(range(100))


def test_a_message_larger_than_the_socket(links: tuple[Link, Link]) -> None:
    driver, rank = links
    seconds = [0.1] * 300_000
    sender = threading.Thread(target=rank.send, args=({"seconds": seconds},))
    sender.start()
    assert driver.receive(20)["seconds"] == seconds
    sender.join()


def test_silence_and_loss(links: tuple[Link, Link]) -> None:
    driver, rank = links
    with pytest.raises(LinkLost, match=r"no answer within 0\.05 s"):
        driver.receive(0.05)
    rank.send({"last": True})
    rank.close()
    assert driver.receive(5) == {"last": True}
    with pytest.raises(LinkLost, match="gone"):
        driver.receive(5)
    with pytest.raises(LinkLost, match="gone"):
        driver.send({})


def test_nobody_listens() -> None:
    with pytest.raises(LinkLost, match="the driver is gone"):
        connect(make_address())


def test_both_ends_know_whose_the_other_is(links: tuple[Link, Link]) -> None:
    assert all(is_own(link.sock) for link in links)


def test_nothing_is_left_in_the_file_system(links: tuple[Link, Link]) -> None:
    with contextlib.closing(links[0]):
        assert links[1].sock.getpeername().startswith(b"\0kadril-bench-")
