"""What holds for the whole suite: a session leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kadril.testing import no_leaks, shutdown
from kadril.testing.rendezvous import make_directory, remove_directory


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the session that leaves a process, descriptor, segment or file.

    It has a directory for temporary files of its own, so that what other sessions on this machine
    make is not taken for its own. Threads do not count here: those of numpy and torch start when a
    test first imports them.
    """
    tmp_path_factory.getbasetemp()  # made where pytest keeps it for inspection
    directory = make_directory("session")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(directory))
        patch.setenv("XDG_RUNTIME_DIR", str(directory))
        patch.setattr("tempfile.tempdir", str(directory))
        with no_leaks(threads=False, settle=5.0):
            yield
            shutdown()
    remove_directory(directory)
