"""Agents and what goes wrong with them, without root: a program in place of ssh runs them here."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from launch_playground import Playground, Result, eventually

# The host that ssh would be asked for; it is in no list of hosts.
ELSEWHERE = "elsewhere.invalid"


def fake_ssh(playground: Playground, last_line: str = 'exec sh -c "$last"') -> dict[str, str]:
    """Return the variables by which this shell line is run in place of ssh."""
    script = playground.write("ssh", f"#!/bin/sh\nfor last; do :; done\n{last_line}\n")
    Path(script).chmod(0o700)
    return {"KADRIL_SSH": script}


def run(playground: Playground, last_line: str, *words: str) -> Result:
    env = fake_ssh(playground, last_line)
    return playground.run("-H", f"{ELSEWHERE}:2", *(words or ("touch", "started")), env=env)


def test_a_greeting_of_the_shell_is_passed_over(playground: Playground) -> None:
    result = run(playground, 'echo "Welcome!"; exec sh -c "$last"', "sh", "-c", "echo $KADRIL_RANK")
    assert (result.code, result.report) == (0, [])
    assert sorted(result.out.splitlines()) == [b"[0] 0", b"[1] 1"]


@pytest.mark.parametrize(
    ("last_line", "words", "hint"),
    [
        (
            "echo 'ssh: connect to host x port 22: Connection refused' >&2; exit 255",
            "ssh: connect to host x port 22: Connection refused",
            "does sshd run there, on this port? try --ssh-port N",
        ),
        (
            "echo 'me@x: Permission denied (publickey).' >&2; exit 255",
            "me@x: Permission denied (publickey).",
            f"try: ssh-copy-id {ELSEWHERE}",
        ),
        ("exit 255", "ssh ended with exit code 255 and no word", "does this work by hand: "),
        ("exec /no/python", "/no/python", f"must be at the same path there: {sys.executable}"),
        (
            f"exec {sys.executable} -I -S -m kadril.launch.remote.agent",
            "No module named 'kadril'",
            "install kadril there as here",
        ),
    ],
)
def test_a_host_that_fails_is_told_with_its_own_words(
    playground: Playground, last_line: str, words: str, hint: str
) -> None:
    result = run(playground, last_line)
    assert result.code == 1
    assert words in result.err.decode()
    assert hint in result.err.decode()
    assert not (playground.directory / "started").exists()


def test_another_version_of_kadril(playground: Playground) -> None:
    program = "import kadril; kadril.__version__ = '0.0.7'; from kadril.launch.remote import agent"
    result = run(playground, f'exec {sys.executable} -c "{program}; agent.main()"')
    assert result.code == 1
    assert f"host {ELSEWHERE} has kadril 0.0.7, and this one " in result.err.decode()
    assert not (playground.directory / "started").exists()


def test_two_names_of_one_host(playground: Playground) -> None:
    hosts = f"{ELSEWHERE}:1,other.invalid:1"
    result = playground.run("-H", hosts, "touch", "started", env=fake_ssh(playground))
    assert result.code == 1
    assert f"{ELSEWHERE} and other.invalid are one host" in result.err.decode()
    assert not (playground.directory / "started").exists()


def test_no_ssh_at_all(playground: Playground) -> None:
    result = playground.run("-H", f"{ELSEWHERE}:1", "true", env={"KADRIL_SSH": "/no/ssh"})
    assert result.code == 127
    assert b"cannot start '/no/ssh', by which hosts are reached" in result.err


def test_a_host_that_does_not_answer(playground: Playground) -> None:
    result = run(playground, "exec sleep 1000", "--start-timeout", "0.2", "true")
    assert result.code == 1
    assert f"{ELSEWHERE}: no answer in 0.4 s; try --start-timeout" in result.err.decode()


def test_ctrl_c_while_hosts_are_awaited(playground: Playground) -> None:
    env = fake_ssh(playground, "exec sleep 1000")
    launched = playground.start("-v", "-H", f"{ELSEWHERE}:1", "true", env=env)
    launched.await_output(rb"host elsewhere.invalid: ")
    launched.send(signal.SIGINT)
    result = launched.finish()
    assert result.code == 130
    assert b"interrupted by SIGINT before the ranks were started" in result.err


def test_a_rank_that_cannot_be_started_after_all(playground: Playground) -> None:
    # What `check_program` cannot see: the first line of a script names no program.
    script = playground.write("program", "#!/no/such/interpreter\n")
    Path(script).chmod(0o700)
    result = run(playground, 'exec sh -c "$last"', script)
    assert result.code != 0
    assert "it could not be started: cannot start" in result.err.decode()


TALKER = """
import os, signal, sys
from pathlib import Path
signal.signal(signal.SIGUSR1, lambda *_: Path("signalled").touch())
output = open(1, "wb")  # with a buffer: a signal cuts a bare write short
for number in range(64):
    output.write(b"x" * (1 << 18) + b"\\n")
    output.flush()
    Path("progress").write_text(str(number + 1))
"""


def test_ranks_of_another_host_wait_for_a_slow_reader(playground: Playground) -> None:
    # 16 MiB, of which the pipe, the launcher and the way to it hold a few; signals get through.
    script = playground.write("talker.py", TALKER)
    env = fake_ssh(playground)
    launched = playground.start("-H", f"{ELSEWHERE}:1", "--no-prefix", script, env=env)
    progress = playground.directory / "progress"
    assert eventually(progress.exists)
    assert not eventually(lambda: progress.read_text() == "64", timeout=0.5)
    launched.send(signal.SIGUSR1)
    assert eventually((playground.directory / "signalled").exists)
    result = launched.finish()
    assert result.code == 0
    assert result.out == (b"x" * (1 << 18) + b"\n") * 64


def test_dry_run_shows_commands_and_no_secret(playground: Playground) -> None:
    words = ("-H", f"localhost:1,{ELSEWHERE}:1", "--port", "5000", "--dry-run")
    result = playground.run(*words, "-x", "A=b c", "touch", "started")
    assert result.code == 0
    assert not (playground.directory / "started").exists()
    lines = result.out.decode().splitlines()
    assert any(line.startswith("ssh -o BatchMode=yes") and ELSEWHERE in line for line in lines)
    ranks = [line for line in lines if "KADRIL_RANK=" in line]
    assert len(ranks) == 2
    for rank, line in enumerate(ranks):
        assert f"KADRIL_RANK={rank} KADRIL_SIZE=2 KADRIL_LOCAL_RANK=0" in line
        assert "'A=b c'" in line
        assert ":5000 " in line
        assert line.endswith("touch started &")


@pytest.mark.long
def test_commands_of_a_dry_run_start_ranks_by_hand(playground: Playground) -> None:
    program = """
        import os
        import kadril
        kadril.init()
        os.write(1, f"{kadril.rank()} of {kadril.size()}, {kadril.local_size()} here\\n".encode())
        kadril.shutdown()
    """
    script = playground.write("who.py", program)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    result = playground.run("-np", "2", "--port", str(port), "--dry-run", script)
    done = subprocess.run(
        ["sh", "-c", result.out.decode() + "\nwait"],
        env={**playground.environment(), "HOME": str(playground.directory)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert sorted(done.stdout.splitlines()) == ["0 of 2, 2 here", "1 of 2, 2 here"], done.stderr
    assert (playground.directory / "kadril.secret").stat().st_mode & 0o777 == 0o600
