"""The fork server as the launcher sees it: a process that has loaded what the program loads.

Starting a rank takes as long as its imports: seconds, with torch. A fork of a process that has
made them takes milliseconds, and shares their memory.

    launcher ==== pair of sockets ==== fork server ---- fork ----> (middle) ---- fork ----> rank
       |                                                              X                      |
       `-- parent, once the middle one has ended; a pair of sockets until its program begins --'

The rank becomes a child of the launcher as if the launcher had started it, because the launcher is
the one that takes in orphans at that time (PR_SET_CHILD_SUBREAPER). So ranks outlive the fork
server, and nothing else has to know how they were started.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from kadril.launch.forking.visible_words import ROOM_VARIABLE
from kadril.launch.local.parent_death import die_with_parent
from kadril.launch.options import LaunchError

__all__ = ["ForkClient", "can_fork"]

PR_SET_CHILD_SUBREAPER = 36
FORK_TIMEOUT = 10.0  # seconds; a fork takes milliseconds
MAX_ANSWER = 1 << 16
ROOM = 4096  # bytes

# Options that mean the same whatever the interpreter runs; the last two with a word of their own.
FLAGS = re.compile(r"-[BEObdqsuv]+|-[WX].*")


class ForkClient:
    """Starts the fork server, and has ranks forked from it.

    Attributes:
        problem: why no rank can be forked; empty where one can, or before that is known.
        is_ready: whether it has loaded everything.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], modules: Collection[str]
    ) -> None:
        """Start the process; it is ready later.

        Args:
            command: of a rank; `can_fork` says of which there can be a fork server.
            environment: the variables of a rank; few of them may differ from rank to rank.
            modules: what it loads. What it cannot load it leaves out.

        Raises:
            LaunchError: the process cannot be started.
        """
        self.is_ready = False
        self.problem = ""
        # A forked rank has more variables than this one, and shows them where these lie.
        self._environment = {**environment, ROOM_VARIABLE: "." * ROOM}
        self._control, theirs = connected_sockets()
        with theirs:
            flags, words = split_command(command)
            own = ["-m", "kadril.launch.forking.fork_server"]
            own += [str(theirs.fileno()), str(os.getpid()), ",".join(modules)]
            try:
                self._process = subprocess.Popen(
                    [command[0], *flags, *own, *words],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - one thread here
                )
            except OSError as error:
                self._control.close()
                raise LaunchError(f"cannot start the fork server: {error.strerror}") from error
        self.pid = self._process.pid

    def fileno(self) -> int:
        """Descriptor that is readable when it has become ready, or has ended."""
        return self._control.fileno()

    def hear(self) -> None:
        """Take in that it is ready, or why it is not; call it when the descriptor is readable."""
        if not self.problem:  # one that was given up stays so
            try:
                self.problem = str(receive(self._control)["problem"])
            except ConnectionError:
                self.problem = "the fork server has ended"
        self.is_ready = not self.problem

    def fork(
        self,
        variables: Mapping[str, str],
        *,
        stdout: int,
        stderr: int,
        inherit: Collection[int],
        processors: Collection[int],
    ) -> int:
        """Have a rank forked, and return its process id; it is a child of this process.

        Args:
            variables: all variables of the rank.
            stdout: descriptor that becomes its output.
            stderr: descriptor that becomes its error output.
            inherit: descriptors that it gets under the same numbers.
            processors: those to bind it to; none leaves it free.

        Raises:
            LaunchError: it cannot be forked; no rank was.
        """
        given = self._environment
        request = {
            "set": {name: text for name, text in variables.items() if given.get(name) != text},
            "unset": [name for name in given if name not in variables],
            "descriptors": [1, 2, *inherit],
            "processors": sorted(processors),
        }
        line, theirs = connected_sockets()
        with line, theirs, taking_in_orphans():
            descriptors = [theirs.fileno(), stdout, stderr, *inherit]
            try:
                socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
            except OSError:
                self._give_up("the fork server has ended")
            theirs.close()  # an end of the rank is heard then
            return self._begin_rank(line, time.monotonic() + FORK_TIMEOUT)

    def _begin_rank(self, line: socket.socket, deadline: float) -> int:
        """Wait until a rank is as one that was started, and let its program begin.

        Raises:
            LaunchError: it is not; it was ended.
        """
        pid = 0
        try:
            answer = receive(line, deadline)
            if "pid" in answer:
                pid = int(answer["pid"])
                answer = receive(line, deadline)
        except TimeoutError:
            end_child(pid)
            self._give_up(
                f"the fork server does not answer: nothing came within {FORK_TIMEOUT:g} s"
            )
        except ConnectionError:
            end_child(pid)
            if not pid:
                self._give_up("the fork server has ended")
            raise LaunchError("the forked rank ended before its program began") from None
        if answer["problem"]:
            end_child(pid)
            raise LaunchError(f"the fork server cannot fork: {answer['problem']}")
        with contextlib.suppress(BrokenPipeError):  # it was killed, as may happen at any time
            line.send(b"g")
        return pid

    def _give_up(self, problem: str) -> NoReturn:
        """End the fork server: an answer that comes late must not find anybody."""
        self.is_ready, self.problem = False, problem
        self._process.kill()
        self._process.wait()
        raise LaunchError(problem)

    def close(self) -> None:
        """End the process. Ranks that were forked live on. May be called again."""
        self.is_ready = False
        self._control.close()
        self._process.kill()
        self._process.wait()


def connected_sockets() -> tuple[socket.socket, socket.socket]:
    """Return two ends of a connection that keeps messages apart.

    Raises:
        LaunchError: there are no descriptors for them.
    """
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise LaunchError(f"no connection to the fork server: {error.strerror}") from error


def receive(line: socket.socket, deadline: float | None = None) -> dict[str, Any]:
    """Return the next message.

    Raises:
        TimeoutError: none came in time.
        ConnectionError: the other side has ended.
    """
    if deadline is not None:
        left = max(0.0, deadline - time.monotonic())
        if not select.select([line], [], [], left)[0]:
            raise TimeoutError
    data = line.recv(MAX_ANSWER)
    if not data:
        raise ConnectionResetError
    answer: dict[str, Any] = json.loads(data)
    return answer


def end_child(pid: int) -> None:
    """Kill a rank whose program has not begun, where there is one, and take its end."""
    if pid:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@contextmanager
def taking_in_orphans() -> Iterator[None]:
    """Become the parent of processes below this one whose parent ends meanwhile.

    Raises:
        LaunchError: that is not allowed here.
    """
    try:
        set_subreaper(1)
    except OSError as error:
        raise LaunchError(f"ranks cannot be forked: {error}") from error
    try:
        yield
    finally:
        set_subreaper(0)


def set_subreaper(value: int) -> None:
    """Say whether this process takes in orphans."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def can_fork(command: Sequence[str]) -> bool:
    """Whether this Python runs a file or a module by this command, so that it can be forked."""
    return command[0] == sys.executable and bool(split_command(command)[1])


def split_command(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return options of the interpreter, and its program with arguments; none for other forms."""
    place = 1
    while place < len(command) and FLAGS.fullmatch(command[place]):
        place += 1 + (command[place] in ("-W", "-X"))
    words = list(command[place:])
    is_program = bool(words) and (words[0].endswith(".py") or (words[0] == "-m" and len(words) > 1))
    return list(command[1:place]), words if is_program else []
