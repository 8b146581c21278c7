"""The caller's side of `kadril.run`."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, NoReturn

from kadril.config import IDENTITY_VARIABLES
from kadril.errors import ConfigError
from kadril.function_job import serialization
from kadril.launch.command import make_parser, to_options
from kadril.launch.options import LaunchError, RunOptions
from kadril.launch.supervision.summary import describe_status

__all__ = ["run"]

# The first word is sys.path of the caller: modules that it can import, its ranks can too. What they
# have beyond that, such as the directory of --compat, comes first as it was meant to.
BOOTSTRAP = """\
import json, sys
del sys.path[: sys.path[:1] == [""]]
given = json.loads(sys.argv.pop(1))
sys.path[:] = [entry for entry in sys.path if entry not in given] + given
from kadril.function_job.{module} import main
sys.exit(main())
"""

# Keywords of horovod.run whose flags have other names.
ALIASES = {
    "use_gloo": "gloo",
    "use_mpi": "mpi",
    "use_jsrun": "jsrun",
    "slots": "slots_per_host",
    "cooldown_range": "blacklist_cooldown_range",
    "min_num_proc": "min_np",
    "max_num_proc": "max_np",
}

# Flags that make no sense here, or are given otherwise.
NOT_KEYWORDS = {"help", "version", "check_build", "stdin", "num_proc", "num_ranks", "command"}
NOT_KEYWORDS |= {"dry_run"}


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    num_proc: int | None = None,
    env: Mapping[str, str] | None = None,
    executable: str | None = None,
    **options: Any,
) -> list[Any]:
    """Call a function on many ranks, and return what it returned, by rank.

    The function calls `kadril.init()` or `hvd.init()` itself, as a script would. Functions of a
    notebook, a REPL or the script itself need cloudpickle: `pip install 'kadril[notebook]'`. What
    the ranks print goes to this process's stdout and stderr.

    Args:
        func: what to call.
        args: its positional arguments, the same on all ranks.
        kwargs: its keyword arguments, likewise.
        np: how many ranks; 1 if it is not said.
        num_proc: another name of `np`.
        env: variables for the ranks, besides those of this process.
        executable: the Python of the ranks; this one if it is not said.
        options: flags of `kadril run` by their names, with underscores: `transport="shm"`,
            `bind=True`, `hosts="a:2,b:2"`, `output_filename="logs"`; and the keywords of
            `horovod.run`. None leaves a flag out.

    Raises:
        LaunchError: the function raised on a rank (the message has the traceback of the rank that
            failed first), a rank died or left without a result, or the ranks could not be started.
        ConfigError: an option makes no sense, or is refused.
        TypeError: there is no such option.
        KeyboardInterrupt: the job was interrupted.
    """
    if not callable(func):
        raise TypeError(f"kadril.run takes a function, got {func!r}")
    num_ranks = agree(np, num_proc)
    words = to_words(options)
    check_environment(env or {})
    worker = [executable or sys.executable, "-c", BOOTSTRAP.format(module="worker"), search_path()]
    # Bad options are found before anything is started.
    asked_for = parse_or_raise(["-np", str(num_ranks), *words, "--", *worker])
    if asked_for.elastic is not None:
        raise ConfigError(
            "kadril.run returns one result of each rank, so their number is fixed: --min-np,"
            " --max-np and what belongs to them cannot be used here. Start a script by `kadril"
            " run`"
        )
    call = serialization.Call(func, tuple(args), dict(kwargs or {}))
    name = getattr(func, "__qualname__", repr(func))
    data = serialization.pack(call, f"the function {name} with its arguments")
    head, packed = drive([str(num_ranks), *words, "--", *worker], data, env or {}, asked_for)
    return to_results(head, packed)


class RaisingParser(argparse.ArgumentParser):
    """A parser that raises where the command line would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with an option."""
        raise ConfigError(f"kadril.run: {message}")


def parse_or_raise(words: Sequence[str]) -> RunOptions:
    """Check words as the driver will read them."""
    return to_options(make_parser(RaisingParser).parse_args(words))


def agree(np: int | None, num_proc: int | None) -> int:
    """Return the number of ranks, by either of its names."""
    if np is not None and num_proc is not None and np != num_proc:
        raise ConfigError(f"np={np} and num_proc={num_proc} are two names of one thing; give one")
    return np if np is not None else num_proc if num_proc is not None else 1


def check_environment(variables: Mapping[str, str]) -> None:
    """Refuse variables that the launcher sets for each rank."""
    taken = sorted(IDENTITY_VARIABLES.intersection(variables))
    if taken:
        raise ConfigError(f"{taken[0]} is set by the launcher for each rank; leave it out of env")


def search_path() -> str:
    """Return sys.path as a word on a command line."""
    return json.dumps([os.fspath(entry) for entry in sys.path])


def to_words(options: Mapping[str, Any]) -> list[str]:
    """Return keywords as flags of `kadril run`.

    Raises:
        TypeError: there is no flag of such a name.
    """
    flags = {
        name[2:].replace("-", "_"): action
        for action in make_parser()._actions
        for name in action.option_strings
        if name.startswith("--")
    }
    known = flags.keys() - NOT_KEYWORDS
    words: list[str] = []
    for keyword, value in options.items():
        name = ALIASES.get(keyword, keyword)
        if name not in known:
            nearest = difflib.get_close_matches(keyword, [*known, *ALIASES], n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise TypeError(f"kadril.run has no option {keyword!r}{hint}")
        if flags[name].nargs == 0:
            words += to_switch(name, value, has_opposite=f"no_{name}" in known)
        elif value is not None:
            words += to_flag(name, value)
    return words


def to_switch(name: str, value: Any, *, has_opposite: bool) -> list[str]:
    """Return a keyword that is on or off as a flag."""
    flag = name.replace("_", "-")
    if value is None or (not value and not has_opposite):
        return []
    return [f"--{flag}" if value else f"--no-{flag}"]


def to_flag(name: str, value: Any) -> list[str]:
    """Return a keyword with a value as a flag; with "=", since a value may begin with a dash."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, tuple | list):
        return [flag, *map(str, value)]
    return [f"{flag}={value}"]


def drive(
    words: list[str], call: bytes, env: Mapping[str, str], options: RunOptions
) -> tuple[dict[str, Any], list[bytes | None]]:
    """Let a driver run the job; return what it reports, and the packed results."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as pipe:
        bootstrap = BOOTSTRAP.format(module="driver")
        me = str(os.getpid())
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", bootstrap, search_path(), me, str(write_end), *words],
                stdin=subprocess.PIPE,
                env={**os.environ, **env},
                pass_fds=(write_end,),
                # Ctrl-C is passed on below: the terminal must not send it a second time.
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"cannot start {sys.executable!r}: {error}") from error
        finally:
            os.close(write_end)
        with process:
            try:
                return exchange(process, call, pipe)
            except BaseException:
                end(process, options.grace)
                raise


def exchange(
    process: subprocess.Popen[bytes], call: bytes, pipe: BinaryIO
) -> tuple[dict[str, Any], list[bytes | None]]:
    """Send the call to the driver and read what it reports."""
    with suppress(BrokenPipeError):  # it is gone, and has said why on stderr
        send(process, call)
    line = pipe.readline()
    if not line:
        code = process.wait()
        raise LaunchError(
            f"the launcher ended early, {describe_status(code)}; it may have said why on stderr"
        )
    head: dict[str, Any] = json.loads(line)
    packed = [None if length < 0 else pipe.read(length) for length in head["lengths"]]
    process.wait()
    return head, packed


def send(process: subprocess.Popen[bytes], call: bytes) -> None:
    """Write the call to the driver's stdin, and close that."""
    if process.stdin is not None:
        with process.stdin:
            process.stdin.write(call)


def end(process: subprocess.Popen[bytes], grace: float) -> None:
    """Pass an interrupt on and let the driver end its ranks; a second one ends them at once."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(grace + 5.0)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.send_signal(signal.SIGINT)  # which the launcher takes as: no more waiting
        process.wait()


def to_results(head: Mapping[str, Any], packed: Sequence[bytes | None]) -> list[Any]:
    """Return the results by rank, or raise the error that the driver reports."""
    if head.get("interrupted_by"):
        if head["interrupted_by"] == signal.SIGINT:
            raise KeyboardInterrupt
        raise LaunchError("the job was ended by SIGTERM", exit_code=head["exit_code"])
    if "rank" in head:
        raise LaunchError(
            f"rank {head['rank']} of {len(packed)} failed first: {head['status']}. It said:\n\n"
            f"{head['tail'].rstrip() or '(nothing)'}",
            exit_code=head["exit_code"],
        )
    if "bad_option" in head:
        raise ConfigError(head["bad_option"])
    if "not_started" in head:
        raise LaunchError(head["not_started"], head["exit_code"])
    for rank, data in enumerate(packed):
        if data is None:
            raise LaunchError(
                f"rank {rank} ended well and left no result: the function must return, and not"
                " call sys.exit() or os._exit()"
            )
    return [serialization.load(data) for data in packed if data is not None]
