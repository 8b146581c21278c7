"""Environment that a rank finds when it starts."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from launch_playground import Playground

from kadril.launch.local.job import runtime_directory
from kadril.launch.options import LaunchError

DEFAULT = Path("/tmp")  # noqa: S108

REPORT = """
    import json, os, stat, sys
    from pathlib import Path
    secret = Path(os.environ["KADRIL_SECRET_FILE"])
    fd = os.environ.get("KADRIL_LISTEN_FD")
    report = {
        "environ": dict(os.environ),
        "directory_mode": stat.S_IMODE(secret.parent.stat().st_mode),
        "secret_mode": stat.S_IMODE(secret.stat().st_mode),
        "secret": secret.read_bytes().hex(),
        "socket": Path(os.environ["KADRIL_RENDEZVOUS"].removeprefix("unix:")).is_socket(),
        "listen_fd_is_socket": fd is not None and stat.S_ISSOCK(os.fstat(int(fd)).st_mode),
        "fds": sorted(int(name) for name in os.listdir("/proc/self/fd")),
        "affinity": sorted(os.sched_getaffinity(0)),
        "group": os.getpgrp(), "session": os.getsid(0), "pid": os.getpid(),
        "executable": sys.executable,
        "launcher_cmdline": Path(f"/proc/{os.getppid()}/cmdline").read_bytes().hex(),
        "launcher_environ": Path(f"/proc/{os.getppid()}/environ").read_bytes().hex(),
        "stdin": sys.stdin.read(),
    }
    Path(f"report.{os.environ['KADRIL_RANK']}").write_text(json.dumps(report))
"""


def reports(playground: Playground, *words: str, **env: str) -> list[dict[str, Any]]:
    num_ranks = int(words[words.index("-np") + 1])
    result = playground.run(*words, playground.write("report.py", REPORT), env=env)
    assert result.code == 0, result.err
    return [
        json.loads((playground.directory / f"report.{r}").read_text()) for r in range(num_ranks)
    ]


def test_identity_and_rendezvous(playground: Playground) -> None:
    # The variables of an outer job must not reach the ranks of an inner one.
    outer = {"KADRIL_RANK": "9", "KADRIL_LISTEN_FD": "77"}
    found = reports(playground, "-np", "3", **outer)
    for rank, report in enumerate(found):
        environ = report["environ"]
        directory = playground.runtime_directory / f"kadril-{environ['KADRIL_JOB']}"
        assert environ["KADRIL_RANK"] == environ["KADRIL_LOCAL_RANK"] == str(rank)
        assert environ["KADRIL_SIZE"] == environ["KADRIL_LOCAL_SIZE"] == "3"
        assert environ["KADRIL_GENERATION"] == "0"
        assert environ["KADRIL_RENDEZVOUS"] == f"unix:{directory}/rendezvous.sock"
        assert environ["KADRIL_SECRET_FILE"] == f"{directory}/secret"
        assert ("KADRIL_LISTEN_FD" in environ) == report["listen_fd_is_socket"] == (rank == 0)
        assert report["socket"]
        assert report["executable"] == sys.executable
        assert report["pid"] == report["group"] == report["session"]
    assert len({report["environ"]["KADRIL_JOB"] for report in found}) == 1


def test_variables_of_users_reach_ranks(playground: Playground) -> None:
    """The launcher took this one for its own: it kept it from ranks, and refused it with -x."""
    (inherited,) = reports(playground, "-np", "1", KADRIL_TENSORFLOW_OPS="python")
    (given,) = reports(playground, "-np", "1", "-x", "KADRIL_TENSORFLOW_OPS=native")
    assert inherited["environ"]["KADRIL_TENSORFLOW_OPS"] == "python"
    assert given["environ"]["KADRIL_TENSORFLOW_OPS"] == "native"


def test_secret_is_private_and_told_to_nobody(playground: Playground) -> None:
    found = reports(playground, "-np", "2")
    secrets = {report["secret"] for report in found}
    assert len(secrets) == 1
    secret = bytes.fromhex(secrets.pop())
    assert len(secret) == 32
    assert secret != bytes(32)
    for report in found:
        assert report["directory_mode"] == 0o700
        assert report["secret_mode"] == 0o600
        public = json.dumps(report["environ"]).encode()
        public += bytes.fromhex(report["launcher_cmdline"]) + bytes.fromhex(
            report["launcher_environ"]
        )
        assert secret not in public
        assert secret.hex().encode() not in public


def test_ranks_inherit_nothing_but_what_they_need(playground: Playground) -> None:
    first, second = reports(playground, "-np", "2")
    listing = 3  # the descriptor by which the listing itself was read
    assert len(second["fds"]) == 3 + 1
    assert set(second["fds"]) >= {0, 1, 2}
    assert set(first["fds"]) - {0, 1, 2, listing} == {int(first["environ"]["KADRIL_LISTEN_FD"])} - {
        listing
    }


def test_peers_can_connect_before_rank_0_accepts(playground: Playground) -> None:
    # The listener is bound before any rank starts: rank 1 need not wait for rank 0 to import torch.
    program = """
        import os, socket, sys
        from pathlib import Path
        path = os.environ["KADRIL_RENDEZVOUS"].removeprefix("unix:")
        if os.environ["KADRIL_RANK"] == "0":
            while not Path("connected").exists():
                pass
            listener = socket.socket(fileno=int(os.environ["KADRIL_LISTEN_FD"]))
            print(listener.accept()[0].recv(100).decode())
        else:
            peer = socket.socket(socket.AF_UNIX)
            peer.connect(path)
            peer.sendall(b"from rank 1")
            Path("connected").touch()
    """
    result = playground.run("-np", "2", playground.write("meet.py", program))
    assert (result.code, result.out) == (0, b"[0] from rank 1\n")


def test_socket_is_refused_when_rank_0_is_gone(playground: Playground) -> None:
    # A listener kept open by the launcher would let ranks knock for ever at an empty house.
    program = """
        import os, socket, time
        path = os.environ["KADRIL_RENDEZVOUS"].removeprefix("unix:")
        if os.environ["KADRIL_RANK"] == "1":
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                try:
                    socket.socket(socket.AF_UNIX).connect(path)
                except ConnectionRefusedError:
                    print("refused")
                    break
    """
    assert playground.run("-np", "2", playground.write("knock.py", program)).out == b"[1] refused\n"


def test_defaults_that_suit_many_ranks(playground: Playground) -> None:
    num_cores = len(os.sched_getaffinity(0))
    result = playground.run("-np", "2", "-v", "true")
    note = f"OMP_NUM_THREADS={max(1, num_cores // 2)} ({num_cores} cores, 2 ranks)"
    assert result.err.decode().count(note) == 1
    (report,) = reports(playground, "-np", "1")
    assert report["environ"]["OMP_NUM_THREADS"] == str(num_cores)
    assert report["environ"]["PYTHONUNBUFFERED"] == "1"
    chosen = reports(playground, "-np", "1", OMP_NUM_THREADS="5", PYTHONUNBUFFERED="")[0]["environ"]
    assert (chosen["OMP_NUM_THREADS"], chosen["PYTHONUNBUFFERED"]) == ("5", "")


def test_extra_variables_and_options_of_kadril(playground: Playground) -> None:
    exports = ("-x", "COLOUR=red", "-x", "SHAPE")
    options = ("--transport", "c10d:gloo", "--patience", "7.5")
    (report,) = reports(playground, "-np", "1", *exports, *options, SHAPE="round")
    environ = report["environ"]
    assert (environ["COLOUR"], environ["SHAPE"]) == ("red", "round")
    assert (environ["KADRIL_TRANSPORT"], environ["KADRIL_PATIENCE"]) == ("c10d:gloo", "7.5")


def test_misspelt_option_is_told_once(playground: Playground) -> None:
    result = playground.run("-np", "3", "true", env={"KADRIL_PATIENSE": "3"})
    assert result.code == 0
    assert result.report == [
        "KADRIL_PATIENSE is not an option of kadril; did you mean KADRIL_PATIENCE?"
    ]


def test_bind_gives_each_rank_one_core_in_turn(playground: Playground) -> None:
    cores = sorted(os.sched_getaffinity(0))
    bound = [report["affinity"] for report in reports(playground, "-np", "3", "--bind")]
    assert bound == [[cores[rank % len(cores)]] for rank in range(3)]
    assert reports(playground, "-np", "1")[0]["affinity"] == cores


def test_stdin_is_empty_unless_asked_for(playground: Playground) -> None:
    assert [report["stdin"] for report in reports(playground, "-np", "2")] == ["", ""]
    read_end, write_end = os.pipe()
    os.write(write_end, b"for rank 0 only")
    os.close(write_end)
    script = playground.write("report.py", REPORT)
    assert playground.start("-np", "2", "--stdin", script, stdin=read_end).finish().code == 0
    os.close(read_end)
    found = [json.loads((playground.directory / f"report.{rank}").read_text()) for rank in (0, 1)]
    assert [report["stdin"] for report in found] == ["for rank 0 only", ""]


def test_runtime_directory_is_the_first_that_will_do(
    playground: Playground, tmp_path: Path
) -> None:
    owned = playground.runtime_directory
    assert runtime_directory({"XDG_RUNTIME_DIR": str(owned), "TMPDIR": "/no/where"}) == owned
    assert runtime_directory({"XDG_RUNTIME_DIR": "/no/where", "TMPDIR": str(owned)}) == owned
    assert runtime_directory({"TMPDIR": "relative"}) == DEFAULT
    too_long = tmp_path / ("x" * 100)
    too_long.mkdir()
    assert runtime_directory({"TMPDIR": str(too_long)}) == DEFAULT


def test_longest_runtime_directory_still_binds() -> None:
    # The limit of a socket's address is off by one in many programs.
    inner = Path("kadril-0123456789abcdef", "rendezvous.sock")
    with tempfile.TemporaryDirectory(dir=DEFAULT) as made:
        longest = Path(made, "y" * (107 - len(made) - len(str(inner)) - 2))
        longer = Path(made, longest.name + "y")
        for directory in (longest, longer):
            (directory / inner).parent.mkdir(parents=True)
        assert runtime_directory({"TMPDIR": str(longest)}) == longest
        assert runtime_directory({"TMPDIR": str(longer)}) == DEFAULT
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(longest / inner))
        with socket.socket(socket.AF_UNIX) as listener, pytest.raises(OSError, match="too long"):
            listener.bind(str(longer / inner))


def test_no_runtime_directory_names_every_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "kadril.launch.local.job.why_not", lambda directory, private: "full of frogs"
    )
    with pytest.raises(LaunchError, match=r"/here \(TMPDIR\): full of frogs.*/tmp \(the default\)"):
        runtime_directory({"TMPDIR": "/here"})
