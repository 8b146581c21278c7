"""The directory of the C headers, for those who compile against them."""

from __future__ import annotations

from pathlib import Path

from kadril import _native

__all__ = ["header_directory"]


def header_directory() -> Path:
    """Return where kadril.h is: installed with the package, or in its sources.

    Raises:
        FileNotFoundError: it is in neither.
    """
    package = Path(_native.__file__).parent / "include"
    sources = Path(__file__).resolve().parents[3] / "native" / "include"
    for directory in (package, sources):
        if (directory / "kadril.h").exists():
            return directory
    raise FileNotFoundError(f"kadril.h is neither in {package} nor in {sources}")
