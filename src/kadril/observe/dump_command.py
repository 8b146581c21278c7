"""`kadril dump`: see `ps_command.py`, which has both verbs."""

from __future__ import annotations

from kadril.observe.ps_command import dump_main as main

__all__ = ["main"]
