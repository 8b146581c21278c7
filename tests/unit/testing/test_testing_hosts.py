"""Several hosts on one machine: each is a host to the others, and nothing of them stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Iterator
from pathlib import Path

import pytest

from kadril.testing import HostNetwork, HostsUnavailable, hosts, no_leaks
from kadril.testing.namespaces import open_other
from kadril.testing.process import state_of

RATE = 100e6 / 8  # bytes per second
NUM_BYTES = 1 << 20

LISTEN = f"""if True:
    import socket
    with socket.create_server(("0.0.0.0", 5000)) as server:
        print("ready", flush=True)
        with server.accept()[0] as connection:
            left = {NUM_BYTES}
            while left:
                left -= len(connection.recv(1 << 20))
            connection.send(b"!")
"""

SEND = f"""if True:
    import socket, time
    with socket.create_connection(("host1", 5000)) as connection:
        start = time.monotonic()
        connection.sendall(bytes({NUM_BYTES}))
        connection.recv(1)
        print(time.monotonic() - start)
"""


@pytest.fixture(scope="module")
def net() -> Iterator[HostNetwork]:
    with hosts(2, ranks=[3, 2], rate="100mbit") as network:
        yield network


def reaches(net: HostNetwork, source: int, target: int) -> bool:
    """Whether a datagram gets from one host to another; nothing answers it."""
    listen = """if True:
        import socket, sys
        listener = socket.socket(type=socket.SOCK_DGRAM)
        listener.bind(("0.0.0.0", 5001))
        listener.settimeout(float(sys.argv[1]))
        print("ready", flush=True)
        try:
            print(listener.recv(10).decode())
        except TimeoutError:
            print("nothing")
    """
    send = """if True:
        import socket, sys
        sender = socket.socket(type=socket.SOCK_DGRAM)
        sender.sendto(b"here", (sys.argv[1], 5001))
    """
    host = net.hosts[target]
    command = [sys.executable, "-Sc", listen, "0.3"]
    with host.popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        net.hosts[source].run([sys.executable, "-Sc", send, host.address], check=False)
        return process.stdout.readline() == "here\n"


def test_each_host_is_one_of_its_own(net: HostNetwork) -> None:
    script = "hostname; ls /tmp; ls /sys/class/net; echo $NAME; pwd; readlink /proc/self/ns/net"
    told = []
    for host in net.hosts:
        host.run(["touch", f"/tmp/of-{host.name}"])  # noqa: S108
        environment = {**os.environ, "NAME": f"value of {host.name}"}
        told.append(host.run(["sh", "-c", script], env=environment, cwd="/usr").stdout.split("\n"))
        assert not Path(f"/tmp/of-{host.name}").exists()  # noqa: S108
    for host, (name, *files) in zip(net.hosts, told, strict=True):
        assert name == host.name
        assert [file for file in files if file.startswith("of-")] == [f"of-{host.name}"]
        assert "net0" in files
        assert f"value of {host.name}" in files
        assert "/usr" in files
    networks = {lines[-2] for lines in told} | {str(Path("/proc/self/ns/net").readlink())}
    assert len(networks) == 3
    assert net.slots == "host0:3,host1:2"


def test_ssh_goes_from_host_to_host(net: HostNetwork) -> None:
    for name in ("host1", net.hosts[1].address):
        command = ["ssh", "-F", net.ssh_config, name, "hostname; exit 3"]
        done = net.hosts[0].run(command, check=False)
        assert (done.stdout, done.returncode) == ("host1\n", 3), done.stderr


def test_a_link_has_its_rate_and_counts_its_bytes(net: HostNetwork) -> None:
    before = [host.uplink() for host in net.hosts]
    with net.hosts[1].popen([sys.executable, "-Sc", LISTEN], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        seconds = float(net.hosts[0].run([sys.executable, "-Sc", SEND]).stdout)
    counted = [host.uplink().since(old) for host, old in zip(net.hosts, before, strict=True)]
    # Headers, at most 66 bytes with each 1448 of ours.
    assert NUM_BYTES <= counted[0].sent <= NUM_BYTES * 1.07
    assert counted[0].sent <= counted[1].received <= counted[0].sent + 2000
    assert counted[1].sent < NUM_BYTES * 0.03
    burst = 2 * 128 * 1024  # what both ends let pass at once
    assert seconds >= (NUM_BYTES - burst) / RATE


def test_faults_of_the_network(net: HostNetwork) -> None:
    assert reaches(net, 0, 1)
    net.link_down(1)
    assert not reaches(net, 0, 1)
    net.link_up(1)
    net.hosts[0].run(["ip", "neigh", "flush", "dev", "net0"])
    assert reaches(net, 0, 1)
    net.cut(0, 1)
    assert not reaches(net, 0, 1)
    assert reaches(net, 1, 0)
    net.mend()
    net.drop(1, 100)
    assert not reaches(net, 0, 1)
    net.mend()
    assert reaches(net, 0, 1)
    net.set_rate(None, 0)
    assert "tbf" not in net.hosts[0].run(["tc", "qdisc", "show", "dev", "net0"]).stdout
    net.set_rate("100mbit")


def test_signals_reach_the_program(net: HostNetwork) -> None:
    catch = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.01; done"
    with net.hosts[0].popen(["sh", "-c", catch], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.read() == "caught\n"
    assert process.returncode == 5
    with net.hosts[0].popen(
        ["sh", "-c", "echo ready; sleep 60; :"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        program = process.program_pid
        os.kill(process.pid, signal.SIGKILL)  # of the process that entered, not of the program
    wait_until_dead(program)


def test_a_failed_program_tells_what_it_printed(net: HostNetwork) -> None:
    with pytest.raises(RuntimeError, match=r"on host1: .* ended with 2\n.*No such file"):
        net.hosts[1].run(["ls", "/no/such/file"])
    with pytest.raises(subprocess.TimeoutExpired):
        net.hosts[1].run(["sleep", "60"], timeout=0.1)


def test_hosts_see_a_shared_directory(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('seen')")
    with hosts(1, shared=[tmp_path], ssh=False) as net:
        command = [sys.executable, "-S", program]
        assert net.hosts[0].run(command, cwd=tmp_path).stdout == "seen\n"
        with pytest.raises(HostsUnavailable, match="ssh=False"):
            net.ssh_config  # noqa: B018


def test_nothing_is_left() -> None:
    with no_leaks(), hosts(2) as net:
        with net.hosts[1].popen(["sleep", "60"]) as process:
            pid = process.program_pid
            os.kill(pid, signal.SIGSTOP)
            net.close()
        wait_until_dead(pid)


def test_nothing_is_left_by_a_session_that_is_killed() -> None:
    program = """if True:
        import subprocess
        from kadril.testing import hosts
        with hosts(2) as net:
            pids = [host.namespaces.pid for host in net.hosts] + [net.switch.pid]
            programs = [host.popen(["sleep", "60"]) for host in net.hosts]
            print(*pids, *(each.program_pid for each in programs), net.directory, flush=True)
            input()
    """
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as session:
        assert session.stdout is not None
        *pids, directory = session.stdout.readline().split()
        session.kill()
    for pid in pids:
        wait_until_dead(int(pid))
    # Its files go when the next session starts.
    program = "from kadril.testing.rendezvous import sweep_directories as sweep; sweep()"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert not Path(directory).exists()


def wait_until_dead(pid: int) -> None:
    deadline = time.monotonic() + 10.0
    while state_of(pid) != "dead":
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.005)


def test_the_machine_s_own_network_is_refused() -> None:
    """A script that loses its `--net` would work on the network of the machine."""
    with pytest.raises(RuntimeError, match="the machine's own"):
        open_other(os.getpid(), "net")
    with pytest.raises(OSError, match="No such file"):  # no answer is no consent
        open_other(2**22 + 1, "net")


def test_what_makes_no_network_is_refused() -> None:
    for arguments, message in (
        ({"num_hosts": 0}, "1 to 100 hosts"),
        ({"num_hosts": 2, "ranks": [1]}, "for each of 2 hosts"),
        ({"num_hosts": 2, "names": ["a", "a"]}, "different"),
        ({"num_hosts": 1, "names": ["A b"]}, "a-z"),
        ({"num_hosts": 1, "shared": ["/etc/passwd"]}, "is none"),
    ):
        with pytest.raises(ValueError, match=message), hosts(**arguments):  # type: ignore[arg-type]
            pass


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing rights and programs raise what pytest takes for a skip, with the reason in words."""
    program = """if True:
        import os
        from kadril.testing import HostsUnavailable, hosts
        os.setuid(65534)
        try:
            hosts(2).__enter__()
        except HostsUnavailable as error:
            print(error)
    """
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    assert "need root" in told
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HostsUnavailable, match="install iproute2"):
        hosts(2).__enter__()
    assert issubclass(HostsUnavailable, unittest.SkipTest)
