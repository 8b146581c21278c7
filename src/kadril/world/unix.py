"""Unix-domain sockets by path: bind, connect, and take over one that was inherited."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator

from kadril.errors import RendezvousError
from kadril.world.deadline import Backoff, Deadline

__all__ = ["adopt", "connect", "listen"]

MAX_PATH_BYTES = 107  # sun_path of Linux, less its final zero
BACKLOG = 4096

# No such path yet; bound and not yet listening; the queue of the listener is full.
WORTH_A_RETRY = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN)

# A path that refuses for longer is what a dead process left: from bind to listen takes no time.
REFUSED_SECONDS = 2.0


@contextlib.contextmanager
def address(path: str) -> Iterator[str]:
    """A name for `path` that fits into a socket address, however long the path is."""
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield path
        return
    directory, name = os.path.split(path)
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def listen(path: str) -> socket.socket:
    """Bind a socket to a path that does not exist yet, and listen.

    Raises:
        RendezvousError: the path cannot be bound.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address(path) as name:
            sock.bind(name)
        os.chmod(path, 0o600)  # noqa: PTH101 - the path is text on the whole way from the launcher
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise RendezvousError(
            f"rank 0 cannot listen at {path}: {error.strerror}. Give each job a directory of its"
            " own"
        ) from error
    return sock


def connect(path: str, deadline: Deadline) -> socket.socket:
    """Connect to the socket at `path`, and wait for it to appear.

    Raises:
        TimeoutError: nobody listened there before the deadline.
        RendezvousError: whoever listened there is gone, or the path can never be connected to.
    """
    backoff = Backoff()
    patience = Deadline(REFUSED_SECONDS)
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(max(deadline.remaining, 0.001))
        try:
            with address(path) as name:
                sock.connect(name)
        except OSError as error:
            sock.close()
            if error.errno != errno.ECONNREFUSED:
                patience = Deadline(REFUSED_SECONDS)
            check_worth_a_retry(error, path, patience)
            if deadline.expired:
                raise TimeoutError from error
            backoff.sleep(deadline)
        except BaseException:
            sock.close()
            raise
        else:
            return sock


def check_worth_a_retry(error: OSError, path: str, patience: Deadline) -> None:
    """Raise `RendezvousError` where a later try to connect would fail, too."""
    if error.errno == errno.ECONNREFUSED and patience.expired:
        raise RendezvousError(
            f"nobody listens at {path} any more: rank 0 has ended. Its own output says why"
        ) from error
    if error.errno not in WORTH_A_RETRY and not isinstance(error, TimeoutError):
        raise RendezvousError(f"cannot connect to {path}: {error.strerror}") from error


def adopt(descriptor: int, path: str) -> socket.socket:
    """Take over the listening socket that a launcher bound to `path` and left open.

    Raises:
        RendezvousError: the descriptor is something else, as in a child process of rank 0 that
            inherited its variables but not its descriptors.
    """
    hint = (
        f"KADRIL_LISTEN_FD={descriptor} is not the listening socket of {path}."
        " Only the process that the launcher started is rank 0: a child of it that wants no part"
        " in the job has to be started without the KADRIL_* variables"
    )
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError as error:
        raise RendezvousError(hint) from error
    if not stat.S_ISSOCK(mode):
        raise RendezvousError(hint)
    sock = socket.socket(fileno=descriptor)
    name = sock.getsockname() if sock.family == socket.AF_UNIX else None
    is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not isinstance(name, str) or not is_listening or basename(name) != basename(path):
        sock.detach()  # it belongs to somebody else: leave it open
        raise RendezvousError(hint)
    os.set_inheritable(descriptor, False)
    return sock


def basename(path: str) -> str:
    """The last part: a path too long for a socket address was bound by a shorter name."""
    return os.path.basename(path)  # noqa: PTH119
