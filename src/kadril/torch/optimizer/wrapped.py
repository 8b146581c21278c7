"""A torch optimizer that reduces gradients over ranks before it steps.

The user's optimizer object itself changes its class, to a subclass of its own class made here:

    SGD  <---- SGD (of kadril: GradientOptimizer, SGD)
     ^           ^
     |  before   |  after DistributedOptimizer(optimizer)
     optimizer --+

So it stays an instance of its class, and everything that holds it (schedulers, scalers, the
program's own variables) holds the distributed one, whenever it was made.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from kadril.shared_engine.reduce_ops import Adasum
from kadril.torch.optimizer.closure import ReducedClosure
from kadril.torch.optimizer.distributed import DistributedBase

__all__ = ["GradientOptimizer"]


class GradientOptimizer(DistributedBase):
    """Methods that are put before those of the user's optimizer class."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups.

        Whoever asks for them between `backward()` and `step()` may be about to change gradients
        that are being reduced. So where all gradients have come, this waits until they are reduced;
        where some have not come on this rank, call `synchronize()` first.
        """
        reducer = self._kadril.reducer
        if reducer is not None and reducer.has_news:
            reducer.settle()
        groups: list[dict[str, Any]] = self.__dict__["param_groups"]
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.__dict__["param_groups"] = groups

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Reduce what is not reduced yet, then step as the optimizer does.

        A closure is evaluated with gradients and loss reduced over the ranks, each time the
        optimizer asks.

        Raises:
            MismatchError, PeerLost, Stalled: as the reduction.
            StateError: another DistributedOptimizer has taken the parameters.
        """
        self._opt_called = True  # what schedulers look for
        attachment = self._kadril
        attachment.refresh(self)
        if attachment.is_synchronized and not attachment.skips:
            warn_of_second_reduction()
        attachment.is_synchronized = False
        reducer = attachment.reducer
        if reducer is not None:
            # Who skips has synchronized; who has not is not let down: peers count on it.
            if reducer.has_news or (closure is None and not attachment.skips):
                reducer.synchronize()
            if closure is not None and not attachment.skips:
                closure = ReducedClosure(closure, reducer)
        base_step = attachment.inner_step or super().step
        result = base_step(**kwargs) if closure is None else base_step(closure, **kwargs)
        if reducer is not None:
            reducer.begin_round()
        return result

    # Schedulers wrap `step` of an optimizer to learn whether it was called, unless one of them has
    # done so; torch wraps it to run step hooks, which the optimizer's own `step` does already.
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Wait until every gradient is reduced over the ranks: to clip them, or to look at them.

        A `step()` that follows does not reduce them again. Outside of `skip_synchronize()` it
        warns, since Horovod does, and a program that clips gradients is wrong there.

        Raises:
            MismatchError, PeerLost, Stalled: as the reduction.
        """
        self._kadril.refresh(self)
        # With Adasum nothing can be skipped on several ranks, so a program that runs on any number
        # of them does not either.
        self._kadril.is_synchronized = self._kadril.settings.op != Adasum
        if self._kadril.reducer is not None:
            self._kadril.reducer.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Have `step()` take gradients as they are, within this context.

        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        """
        self._kadril.skips = True
        try:
            yield
        finally:
            self._kadril.skips = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients, as torch does.

        Gradients that are on their way, since `backward()` was called and `step()` was not, are
        awaited first: peers count on them.

        Args:
            set_to_none: make them None rather than zeros. Both cost about the same here: with None
                small gradients are copied into their bucket, with zeros autograd adds them there.
        """
        attachment = self._kadril
        attachment.refresh(self)
        attachment.is_synchronized = False
        reducer = attachment.reducer
        if reducer is None:
            super().zero_grad(set_to_none)
            return
        reducer.drop_round()
        if reducer.is_left:
            super().zero_grad(set_to_none=True)  # peers may still read what is in buckets
            return
        reducer.adopt()
        if set_to_none:
            super().zero_grad(set_to_none=True)
            return
        in_buckets = reducer.zero_buckets()
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None and id(gradient) not in in_buckets:
                    gradient.detach_()
                    gradient.zero_()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as torch does; between steps, and on every rank alike."""
        super().add_param_group(param_group)
        attachment = self._kadril
        if attachment.reducer is not None:
            added = {id(p) for p in self.param_groups[-1]["params"]}
            named = attachment.names.of(self)
            attachment.reducer.add([(name, p) for name, p in named if id(p) in added])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load state and options, as torch does, and count backward passes anew."""
        if self._kadril.reducer is not None:
            self._kadril.reducer.drop_round()
        super().load_state_dict(state_dict)


def warn_of_second_reduction() -> None:
    """Warn of a `step()` that would reduce gradients a second time with Horovod."""
    warnings.warn(
        "optimizer.step() called without optimizer.skip_synchronize() after"
        " optimizer.synchronize(): gradients are reduced already. kadril does not reduce them"
        " again, Horovod would. Write `with optimizer.skip_synchronize(): optimizer.step()`",
        stacklevel=3,
    )
