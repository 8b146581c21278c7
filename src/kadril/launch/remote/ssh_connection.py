"""Whether the TCP connection that an agent hangs on is acknowledged, as the kernel knows it.

A host that is cut off hears nothing: no end of the connection, no error. The kernel sends what the
agent says again and again, for a quarter of an hour, before it gives up. It counts how often, and
shows it in /proc/net/tcp. A launcher that is merely stopped (Ctrl-Z) acknowledges nevertheless.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["is_unanswered"]

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def is_unanswered(connection: str, tables: Iterable[Path] = TABLES) -> bool:
    """Whether the kernel sends something again since nobody acknowledges it.

    Args:
        connection: value of SSH_CONNECTION: addresses and ports of the client and of this host.
        tables: where the kernel lists its connections.

    Returns:
        False where the connection is not found, as behind a program that is not ssh.
    """
    words = connection.split()
    if len(words) != 4:
        return False
    ports = (f"{int(words[3]):04X}", f"{int(words[1]):04X}")
    for table in tables:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            # number, local and remote address:port, state, queues, timer, number of repetitions
            _, local, remote, _, _, _, repetitions, *_ = line.split()
            if (local[-4:], remote[-4:]) == ports and int(repetitions, 16) > 0:
                return True
    return False
