"""The command that starts the agent on a host, and what it means when ssh fails."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence

from kadril.launch.options import SshOptions

__all__ = ["agent_command", "describe_failure"]

# The first value that ssh gets for an option counts, so that the user's own come before these.
# BatchMode: nobody is there to type a password. The rest finds out about a connection that is dead.
DEFAULTS = ("BatchMode=yes", "ServerAliveInterval=10", "ServerAliveCountMax=6")

HINTS = (
    (r"Could not resolve", "is the name right? try: getent hosts {host}"),
    (
        r"Permission denied",
        "ssh must log in without a password; try: ssh-copy-id {host}, or --ssh-identity-file FILE",
    ),
    (r"[Hh]ost key verification failed", "log in by hand once to see its key: ssh {host}"),
    (r"Connection refused", "does sshd run there, on this port? try --ssh-port N"),
    (r"No route to host|timed out|unreachable", "is the host up and this network the right one?"),
    (
        r"No module named '?kadril|No module named 'kadril",
        "install kadril there as here, for the same Python: {python}",
    ),
    (r"not found|No such file", "this Python must be at the same path there: {python}"),
)


def agent_command(host: str, is_here: bool, options: SshOptions) -> list[str]:
    """Return the command that runs the agent of a host."""
    agent = [sys.executable, "-m", "kadril.launch.remote.agent"]
    if is_here:
        return agent
    if "PYTHONPATH" in os.environ:
        agent = ["env", f"PYTHONPATH={os.environ['PYTHONPATH']}", *agent]
    # ssh hands one line to a shell of the user's choice there.
    return [*ssh_command(host, options), f"exec {shlex.join(agent)}"]


def ssh_command(host: str, options: SshOptions) -> list[str]:
    """Return the ssh command line up to the host."""
    settings = [*DEFAULTS, f"ConnectTimeout={max(1, int(options.timeout))}"]
    ours = [word for setting in settings for word in ("-o", setting)]
    return [*options.program, *options.arguments, *ours, "-T", host]


def describe_failure(host: str, words: Sequence[str], exit_code: int, options: SshOptions) -> str:
    """Return why the agent of a host did not answer: the words of ssh, and what to try."""
    said = "; ".join(word.strip() for word in words if word.strip())
    reason = said or f"ssh ended with exit code {exit_code} and no word"
    for pattern, hint in HINTS:
        if re.search(pattern, said):
            return f"{reason}\n    {hint.format(host=host, python=sys.executable)}"
    by_hand = shlex.join([*options.program, *options.arguments, host, "true"])
    return f"{reason}\n    does this work by hand: {by_hand}"
