"""What Horovod has and kadril has not."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["refuse"]


def refuse(module: str) -> NoReturn:
    """Say what there is instead of a module.

    Raises:
        ModuleNotFoundError: always, as where Horovod was built without that framework.
    """
    raise ModuleNotFoundError(
        f"kadril stands in for horovod here (kadril run --compat horovod), and has no {module};"
        " there are horovod.torch, horovod.torch.elastic, horovod.common, horovod.runner and"
        " horovod.data. Without --compat, the Horovod that is installed is imported",
        name=module,
    )
