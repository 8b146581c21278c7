"""Settings of one program that take turns in the same processes, and are timed alike.

one turn    enter, warm up, | barrier |clock call ... call clock|  ..., leave
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Sequence
from functools import partial

from harness.turns import Samples, take_turns
from kadril.bench.timing import take_samples

__all__ = ["Setting", "time_settings", "time_turn"]


@dataclasses.dataclass(frozen=True)
class Setting:
    """One way to do the work.

    Attributes:
        name: of the setting.
        call: does the work once.
        num_calls: calls per sample, timed together.
        num_samples: samples per turn; a barrier is before each.
        num_warm_ups: calls at the begin of a turn that are not timed.
        scale: a sample is multiplied by it. For a call that does only a part of the work, where the
            whole would take too long.
        enter: called before a turn, outside of the timing; `leave` after it.
        leave: see `enter`.
    """

    name: str
    call: Callable[[], object]
    num_calls: int = 1
    num_samples: int = 1
    num_warm_ups: int = 1
    scale: float = 1.0
    enter: Callable[[], object] | None = None
    leave: Callable[[], object] | None = None


def time_settings(
    settings: Sequence[Setting], *, num_rounds: int, barrier: Callable[[], object]
) -> Samples:
    """Let all settings take turns; return the samples as this rank sees them. Collective.

    Args:
        settings: in the order of the first round; the same on all ranks.
        num_rounds: how often each has its turn.
        barrier: lets all ranks start a sample together; the same for all settings.
    """
    takers = {setting.name: partial(time_turn, setting, barrier) for setting in settings}
    return take_turns(takers, num_rounds)


def time_turn(setting: Setting, barrier: Callable[[], object]) -> list[float]:
    """Return the samples of one turn: seconds per call, as this rank sees them. Collective."""
    gc.collect()
    if setting.enter is not None:
        setting.enter()
    try:
        samples = take_samples(
            setting.call,
            barrier=barrier,
            num_calls=setting.num_calls,
            num_samples=setting.num_samples,
            num_warm_ups=setting.num_warm_ups,
        )
    finally:
        if setting.leave is not None:
            setting.leave()
    return [sample * setting.scale for sample in samples]
