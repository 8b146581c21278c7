"""Several hosts on one machine: tests across hosts, with real links, ssh and faults of the network.

    def test_sum_across_hosts():
        with hosts(2, ranks=4, rate="100mbit") as net:
            before = net.hosts[0].uplink()
            net.hosts[0].run(["ssh", "-F", net.ssh_config, "host1", "hostname"])
            program = net.hosts[1].popen([sys.executable, "program.py"], stdout=subprocess.PIPE)
            net.link_down(1)
            ...
            assert net.hosts[0].uplink().since(before).sent < 1_000_000

A host is a process with namespaces of its own for network, host name, mounts, IPC and processes;
the hosts are joined by a switch, which is one more network namespace:

    host0: net0 10.77.0.1 ---- port0 [switch] port1 ---- net0 10.77.0.2: host1

Each host has its own /etc/hosts, /tmp, /dev/shm, /run and /sys, and a real sshd; all other files
are the machine's. The link of a host carries `rate` in each direction. Kadril, MPI and ssh see
hosts as they would see machines, but all of them share the cores of this one.

| `HostNetwork` | |
|---|---|
| `hosts[i].run(command)`, `.popen(command)` | run a program in host i |
| `hosts[i].uplink()` | bytes sent and received by host i so far |
| `hosts[i].name`, `.address` | `host0`, 10.77.0.1 |
| `ssh_config` | a file for `ssh -F`, inside hosts |
| `slots` | "host0:4,host1:4", for `-H` |
| `link_down(i)`, `link_up(i)` | the cable of host i is out, and in again |
| `cut(source, target)` | nothing gets from one host to another one; the other way is open |
| `drop(i, percent)` | so many packets to host i are lost |
| `mend()` | no more cuts and losses |
| `set_rate(rate, i)` | another rate of the link of host i, or of all |

As a fixture of pytest, for all tests of a file:

    @pytest.fixture(scope="module")
    def net():
        with hosts(2, ranks=2) as net:
            yield net

It needs root and the programs of `PROGRAMS`; elsewhere `hosts` raises `HostsUnavailable`, which
pytest takes for a skip with that reason. It never touches the machine's own network: it enters
namespaces by descriptors, which it has compared with its own. It leaves nothing behind: when the
session ends, even by SIGKILL, the kernel ends all hosts and removes their network and mounts.

Programs must not lie in /tmp, unless in a directory that hosts share: `shared=[tmp_path]`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from kadril.testing.host import INTERFACE, PRIVATE, Host
from kadril.testing.host_ssh import start_sshd, why_no_ssh, write_ssh_files
from kadril.testing.namespaces import HostsUnavailable, Namespaces
from kadril.testing.rendezvous import make_directory, remove_directory

__all__ = ["HostNetwork", "HostsUnavailable", "hosts"]

PROGRAMS = ("unshare", "nsenter", "setpriv", "mount", "ip", "tc")

MAX_HOSTS = 100
NETWORK = "10.77.0"

# The switch forwards from the first packet on: there is no loop that it would have to find first.
# Without IPv6 it sends none of its own.
SWITCH = """
echo 1 2> /dev/null > /proc/sys/net/ipv6/conf/default/disable_ipv6 || true
ip link add switch type bridge stp_state 0 forward_delay 0
ip link set switch up
"""

# What a link may send at once beyond its rate, and how long a packet waits for its turn at most.
SHAPE = ("burst", "128k", "latency", "20ms")


@contextmanager
def hosts(
    num_hosts: int,
    ranks: int | Sequence[int] = 1,
    rate: str | None = None,
    *,
    names: Sequence[str] | None = None,
    shared: Sequence[str | os.PathLike[str]] = (),
    ssh: bool = True,
) -> Iterator[HostNetwork]:
    """Have several hosts on this machine while the block runs.

    Args:
        num_hosts: how many there are.
        ranks: how many ranks each is to have, or each by itself: for `slots` and for the test.
        rate: of each link and direction, as `tc` writes it ("100mbit"); None for no limit.
        names: of the hosts; by default host0, host1 and so on.
        shared: directories in /tmp, /dev/shm or /run that hosts see nevertheless.
        ssh: whether each host has an sshd, where openssh is installed.

    Raises:
        HostsUnavailable: there can be none here; the message says why.
        ValueError: arguments that make no network.
    """
    reason = why_no_hosts()
    if reason:
        raise HostsUnavailable(reason)
    ranks_of = [ranks] * num_hosts if isinstance(ranks, int) else list(ranks)
    all_names = [f"host{index}" for index in range(num_hosts)] if names is None else list(names)
    check_arguments(num_hosts, ranks_of, all_names)
    directory = make_directory("hosts")
    network = HostNetwork(directory)
    try:
        network.build(all_names, ranks_of, [directory, *map(Path, shared), *needed_directories()])
        network.set_rate(rate)
        if ssh:
            network.start_ssh()
        yield network
    finally:
        network.close()
        remove_directory(directory)


class HostNetwork:
    """Hosts and the switch that joins them; made by `hosts`.

    Attributes:
        hosts: in the order of their addresses.
        directory: of the fixture, seen by all hosts under the same path.
    """

    def __init__(self, directory: Path) -> None:
        self.hosts: list[Host] = []
        self.directory = directory
        self._switch: Namespaces | None = None
        self._ssh_config: Path | None = None
        self._no_ssh = "these hosts were made with ssh=False"

    def build(self, names: list[str], ranks: list[int], shared: list[Path]) -> None:
        """Start the switch and the hosts, and lay the cables."""
        addresses = [f"{NETWORK}.{index + 1}" for index in range(len(names))]
        lines = ["127.0.0.1 localhost", *map(" ".join, zip(addresses, names, strict=True))]
        (self.directory / "hosts").write_text("\n".join(lines) + "\n")
        hidden = sorted({path.resolve() for path in shared if is_hidden(path)})
        self._switch = Namespaces(SWITCH)
        for index, name in enumerate(names):
            host = Host(index, name, addresses[index], ranks[index], self.directory, hidden)
            self.hosts.append(host)
            self.lay_cable(host)

    def lay_cable(self, host: Host) -> None:
        """Join a host to the switch."""
        port, cable = f"port{host.index}", ("type", "veth", "peer", "name", INTERFACE)
        try:
            self.switch.network(
                *("ip", "link", "add", port, *cable, "netns", str(host.namespaces.pid))
            )
        except RuntimeError as error:
            raise HostsUnavailable(f"this kernel has no veth: {error}") from error
        self.switch.network("ip", "link", "set", port, "master", "switch", "up")
        # Without addresses of version 6, nothing goes over an idle link but what programs send.
        inside = host.namespaces.network
        inside("ip", "link", "set", INTERFACE, "addrgenmode", "none")
        inside("ip", "address", "add", f"{host.address}/24", "dev", INTERFACE)
        inside("ip", "link", "set", INTERFACE, "up")

    def start_ssh(self) -> None:
        """Start the sshd of each host, if there is one here."""
        self._no_ssh = why_no_ssh()
        if not self._no_ssh:
            config = write_ssh_files(self.directory, self.hosts)
            for host in self.hosts:
                start_sshd(host, self.directory)
            self._ssh_config = config

    @property
    def switch(self) -> Namespaces:
        """The network namespace in the middle."""
        assert self._switch is not None
        return self._switch

    @property
    def ssh_config(self) -> str:
        """Path of a configuration for `ssh -F`, seen by all hosts.

        Raises:
            HostsUnavailable: there is no sshd; the message says why.
        """
        if self._ssh_config is None:
            raise HostsUnavailable(self._no_ssh)
        return os.fspath(self._ssh_config)

    @property
    def slots(self) -> str:
        """The hosts and their numbers of ranks: "host0:4,host1:4"."""
        return ",".join(f"{host.name}:{host.ranks}" for host in self.hosts)

    def set_rate(self, rate: str | None, host: int | None = None) -> None:
        """Have links carry another rate from now on, in each direction; None for no limit.

        Args:
            rate: as `tc` writes it: "100mbit".
            host: whose link; by default of all.

        Raises:
            HostsUnavailable: this kernel cannot limit rates.
        """
        for each in self.hosts if host is None else [self.hosts[host]]:
            # Each end limits what it sends: the host its own bytes, the switch those of others.
            ends = ((each.namespaces, INTERFACE), (self.switch, f"port{each.index}"))
            for namespaces, device in ends:
                if rate is None:
                    with suppress(RuntimeError):  # it had none
                        namespaces.network("tc", "qdisc", "del", "dev", device, "root")
                    continue
                command = ("tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate)
                try:
                    namespaces.network(*command, *SHAPE)
                except RuntimeError as error:
                    raise HostsUnavailable(f"this kernel cannot limit a rate: {error}") from error

    def link_down(self, host: int) -> None:
        """Pull the cable of a host out."""
        self.switch.network("ip", "link", "set", f"port{host}", "down")

    def link_up(self, host: int) -> None:
        """Plug the cable of a host in again."""
        self.switch.network("ip", "link", "set", f"port{host}", "up")

    def cut(self, source: int, target: int) -> None:
        """Let nothing get from one host to another one any more; the other way stays open.

        Raises:
            HostsUnavailable: there is no iptables here.
        """
        self.add_rule(target, "--source", self.hosts[source].address)

    def drop(self, host: int, percent: float) -> None:
        """Lose some of the packets that come to a host, at random.

        A packet may be larger than a frame here: interfaces without hardware join them.

        Raises:
            HostsUnavailable: there is no iptables here, or it has no `statistic`.
        """
        chance = ("--mode", "random", "--probability", f"{percent / 100:g}")
        self.add_rule(host, "--match", "statistic", *chance)

    def add_rule(self, host: int, *match: str) -> None:
        """Have a host drop packets that match."""
        if shutil.which("iptables") is None:
            raise HostsUnavailable("no iptables here, by which packets are lost: install iptables")
        rule = ("--append", "INPUT", "--in-interface", INTERFACE, *match, "--jump", "DROP")
        try:
            self.hosts[host].namespaces.network("iptables", "--wait", *rule)
        except RuntimeError as error:
            raise HostsUnavailable(f"this kernel's iptables cannot do it: {error}") from error

    def mend(self) -> None:
        """Take back all that `cut` and `drop` did."""
        if shutil.which("iptables") is not None:
            for host in self.hosts:
                host.namespaces.network("iptables", "--wait", "--flush")

    def close(self) -> None:
        """End all hosts; `hosts` does it."""
        for host in self.hosts:
            host.close()
        if self._switch is not None:
            self._switch.close()


def why_no_hosts() -> str:
    """Return why this machine cannot show several hosts, or an empty string."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return (
            f"several hosts on one machine need {', '.join(missing)}: install iproute2, util-linux"
        )
    if os.geteuid() != 0:
        return "several hosts on one machine need root, who alone may make network namespaces"
    return ""


def check_arguments(num_hosts: int, ranks: list[int], names: list[str]) -> None:
    """Refuse what makes no network."""
    if not 1 <= num_hosts <= MAX_HOSTS:
        raise ValueError(f"hosts() makes 1 to {MAX_HOSTS} hosts, not {num_hosts}")
    if len(ranks) != num_hosts or min(ranks) < 1:
        raise ValueError(f"ranks={ranks} must be one positive number for each of {num_hosts} hosts")
    if len(names) != num_hosts or len(set(names)) != num_hosts:
        raise ValueError(f"names={names} must be {num_hosts} different ones")
    bad = [name for name in names if not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)]
    if bad:
        raise ValueError(f"names of hosts are made of a-z, 0-9 and -, not as in {bad}")


def needed_directories() -> list[Path]:
    """Return where Python, kadril and the session are: hosts see them wherever they are."""
    return [Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[1], Path.cwd()]


def is_hidden(path: Path) -> bool:
    """Whether a directory lies in one that each host has to itself.

    Raises:
        ValueError: it is not a directory.
    """
    if not path.is_dir():
        raise ValueError(f"hosts can share a directory, and {path} is none")
    return any(path.resolve().is_relative_to(private) for private in PRIVATE)
