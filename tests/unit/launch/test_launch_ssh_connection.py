"""Whether a connection is acknowledged, as the kernel tells it."""

from __future__ import annotations

import socket
from pathlib import Path

from kadril.launch.remote.ssh_connection import is_unanswered

HEADER = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout\n"
)
ROW = (
    "   0: 0200004D:0016 0100004D:9C40 01 {tx}:00000000 01:00000014 {again} 0 0 4711 1 0 20 4 30\n"
)


def test_a_connection_that_is_sent_again(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    mine = "77.0.0.1 40000 77.0.0.2 22"
    for again, unanswered in (("00000000", False), ("00000003", True)):
        table.write_text(HEADER + ROW.format(tx="00000040", again=again))
        assert is_unanswered(mine, [table]) is unanswered
    assert not is_unanswered("77.0.0.1 40001 77.0.0.2 22", [table])
    assert not is_unanswered("", [table])
    assert not is_unanswered(mine, [tmp_path / "none"])


def test_a_real_connection_that_nobody_reads() -> None:
    # The other side is stopped: its kernel acknowledges, and its window is merely full.
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as client, server.accept()[0] as accepted:
            accepted.setblocking(False)
            try:
                while True:
                    accepted.send(bytes(1 << 16))
            except BlockingIOError:
                pass
            port = client.getsockname()[1]
            assert not is_unanswered(f"127.0.0.1 {port} 127.0.0.1 {address[1]}")
