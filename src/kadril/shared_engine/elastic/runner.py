"""`run`: training again after a rank was lost, or hosts came or went."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from kadril import world
from kadril.errors import KadrilError, PeerLost, RendezvousError, Revoked, Stalled, TransportError
from kadril.shared_engine.basics import init, is_initialized, shutdown
from kadril.shared_engine.context import give_up_engine
from kadril.shared_engine.elastic.interrupt import HostsUpdatedInterrupt
from kadril.shared_engine.elastic.preemption import hears_signals
from kadril.shared_engine.elastic.state import State
from kadril.world.job_messages import MessageKind
from kadril.world.membership import Membership, find_membership
from kadril.world.session import MAX_FAILED_MEETINGS

__all__ = ["RETRIED", "reset", "run", "run_with"]

logger = logging.getLogger("kadril")

P = ParamSpec("P")
R = TypeVar("R")
StateT = TypeVar("StateT", bound=State)

# The group of ranks cannot go on, and another one can. All others are errors of the program.
RETRIED = (PeerLost, Stalled, Revoked, TransportError, RendezvousError)


def run(func: Callable[Concatenate[StateT, P], R]) -> Callable[Concatenate[StateT, P], R]:
    """Make a training function continue when ranks change; collective.

        while not done:
            state.on_reset()         where the ranks have met again
            state.sync()             rank 0's state to all
            func(state, ...)         done when it returns
              PeerLost, Stalled ...  a rank is gone, or too late: back to the last commit
              HorovodInternalError   raised by the program, to make up such a failure: likewise
              HostsUpdatedInterrupt  hosts came or went: the state is kept
            reset()                  the ranks meet again

    Any other error is raised: a `MismatchError` is an error in the program, and would come again.
    The launcher is told, and ends the job.

    Args:
        func: takes a `State` first. It is called again with the same arguments, so it has to
            continue from what the state says.
    """
    return run_with(func)


def run_with(
    func: Callable[Concatenate[StateT, P], R],
    errors: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    meet: Callable[[], None] | None = None,
) -> Callable[Concatenate[StateT, P], R]:
    """Make the same of a function of a framework that has classes of errors of its own.

    Args:
        func: see `run`.
        errors: makes a context in which they are raised as those of kadril.
        meet: what to do in place of `reset`.
    """

    @functools.wraps(func)
    def runs(state: StateT, /, *args: P.args, **kwargs: P.kwargs) -> R:
        membership = find_membership()
        with hears_signals(membership):
            has_met_again, syncs = False, True
            while True:
                try:
                    with errors():
                        if has_met_again:
                            state.on_reset()
                        if syncs:
                            sync(state, membership)
                        return func(state, *args, **kwargs)
                except KadrilError as error:
                    if not is_retried(error):
                        give_up(membership, error)
                        raise
                    logger.warning("elastic: back to the last commit, since %s", error)
                    if membership is not None and isinstance(error, Stalled):
                        membership.blame(error.rank)
                    give_up_engine()  # or `restore` would reduce with the lost rank
                    state.detach()
                    state.restore()
                    keeps_state = False
                except HostsUpdatedInterrupt as interrupt:
                    logger.info("elastic: %s", interrupt)
                    keeps_state = interrupt.skip_sync and not state.always_syncs
                syncs = meet_again(meet or reset, membership, keeps_state=keeps_state)
                has_met_again = True

    return runs


def is_retried(error: KadrilError) -> bool:
    """Whether ranks that go back and meet again may get on.

    Nothing in kadril raises the root of its errors, which Horovod's programs know as
    `HorovodInternalError`: it comes from the program, which wants to see its ranks go back.
    """
    return isinstance(error, RETRIED) or type(error) is KadrilError


def meet_again(
    meet: Callable[[], None], membership: Membership | None, *, keeps_state: bool
) -> bool:
    """Leave the world and meet the ranks of the next one; collective over those who come.

    Args:
        meet: leaves the one and meets in the other.
        membership: of this process.
        keeps_state: whether its state is the one that all ranks had when they left.

    Returns:
        whether the ranks have to bring their states together.
    """
    if membership is not None:
        membership.keeps_state = keeps_state
    meet()
    if membership is None or membership.roster is None:
        return not keeps_state
    # Others may be new, or have noticed a lost rank and gone back. The launcher has heard of all.
    return membership.roster.syncs


def sync(state: State, membership: Membership | None) -> None:
    """Take over the state of rank 0, and tell the launcher; collective.

    Raises:
        HostsUpdatedInterrupt: a rank was kept for this only, and leaves now; on every rank.
    """
    if membership is not None:
        membership.is_joining = False  # from here on it does as the others do
    state.sync()
    tell_synced(membership)
    if membership is not None and membership.roster is not None and membership.roster.hands_over:
        raise HostsUpdatedInterrupt(skip_sync=True)


def reset(reopen: Callable[[], object] | None = None) -> None:
    """Leave the world and meet again; collective over those who come.

    Args:
        reopen: leaves the world and opens the next one, if it is to be done in another way.

    Raises:
        SystemExit: hosts went, and there is no place for this rank any more; it ends well.
        RendezvousError, TransportError, PeerError: ranks could not meet several times, although
            none of them is known to have died; or there is no launcher that brings others.
    """
    num_failed = 0
    reopen = reopen or (reopen_engine if is_initialized() else reopen_world)
    while True:
        try:
            reopen()
        except RETRIED as error:
            membership = find_membership()
            if membership is None:
                raise
            if not membership.is_cancelled():  # or the launcher has gone, and this raises
                num_failed += 1
                if num_failed == MAX_FAILED_MEETINGS:
                    raise
            logger.warning("elastic: a rank was lost while the ranks met: %s", error)
        else:
            return


def reopen_engine() -> None:
    """Leave the world and the engine, and open both again."""
    shutdown()
    init()


def reopen_world() -> None:
    """Leave the world and open the next one: without an engine, as new ranks do."""
    shutdown()
    world.init()


def tell_synced(membership: Membership | None) -> None:
    """Tell the launcher that this rank has the state of the job."""
    if membership is not None and membership.roster is not None:
        membership.say(MessageKind.SYNCED, generation=membership.roster.generation)


def give_up(membership: Membership | None, error: KadrilError) -> None:
    """Tell the launcher that the program has an error, which is not worth another generation."""
    if membership is not None:
        reason = f"{type(error).__name__}: {error}"
        membership.say(MessageKind.FATAL, reason=reason[:4000])
