"""A program of a user, for mypy's strictest rules: it follows names that are loaded lazily.

`make check` reads it with the package. The two mistakes in it must be found: mypy complains of an
"ignore" that it does not need.
"""

from __future__ import annotations

import numpy as np
import torch

import kadril

P_x: kadril.partition.Partition = kadril.grid(1, 1, 2, 2)
layer: kadril.nn.Conv2d = kadril.nn.Conv2d(P_x, 3, 8, 3)
module: torch.nn.Module = layer
total: torch.Tensor = kadril.allreduce(torch.ones(3), "mean")
first: torch.Tensor | None = kadril.reduce(torch.ones(3))
rows: np.ndarray[tuple[int, int], np.dtype[np.float64]] = kadril.allgather(np.ones((2, 3)))
optimizer = kadril.torch.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1))
trainer = kadril.sharded.POS_Trainer(module, "adam", {"lr": 1e-3})
y: torch.Tensor = kadril.ops.all_sum_reduce(total, P_x, [0])
mark = kadril.testing.ranks(1, 2)

no_such_layer = kadril.nn.Conv9d  # type: ignore[attr-defined]
kadril.allreduce("x")  # type: ignore[type-var]
