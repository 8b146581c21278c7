"""Processes of this host, and which of them started which, as /proc tells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["ProcessTree", "command_name", "read_words"]


class ProcessTree:
    """Parents of all processes at one moment; of dead ones that nobody has reaped, none.

    Attributes:
        parents: process that started each process, by its id.
    """

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                # "pid (name) state parent ..."; the name may hold spaces and parentheses.
                with suppress(OSError):
                    text = (process / "stat").read_text(encoding="utf-8", errors="replace")
                    state, parent = text.rpartition(")")[2].split()[:2]
                    if state not in "ZX":
                        self.parents[int(process.name)] = int(parent)

    def ancestors(self, pid: int) -> Iterator[int]:
        """Yield who started a process, who started that one, and so on."""
        seen = {0}  # a number may be given to another process while /proc is read
        while (pid := self.parents.get(pid, 0)) not in seen:
            seen.add(pid)
            yield pid

    def descendants(self, root: int) -> list[int]:
        """Return the processes that descend from one."""
        return [pid for pid in self.parents if root in self.ancestors(pid)]


def command_name(pid: int) -> str:
    """Return the name of the program that a process runs: of a script, not of its Python."""
    words: list[str] = []
    with suppress(OSError):
        words = read_words(Path(f"/proc/{pid}/cmdline"))
    names = [Path(word).name for word in words]
    if len(words) > 2 and names[0].startswith("python") and words[1] == "-m":
        name = names[2]
    elif len(words) > 1 and names[0].startswith("python") and not words[1].startswith("-"):
        name = names[1]
    else:
        name = names[0] if names else ""
    # Some write a title there: "slurmstepd: [4711.0]".
    return re.match(r"[\w.+-]*", name)[0] or "process"  # type: ignore[index]


def read_words(path: Path) -> list[str]:
    """Return the words of a file of /proc that ends each with a zero."""
    return [word.decode(errors="replace") for word in path.read_bytes().split(b"\0") if word]
