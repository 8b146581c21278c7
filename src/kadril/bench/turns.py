"""Settings of one program take turns in the same processes, and are timed alike.

    round 1    alone    kadril   DDP                    one turn
    round 2    kadril   DDP      alone                  enter, warm up,
    round 3    DDP      alone    kadril                 | barrier |clock call ... call clock|  ...,
                                                        leave

A burst of noise so meets all settings of a round, and a ratio taken round by round does not see it.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TypeAlias

__all__ = ["Samples", "Setting", "slowest", "take_turn", "take_turns"]

# Seconds per call: by setting, by round, by sample.
Samples: TypeAlias = dict[str, list[list[float]]]


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


def take_turns(
    settings: Sequence[Setting],
    *,
    num_rounds: int,
    barrier: Callable[[], object],
    tell: Callable[[str], None] = lambda text: None,
) -> Samples:
    """Let all settings take turns, as this rank sees it; collective.

    Args:
        settings: in the order of the first round; the same on all ranks.
        num_rounds: how often each has its turn.
        barrier: lets all ranks start a sample together; the same for all settings.
        tell: is given what happens, line by line.
    """
    samples: Samples = {setting.name: [] for setting in settings}
    for number in range(num_rounds):
        tell(f"round {number + 1} of {num_rounds}")
        first = number % len(settings)
        for setting in (*settings[first:], *settings[:first]):
            gc.collect()
            samples[setting.name].append(take_turn(setting, barrier))
    return samples


def take_turn(setting: Setting, barrier: Callable[[], object]) -> list[float]:
    """The samples of one turn."""
    if setting.enter is not None:
        setting.enter()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(setting.num_warm_ups):
            setting.call()
        return [take_sample(setting, barrier) for _ in range(setting.num_samples)]
    finally:
        if was_enabled:
            gc.enable()
        if setting.leave is not None:
            setting.leave()


def take_sample(setting: Setting, barrier: Callable[[], object]) -> float:
    """Seconds per call, from a barrier on."""
    call = setting.call
    barrier()
    start = perf_counter()
    for _ in range(setting.num_calls):
        call()
    return (perf_counter() - start) / setting.num_calls * setting.scale


def slowest(by_rank: Sequence[Mapping[str, Sequence[Sequence[float]]]]) -> Samples:
    """Each sample as its slowest rank saw it."""
    return {
        name: [
            [max(sample) for sample in zip(*turns, strict=True)]
            for turns in zip(*(samples[name] for samples in by_rank), strict=True)
        ]
        for name in by_rank[0]
    }
