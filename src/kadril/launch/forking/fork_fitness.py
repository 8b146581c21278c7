"""Whether forks of this process are sound: a fork has the thread that made it, and no other."""

from __future__ import annotations

from pathlib import Path

__all__ = ["why_unfit"]


def why_unfit(cause: str) -> str:
    """Return why a fork of this process would not be sound, or an empty string.

    Args:
        cause: of other threads, if there are any: "importing numpy".
    """
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return f"{cause} has started threads ({', '.join(sorted(names))})" if len(names) > 1 else ""
