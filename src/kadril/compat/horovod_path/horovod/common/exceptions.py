"""The exceptions of Horovod, as kadril raises them."""

from __future__ import annotations

from kadril.errors import KadrilError as HorovodInternalError

from .._forward import forward

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "get_version_mismatch_message",
]

# HostsUpdatedInterrupt, which loads the engine.
__getattr__ = forward("kadril.shared_engine.elastic")


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Return a message about a framework of another version than expected."""
    return f"{name} is of version {version}, and {installed_version} was expected"


class HorovodVersionMismatchError(ImportError):
    """A framework is not of the version that was expected.

    kadril does not raise it: it is built against no framework.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version), name=name)
        self.version = version
        self.installed_version = installed_version
