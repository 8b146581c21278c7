"""Inductor in tests: caches of their own, and what a new process would find in them."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
from torch._dynamo.utils import counters


@contextlib.contextmanager
def inductor(cache: Path) -> Iterator[None]:
    """Inductor with an empty cache, and without processes that outlive the test."""
    place = {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    with mock.patch.dict(os.environ, place), warnings.catch_warnings():
        # Torch's own modules, when they are loaded.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch._inductor import config

        # What the processor has is taken as usable: inductor would compile a program with torch's
        # headers to see that, in every new cache, which takes as long as one kernel.
        with config.patch({"compile_threads": 1, "cpp.vec_isa_ok": True}):
            yield
    torch._dynamo.reset()


def forget() -> None:
    """Forget what a new process does not know: all but the files of the cache."""
    from torch._inductor.utils import clear_caches

    torch._dynamo.reset()
    clear_caches()
    counters.clear()
