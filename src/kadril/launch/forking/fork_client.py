"""The fork server as the launcher sees it: a process that has loaded what the program loads.

Starting a rank takes as long as its imports: seconds, with torch. A fork of a process that has
made them takes milliseconds, and shares their memory.

    launcher ==== pair of sockets ==== fork server ---- fork ----> (middle) ---- fork ----> rank
       |                                                              X                      |
       `------------------------ parent, once the middle one has ended ----------------------'

The rank becomes a child of the launcher as if the launcher had started it, because the launcher is
the one that takes in orphans at that time (PR_SET_CHILD_SUBREAPER). So ranks outlive the fork
server, and nothing else has to know how they were started.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import socket
import subprocess
import sys
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
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
        try:
            self.problem = str(self._receive()["problem"])
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
            stderr: likewise.
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
        descriptors = [stdout, stderr, *inherit]
        try:
            with taking_in_orphans():
                socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
                answer = self._receive(FORK_TIMEOUT)
        except ConnectionError:
            self._give_up("the fork server has ended")
        except (OSError, LaunchError) as error:
            self._give_up(f"the fork server does not answer: {error}")
        if answer["problem"]:
            raise LaunchError(f"the fork server cannot fork: {answer['problem']}")
        return int(answer["pid"])

    def _give_up(self, problem: str) -> NoReturn:
        self.is_ready, self.problem = False, problem
        raise LaunchError(problem)

    def _receive(self, timeout: float = 0.0) -> dict[str, Any]:
        if not select.select([self._control], [], [], timeout)[0]:
            raise LaunchError(f"nothing came within {timeout:g} s")
        data = self._control.recv(MAX_ANSWER)
        if not data:
            raise ConnectionResetError
        answer: dict[str, Any] = json.loads(data)
        return answer

    def close(self) -> None:
        """End the process. Ranks that were forked live on. May be called again."""
        self.is_ready = False
        self._control.close()
        self._process.kill()
        self._process.wait()


@contextmanager
def taking_in_orphans() -> Iterator[None]:
    """Become the parent of processes below this one whose parent ends meanwhile."""
    set_subreaper(1)
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
