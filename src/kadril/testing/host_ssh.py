"""A real sshd in each host of `kadril.testing.hosts`, and the client's configuration."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from kadril.testing.host import Host
from kadril.testing.namespaces import HostsUnavailable

__all__ = ["start_sshd", "why_no_ssh", "write_ssh_files"]

START_TIMEOUT = 20.0

SERVER = """\
Port 22
ListenAddress 0.0.0.0
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/user_key.pub
StrictModes no
UsePAM no
PidFile none
PermitRootLogin prohibit-password
PasswordAuthentication no
UseDNS no
# A test that starts many ranks at once must not be taken for an attack.
MaxStartups 100
MaxSessions 100
"""

CLIENT = """\
Host {names}
    User root
    IdentityFile {directory}/user_key
    IdentitiesOnly yes
    BatchMode yes
    StrictHostKeyChecking yes
    UserKnownHostsFile {directory}/known_hosts
    GlobalKnownHostsFile /dev/null
    ConnectTimeout 10
    LogLevel ERROR
"""


def sshd_program() -> str | None:
    """Return where sshd is; it wants to be called by its full path."""
    return shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:/usr/bin")


def why_no_ssh() -> str:
    """Return why hosts have no sshd, or an empty string."""
    missing = [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]
    if sshd_program() is None:
        missing.append("sshd")
    if not missing:
        return ""
    return f"no {', '.join(missing)} here: install openssh-server and openssh-client"


def write_ssh_files(directory: Path, hosts: Sequence[Host]) -> Path:
    """Make keys and configurations of servers and clients; returns that of clients."""
    for key in ("host_key", "user_key"):
        command = [
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            "",
            "-f",
            f"{directory}/{key}",
        ]
        subprocess.run(command, check=True, capture_output=True)
    public = (directory / "host_key.pub").read_text().strip()
    names = [name for host in hosts for name in (host.name, host.address)]
    (directory / "known_hosts").write_text(f"{','.join(names)} {public}\n")
    (directory / "sshd_config").write_text(SERVER.format(directory=directory))
    config = directory / "ssh_config"
    config.write_text(CLIENT.format(directory=directory, names=" ".join(names)))
    return config


def start_sshd(host: Host, directory: Path) -> None:
    """Start sshd in a host, and wait until it listens. It ends with the host.

    Raises:
        HostsUnavailable: it does not start, with what it said.
    """
    log = directory / f"sshd-{host.name}.log"
    program = sshd_program()
    assert program is not None
    command = [program, "-D", "-e", "-f", f"{directory}/sshd_config"]
    with log.open("w") as file:
        process = host.popen(command, cwd="/", stdin=subprocess.DEVNULL, stderr=file)
    deadline = time.monotonic() + START_TIMEOUT
    while "Server listening" not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise HostsUnavailable(f"sshd does not start in {host.name}: {log.read_text()}")
        time.sleep(0.005)
