"""The error for modules of Horovod that kadril does not have."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["refuse"]


def refuse(module: str) -> NoReturn:
    """Raise an error that names the modules that exist.

    Raises:
        ModuleNotFoundError: always, as where Horovod was built without that framework.
    """
    raise ModuleNotFoundError(
        f"kadril stands in for horovod here (kadril run --compat horovod), and has no {module};"
        " there are horovod.torch, horovod.tensorflow, horovod.keras, horovod.common,"
        " horovod.runner and horovod.data. Without --compat, the Horovod that is installed is"
        " imported",
        name=module,
    )
