"""Torch, for what needs it: without torch, the import says what to install.

    from kadril.needs_torch import torch

Packages that work on tensors begin with it, so that their users see this error and no other.
"""

from __future__ import annotations

__all__ = ["distributed", "torch"]

try:
    import torch as torch
    import torch.distributed as distributed
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "this part of kadril needs torch, which is not installed: pip install 'kadril[torch]'."
        " Without torch there are collectives on numpy arrays (kadril.allreduce and its siblings),"
        " kadril.partition and the C interface, under `kadril run` or mpirun",
        name="torch",
    ) from None
