"""Launchers in hosts of `kadril.testing.hosts`: started in the first one, searched for in all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from launch_playground import Launched, Result, eventually

from kadril.testing import HostNetwork

__all__ = ["HostPlayground"]


class HostPlayground:
    """Starts launchers in the first host, and finds what they leave in all."""

    def __init__(self, net: HostNetwork, directory: Path) -> None:
        self.net = net
        self.directory = directory
        self.launched: list[Launched] = []
        self.known = [set(self._pids(index)) for index in range(len(net.hosts))]

    def write(self, name: str, text: str) -> str:
        """Write a file that all hosts see."""
        path = self.directory / name
        path.write_text(text)
        return str(path)

    def start(
        self, *words: str | Path, verb: str = "run", env: Mapping[str, str] | None = None
    ) -> Launched:
        """Start `kadril run` in the first host, or another verb; Python itself without one."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KADRIL_", "OMP_", "XDG_", "TMPDIR"))
        }
        process = self.net.hosts[0].popen(
            [sys.executable, *(("-m", "kadril", verb) if verb else ()), *words],
            env={**inherited, "KADRIL_SSH": f"ssh -F {self.net.ssh_config}", **(env or {})},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=False,
            bufsize=0,
        )
        self.launched.append(Launched(process))  # type: ignore[arg-type]
        return self.launched[-1]

    def run(
        self, *words: str | Path, verb: str = "run", env: Mapping[str, str] | None = None
    ) -> Result:
        """Run `kadril run` in the first host to its end."""
        return self.start(*words, verb=verb, env=env).finish(timeout=40)

    def processes(self, index: int) -> dict[int, str]:
        """Processes of a host that were not there at the beginning, by pid in the session."""
        found = {}
        for pid in self._pids(index):
            if pid not in self.known[index]:
                with suppress(OSError):
                    text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if text and not text.startswith("sshd:"):
                        found[pid] = text
        return found

    def _pids(self, index: int) -> list[int]:
        namespace = Path(f"/proc/{self.net.hosts[index].namespaces.pid}/ns/pid").readlink()
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (directory / "ns/pid").readlink() == namespace:
                    found.append(int(directory.name))
        return found

    def files(self, index: int) -> list[str]:
        """Directories of jobs in the /tmp of a host."""
        temporary = Path(f"/proc/{self.net.hosts[index].namespaces.pid}/root/tmp")
        names = [path.name for path in temporary.iterdir()]
        return [name for name in names if re.fullmatch("kadril-[0-9a-f]{16}", name)]

    def litter(self) -> list[str]:
        """All that is left on any host."""
        left = []
        for index, host in enumerate(self.net.hosts):
            left += [f"{host.name}: {pid} {text}" for pid, text in self.processes(index).items()]
            left += [f"{host.name}: /tmp/{name}" for name in self.files(index)]
        return left

    def close(self) -> None:
        """End what runs, and fail if anything is left."""
        for launched in self.launched:
            if launched.process.poll() is None:
                launched.process.kill()
            launched.process.wait()
            for pipe in (launched.process.stdout, launched.process.stderr):
                if pipe is not None:
                    pipe.close()
        assert eventually(lambda: not self.litter(), timeout=5.0), f"left behind: {self.litter()}"
