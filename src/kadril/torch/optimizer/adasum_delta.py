"""The Adasum optimizer: each rank steps by itself, and the steps are combined.

    start  = p                          on every rank the same
    p      = what the rank's own step makes of it
    delta  = p - start                  differs between ranks
    p      = start + Adasum(delta)      on every rank the same

Adasum combines two vectors that are orthogonal by adding them and two that are parallel by taking
their mean, and goes between the two for others. It is not linear, so it is applied to each
parameter's delta by itself; the deltas of all parameters are one group of requests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kadril.errors import UnsupportedError
from kadril.shared_engine.reduce_ops import Adasum
from kadril.torch.ops import grouped_allreduce_async_, synchronize
from kadril.torch.optimizer.distributed import DistributedBase

__all__ = ["DeltaOptimizer"]


class DeltaOptimizer(DistributedBase):
    """Methods that are put before those of the user's optimizer class."""

    reduces_gradients = False

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Step with this rank's own gradients, then combine the steps of all ranks.

        Gradients and the optimizer's state stay this rank's own. A closure is evaluated locally.

        Raises:
            MismatchError, PeerLost, Stalled: as the reduction.
        """
        self._opt_called = True  # what schedulers look for
        attachment = self._kadril
        attachment.refresh(self)
        base_step = attachment.inner_step or super().step
        call = base_step if closure is None else lambda **options: base_step(closure, **options)
        if not attachment.has_peers:
            return call(**kwargs)
        parameters = [
            (name, p.detach()) for name, p in attachment.names.of(self) if p.requires_grad
        ]
        starts = [p.clone() for _, p in parameters]
        result = call(**kwargs)
        with torch.no_grad():
            deltas = self.combine(
                {name: p - start for (name, p), start in zip(parameters, starts, strict=True)}
            )
            for (_, p), start, delta in zip(parameters, starts, deltas, strict=True):
                torch.add(start, delta, out=p)
        return result

    # See GradientOptimizer.step.
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    step.hooked = True  # type: ignore[attr-defined]

    def combine(self, deltas: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """The deltas of all ranks, combined; in the order given."""
        attachment = self._kadril
        compression = attachment.settings.compression
        compressed = [compression.compress(delta) for delta in deltas.values()]
        handle = grouped_allreduce_async_(
            [tensor for tensor, _ in compressed],
            name=f"{attachment.prefix.text}.deltas",
            op=Adasum,
            process_set=attachment.settings.process_set,
        )
        combined = synchronize(handle)
        return [
            compression.decompress(tensor, context)
            for tensor, (_, context) in zip(combined, compressed, strict=True)
        ]

    def synchronize(self) -> None:
        """Do nothing: communication happens within `step()`."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raise: this is not possible here.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "skip_synchronize() with op=hvd.Adasum: ranks that step without combining their steps"
            " would part for good. Leave it out; gradients are this rank's own, and may be clipped"
            " before step()"
        )
        yield
