"""The driver's side: starts the ranks of all contestants on hosts, and has them take turns."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from contestants import Contestant

from kadril.bench.link import Link, LinkLost
from kadril.bench.peers import clean_environment, find_mpirun
from kadril.errors import KadrilError
from kadril.testing.host import INTERFACE, HostProcess
from kadril.testing.host_network import HostNetwork
from kadril.world.handshake import SECRET_BYTES

__all__ = ["ContestantLost", "Job", "Sample"]

HERE = Path(__file__).resolve().parent
START_TIMEOUT = 120.0
TURN_TIMEOUT = 120.0
FIRST_PORT = 29500
HEAD_START = 0.01  # seconds from the driver's word to the moment at which all ranks begin


class ContestantLost(KadrilError):  # noqa: N818 - reads as what happened
    """A contestant failed, and takes no more turns."""


class Sample(NamedTuple):
    """One turn.

    Attributes:
        seconds: per call, on the slowest rank.
        most_bytes: per call and direction, on the uplink that carried most; headers included.
    """

    seconds: float
    most_bytes: float


class Job:
    """All ranks of all contestants on some hosts; to be used as a context, which ends them.

    Args:
        net: the hosts.
        contestants: by name.

    Attributes:
        missing: who could not be started, and why.
    """

    def __init__(self, net: HostNetwork, contestants: Mapping[str, Contestant]) -> None:
        self.net = net
        self.missing: dict[str, str] = {}
        self._contestants = contestants
        self._size = sum(host.ranks for host in net.hosts)
        self._path = str(net.directory / "driver")
        self._log = (net.directory / "log").open("wb")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._path)
        self._listener.listen(1024)
        self._processes: list[HostProcess] = []
        self._links: dict[str, dict[int, Link]] = {name: {} for name in contestants}

    def __enter__(self) -> Job:
        self._fork_ranks()
        for name, contestant in self._contestants.items():
            try:
                if contestant.library in ("openmpi", "mpich"):
                    self._start_mpi(name, contestant)
            except KadrilError as error:
                self._drop(name, str(error))
        self._accept()
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._links:
            for link in self._links[name].values():
                link.close()
        self._listener.close()
        for process in self._processes:
            process.terminate()
            process.wait()
        self._log.close()

    @property
    def names(self) -> list[str]:
        """Contestants that take turns."""
        return [name for name in self._contestants if name not in self.missing]

    # Start.

    def _fork_ranks(self) -> None:
        ranks: dict[int, list[tuple[str, dict[str, str]]]] = {
            host.index: [] for host in self._hosts
        }
        for number, (name, contestant) in enumerate(self._contestants.items()):
            if contestant.library not in ("kadril", "gloo"):
                continue
            for rank in range(self._size):
                variables = self._identity(contestant, rank, FIRST_PORT + number)
                host = contestant.host_of(rank, len(self._hosts), self._hosts[0].ranks)
                ranks[host].append((name, variables))
        for host in self._hosts:
            if ranks[host.index]:
                words = [
                    sys.executable,
                    HERE / "forks.py",
                    self._path,
                    json.dumps(ranks[host.index]),
                ]
                self._start(host.index, words, self._environment())

    def _identity(self, contestant: Contestant, rank: int, port: int) -> dict[str, str]:
        """Variables by which a rank finds the others: those of torchrun, or of `kadril run`."""
        address = self._hosts[0].address
        if contestant.options.get("transport") != "tiered:tcp":
            return {
                "RANK": str(rank),
                "WORLD_SIZE": str(self._size),
                "MASTER_ADDR": address,
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": INTERFACE,
            }
        secret = self.net.directory / "secret"
        if not secret.exists():
            secret.touch(mode=0o600)
            secret.write_bytes(secrets.token_bytes(SECRET_BYTES))
        return {
            "KADRIL_RANK": str(rank),
            "KADRIL_SIZE": str(self._size),
            "KADRIL_JOB": "tiers",
            "KADRIL_SECRET_FILE": str(secret),
            "KADRIL_RENDEZVOUS": f"tcp:{address}:{port}",
            "KADRIL_INTERFACE": INTERFACE,
        }

    def _start_mpi(self, name: str, contestant: Contestant) -> None:
        mpirun = find_mpirun(contestant.library)
        environment = self._environment()
        if contestant.library == "openmpi":
            environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
            environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
            environment["PRTE_MCA_plm_ssh_args"] = f"-F {self.net.ssh_config}"
            parameters = {
                "pml": "ob1",
                "btl": "tcp,sm,self",
                "btl_tcp_if_include": INTERFACE,
                # Hosts share cores here: whoever waits gives its core up.
                "mpi_yield_when_idle": "1",
                **contestant.options,
            }
            words = [str(mpirun), "-H", self.net.slots, "-n", str(self._size), "--bind-to", "none"]
            for key, value in parameters.items():
                words += ["--mca", key, value]
        else:
            wrapper = self.net.directory / "ssh"
            wrapper.write_text(f'#!/bin/sh\nexec ssh -F {self.net.ssh_config} "$@"\n')
            wrapper.chmod(0o755)
            environment |= {
                "MPIR_CVAR_CH4_NETMOD": "ofi",
                "FI_PROVIDER": "tcp",
                "FI_TCP_IFACE": INTERFACE,
            }
            words = [str(mpirun), "-hosts", self.net.slots, "-n", str(self._size)]
            words += ["-launcher", "ssh", "-launcher-exec", str(wrapper), "-iface", INTERFACE]
        python = mpirun.parent / "python"
        words += [str(python), str(HERE / "rank.py"), self._path, name]
        self._start(0, words, environment)

    def _start(self, host: int, words: list[Any], environment: Mapping[str, str]) -> None:
        streams = {"stdin": subprocess.DEVNULL, "stdout": self._log, "stderr": self._log}
        self._processes.append(self._hosts[host].popen(words, env=environment, cwd=HERE, **streams))

    def _environment(self) -> dict[str, str]:
        environment = clean_environment(os.environ)
        for name in ("TMPDIR", "XDG_RUNTIME_DIR"):
            environment.pop(name, None)
        return {**environment, "OMP_NUM_THREADS": "1"}

    def _accept(self) -> None:
        """Wait until all ranks of all contestants are there."""
        end = time.monotonic() + START_TIMEOUT
        while any(len(self._links[name]) < self._size for name in self.names):
            self._listener.settimeout(max(0.001, end - time.monotonic()))
            try:
                link = Link(self._listener.accept()[0])
                told = link.receive(TURN_TIMEOUT)
            except (TimeoutError, LinkLost):
                break
            self._links[told["contestant"]][told["rank"]] = link
        for name in self.names:
            if len(self._links[name]) < self._size:
                self._drop(name, f"{len(self._links[name])} of {self._size} ranks came")

    # Turns.

    def prepare(self, name: str, num_bytes: int) -> None:
        """Have the ranks of a contestant make their arrays, and check the result of a call.

        Raises:
            ContestantLost: it failed.
        """
        self._ask(name, {"do": "prepare", "bytes": num_bytes})

    def take_turn(self, name: str, num_calls: int) -> Sample:
        """Time some calls of a contestant.

        Raises:
            ContestantLost: it failed.
        """
        self._ask(name, {"do": "touch"})
        before = [host.uplink() for host in self._hosts]
        at = time.monotonic() + HEAD_START
        answers = self._ask(name, {"do": "run", "calls": num_calls, "at": at})
        moved = [host.uplink().since(was) for host, was in zip(self._hosts, before, strict=True)]
        most = max(max(uplink) for uplink in moved)
        return Sample(max(answer["seconds"] for answer in answers), most / num_calls)

    def _ask(self, name: str, message: dict[str, Any]) -> list[dict[str, Any]]:
        links = self._links[name].values()
        try:
            for link in links:
                link.send(message)
            answers = [link.receive(TURN_TIMEOUT) for link in links]
        except LinkLost as error:
            answers = [{"error": str(error)}]
        errors = [answer["error"] for answer in answers if "error" in answer]
        if errors:
            self._drop(name, f"{message['do']}: {errors[0]}")
            raise ContestantLost(f"{name}: {errors[0]}")
        return answers

    def _drop(self, name: str, reason: str) -> None:
        print(f"{name} takes no more turns: {reason}", file=sys.stderr, flush=True)
        self.missing[name] = reason
        for link in self._links[name].values():
            link.close()

    @property
    def _hosts(self) -> list[Any]:
        return self.net.hosts

    @property
    def log(self) -> str:
        """Return the output of all ranks so far."""
        return (self.net.directory / "log").read_text(errors="replace")
