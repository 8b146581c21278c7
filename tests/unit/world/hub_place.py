"""Tools for tests of the hub: a place to meet, ranks as threads or processes, a raw client."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kadril.world import unix
from kadril.world.deadline import Deadline
from kadril.world.handshake import Claim, make_claim
from kadril.world.hub import Hub
from kadril.world.wire import Connection, Frame, Kind

RANK_SCRIPT = Path(__file__).with_name("hub_process.py")


@dataclass
class Place:
    """A private directory, a secret, and rank 0's listening socket, as a launcher makes them."""

    directory: str
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    job: str = "job"
    listener: socket.socket | None = None

    @property
    def path(self) -> str:
        return f"{self.directory}/hub.sock"

    def open(self, rank: int, size: int, generation: int = 0, **changes: Any) -> Hub:
        options = {"secret": self.secret, "job": self.job, "timeout": 20.0, **changes}
        return Hub.open(
            self.path,
            options["secret"],
            rank,
            size,
            job=options["job"],
            generation=generation,
            listen_socket=self.listener if rank == 0 else None,
            timeout=options["timeout"],
        )


@contextlib.contextmanager
def make_place(parent: str | None = None) -> Iterator[Place]:
    """A place that is gone with all that is in it when the test ends."""
    with tempfile.TemporaryDirectory(prefix="kadril-test-", dir=parent) as directory:
        place = Place(directory)
        place.listener = unix.listen(place.path)
        try:
            yield place
        finally:
            if place.listener is not None:
                place.listener.close()


class Outcome:
    """A call in a thread of its own: what it returned or raised, and how long it took."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self.seconds = 0.0
        self._function = function
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        start = time.monotonic()
        try:
            self.value = self._function()
        except BaseException as error:  # the test looks at it
            self.error = error
        self.seconds = time.monotonic() - start

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout: float = 30.0) -> Outcome:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"still waiting after {timeout} s"
        return self

    def get(self) -> Any:
        self.join()
        if self.error is not None:
            raise self.error
        return self.value


def together(functions: list[Callable[[], Any]]) -> list[Any]:
    """Call functions at the same time, one thread each; their values."""
    outcomes = [Outcome(function) for function in functions]
    return [outcome.get() for outcome in outcomes]


def open_hubs(place: Place, size: int, generation: int = 0) -> list[Hub]:
    """The hubs of all ranks, each opened by a thread."""
    return together([lambda r=rank: place.open(r, size, generation) for rank in range(size)])


class RawClient:
    """Speaks the protocol step by step, right or wrong as the test likes."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.connection = Connection(unix.connect(place.path, Deadline(10)))
        self.challenge = b""

    def hear_challenge(self) -> bytes:
        frame = self.receive()
        assert frame.kind is Kind.CHALLENGE
        self.challenge = frame.payload
        return self.challenge

    def claim(self, rank: int, size: int, generation: int = 0, **changes: Any) -> bytes:
        """Answer the challenge; gives the claim as it was sent."""
        secret = changes.pop("secret", self.place.secret)
        fields = {"job": self.place.job, "generation": generation, **changes}
        payload = make_claim(secret, Claim(rank=rank, size=size, **fields), self.hear_challenge())
        self.send(Kind.CLAIM, payload)
        return payload

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        self.connection.send(kind, payload, deadline=Deadline(10))

    def receive(self, seconds: float = 10.0) -> Frame:
        return self.connection.receive(Deadline(seconds))

    def is_dropped(self, seconds: float = 10.0) -> bool:
        """Whether rank 0 closes the connection within some seconds."""
        self.connection.socket.settimeout(seconds)
        try:
            while self.connection.socket.recv(65536):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def rank_process(
    place: Place, action: str, rank: int, size: int, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A rank as a real process; killed if it is still there when the test ends."""
    request = {
        "action": action,
        "path": place.path,
        "secret": place.secret.hex(),
        "job": place.job,
        "rank": rank,
        "size": size,
        "generation": 0,
        "timeout": 20.0,
        **options,
    }
    process = subprocess.Popen(
        [sys.executable, str(RANK_SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin is not None
    with process:
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next JSON line that a rank process prints."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the rank ended without a word"
    values: dict[str, Any] = json.loads(line)
    return values


def num_descriptors() -> int:
    """Number of open descriptors of this process, less those that only await collection."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208
