"""A rank of a hub as a process of its own: reads a request from stdin, prints JSON lines."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any

from kadril.errors import KadrilError
from kadril.world.hub import Hub


def say(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def open_hub(request: dict[str, Any]) -> Hub:
    return Hub.open(
        request["path"],
        bytes.fromhex(request["secret"]),
        request["rank"],
        request["size"],
        job=request["job"],
        generation=request["generation"],
        timeout=request["timeout"],
    )


def exchange(request: dict[str, Any]) -> None:
    """Meet, exchange blobs and descriptors, say what came."""
    with open_hub(request) as hub:
        mine = os.memfd_create(f"of rank {hub.rank}")
        os.write(mine, f"file {hub.rank}".encode())
        blobs = hub.allgather(b"blob %d" % hub.rank)
        shared = hub.broadcast_fd(mine if hub.rank == 0 else None)
        descriptors = hub.allgather_fds(mine)
        say(
            blobs=[blob.decode() for blob in blobs],
            shared=os.pread(shared, 100, 0).decode(),
            files=[os.pread(each, 100, 0).decode() for each in descriptors],
            inheritable=[os.get_inheritable(each) for each in [shared, *descriptors]],
        )


def wait(request: dict[str, Any]) -> None:
    """Meet, say so, and then do nothing until killed."""
    with open_hub(request):
        say(state="open")
        time.sleep(600)


def join(request: dict[str, Any]) -> None:
    """Meet, or say what the error was and how long it took."""
    start = time.monotonic()
    try:
        with open_hub(request) as hub:
            say(blobs=[blob.decode() for blob in hub.allgather(request["job"].encode())])
    except KadrilError as error:
        say(error=type(error).__name__, text=str(error), seconds=time.monotonic() - start)


def be_nobody(request: dict[str, Any]) -> None:
    """Join as another user; see `join`."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    join(request)


def knock(request: dict[str, Any]) -> None:
    """Connect as another user, without a look at who listens, and say what comes."""
    os.setuid(65534)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(request["path"])
        say(received=sock.recv(100).hex())


def fork(request: dict[str, Any]) -> None:
    """Meet, and use the hub in a child made by fork; then in the parent."""
    with open_hub(request) as hub:
        child = os.fork()
        if child == 0:
            try:
                hub.allgather(b"")
            except KadrilError as error:
                say(error=type(error).__name__)
            os._exit(0)
        os.waitpid(child, 0)
        say(blobs=[blob.decode() for blob in hub.allgather(b"parent")])


ACTIONS = {
    "exchange": exchange,
    "wait": wait,
    "join": join,
    "be_nobody": be_nobody,
    "knock": knock,
    "fork": fork,
}

if __name__ == "__main__":
    REQUEST = json.loads(sys.stdin.readline())
    ACTIONS[REQUEST["action"]](REQUEST)
