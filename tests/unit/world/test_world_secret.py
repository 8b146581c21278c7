"""The secret and its private directory: used only if nobody else can get at them."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kadril.errors import RendezvousError
from kadril.world import unix
from kadril.world.secret import PrivateDirectory, check_directory, read_secret


@pytest.fixture
def directory() -> Iterator[PrivateDirectory]:
    with PrivateDirectory() as made:
        yield made


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)  # noqa: PTH116


def test_modes_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        with PrivateDirectory() as directory:
            assert mode(directory.path) == 0o700
            assert mode(directory.secret_file) == 0o600
            listener = unix.listen(directory.socket_path)
            assert mode(directory.socket_path) == 0o600
            listener.close()
    finally:
        os.umask(before)
    assert not directory.path.exists()
    directory.remove()


def test_what_was_written_is_read(directory: PrivateDirectory) -> None:
    check_directory(str(directory.path))
    assert read_secret(directory.secret_file) == directory.secret
    assert len(set(directory.secret)) > 10


def test_two_directories_share_nothing(directory: PrivateDirectory) -> None:
    with PrivateDirectory() as other:
        assert other.path != directory.path
        assert other.secret != directory.secret


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o602, 0o666])
def test_a_secret_that_others_can_get_at(directory: PrivateDirectory, bits: int) -> None:
    Path(directory.secret_file).chmod(bits)
    with pytest.raises(RendezvousError, match=f"mode 0{bits:o}.*chmod go-rwx"):
        read_secret(directory.secret_file)


@pytest.mark.parametrize("bits", [0o750, 0o701, 0o777])
def test_a_directory_that_others_can_enter(directory: PrivateDirectory, bits: int) -> None:
    directory.path.chmod(bits)
    with pytest.raises(RendezvousError, match="chmod go-rwx"):
        check_directory(str(directory.path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user(directory: PrivateDirectory) -> None:
    os.chown(directory.secret_file, 65534, -1)
    with pytest.raises(RendezvousError, match="belongs to user 65534"):
        read_secret(directory.secret_file)
    os.chown(directory.path, 65534, -1)
    with pytest.raises(RendezvousError, match="belongs to user 65534"):
        check_directory(str(directory.path))


def test_links_are_not_followed(directory: PrivateDirectory) -> None:
    with PrivateDirectory() as other:
        link = other.path / "link"
        link.symlink_to(directory.secret_file)
        with pytest.raises(RendezvousError, match="cannot read the job's secret"):
            read_secret(str(link))
        link.unlink()
        link.symlink_to(directory.path)
        with pytest.raises(RendezvousError, match="must be a directory"):
            check_directory(str(link))


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33])
def test_a_secret_of_another_length(directory: PrivateDirectory, content: bytes) -> None:
    Path(directory.secret_file).write_bytes(content)
    with pytest.raises(RendezvousError, match="must be 32 bytes"):
        read_secret(directory.secret_file)


def test_what_is_not_there(directory: PrivateDirectory) -> None:
    with pytest.raises(RendezvousError, match="No such file"):
        read_secret(str(directory.path / "other"))
    with pytest.raises(RendezvousError, match="No such file"):
        check_directory(str(directory.path / "other"))
    with pytest.raises(RendezvousError, match="must be a file"):
        read_secret(str(directory.path))
    os.mkfifo(directory.path / "pipe", 0o600)
    with pytest.raises(RendezvousError, match="must be a file"):
        read_secret(str(directory.path / "pipe"))


# The listening socket that a launcher leaves open for rank 0


def test_the_inherited_socket_is_taken_over(directory: PrivateDirectory) -> None:
    with unix.listen(directory.socket_path) as listener:
        descriptor = os.dup(listener.fileno())
    os.set_inheritable(descriptor, True)
    taken = unix.adopt(descriptor, directory.socket_path)
    assert taken.fileno() == descriptor
    assert not os.get_inheritable(descriptor), "children of rank 0 must not hold it open"
    taken.close()


def test_a_descriptor_that_is_something_else(directory: PrivateDirectory) -> None:
    """A child of rank 0 has its variables, and behind the number whatever it opened itself."""
    left, right = socket.socketpair()
    with unix.listen(str(directory.path / "other")) as other, tempfile.TemporaryFile() as file:
        for descriptor in (9999, file.fileno(), left.fileno(), other.fileno()):
            with pytest.raises(RendezvousError, match=f"KADRIL_LISTEN_FD={descriptor} is not"):
                unix.adopt(descriptor, directory.socket_path)
        for sock in (left, right, other):
            assert sock.fileno() >= 0
            os.fstat(sock.fileno())
    left.close()
    right.close()


def test_a_path_that_is_taken(directory: PrivateDirectory) -> None:
    with (
        unix.listen(directory.socket_path),
        pytest.raises(RendezvousError, match=r"cannot listen at .*Address already in use"),
    ):
        unix.listen(directory.socket_path)
