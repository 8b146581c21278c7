"""The reducer: brings the gradients of all ranks together, one round per step.

    backward()    hooks count gradients; a unit whose last one came is submitted,    arrived
                  where that pays (overlap.py)
    step()        what is left is submitted, with zeros for what never came          synchronize
                  the census says what came on any rank                              complete
                  `.grad` is the result on every rank
    next round    everything counts anew                                             begin_round

Every rank submits every unit exactly once per round, whatever its own graph looked like, so that
ranks never wait for a request that a peer has no reason to make.
"""

from __future__ import annotations

import contextlib
import hashlib
import weakref
from collections.abc import Sequence
from typing import TypeGuard

import torch

from kadril.errors import MismatchError, PeerError, StateError, TransportError
from kadril.shared_engine.context import context
from kadril.torch.agreement import check_same
from kadril.torch.optimizer.bucket import Bucket
from kadril.torch.optimizer.bucket_plan import is_large, plan_units
from kadril.torch.optimizer.census import Census, Findings
from kadril.torch.optimizer.large_gradient import LargeGradient
from kadril.torch.optimizer.overlap import should_overlap
from kadril.torch.optimizer.parameter_slot import ParameterSlot
from kadril.torch.optimizer.reduction_unit import Status, Unit
from kadril.torch.optimizer.settings import Groups, Settings
from kadril.torch.optimizer.sparse import SparseUnit
from kadril.world import current

__all__ = ["Reducer"]

# Who reduces the gradient of a parameter, by id; a reducer keeps its parameters alive.
_reducers: weakref.WeakValueDictionary[int, Reducer] = weakref.WeakValueDictionary()

# Reducers whose gradients have all come and are not submitted yet.
_held: weakref.WeakSet[Reducer] = weakref.WeakSet()


class Reducer:
    """Reduces the gradients of a list of parameters.

    Args:
        prefix: start of the names of its requests; the same on all ranks.
        settings: of the optimizer.

    Attributes:
        num_passes: backward passes in a round.
        has_news: whether a gradient came since the last reduction.
        overlaps: whether units are submitted during the backward pass.
        engine: that the gradients are submitted to.
    """

    def __init__(self, prefix: str, settings: Settings) -> None:
        self.prefix = prefix
        self.settings = settings
        self.num_passes = settings.num_passes
        self.slots: list[ParameterSlot] = []
        self.units: list[Unit] = []
        self.has_news = False
        self.engine = context().engine
        self.overlaps = should_overlap(current())
        self._waiting: list[tuple[str, torch.Tensor]] = []  # frozen, or without a shape yet
        self._absent: list[ParameterSlot] = []  # had no gradient when their unit was launched
        self._num_buckets = 0
        self._num_to_launch = 0
        self._num_incomplete = 0
        self._is_complete = False
        self._detached_because = ""
        self._census = Census(prefix, settings.process_set)

    # ---- parameters -----------------------------------------------------------------------------

    def add(self, named: Sequence[tuple[str, torch.Tensor]], groups: Groups = None) -> None:
        """Take parameters in; between rounds. Frozen ones are taken when they are frozen no more.

        Raises:
            ValueError: `groups` does not match the parameters.
        """
        self._waiting += [pair for pair in named if not is_trainable(pair[1])]
        ready = [pair for pair in named if is_trainable(pair[1])]
        if not ready:
            return
        slots = [
            self.make_slot(index, name, parameter)
            for index, (name, parameter) in enumerate(ready, len(self.slots))
        ]
        try:
            parts = plan_units(slots, groups)
        except BaseException:
            for slot in slots:
                slot.detach()
            raise
        self.slots += slots
        # Where a GPU computes gradients the core has nothing better to do.
        self.overlaps = self.overlaps or any(not p.is_cpu for _, p in ready)
        for part in parts:
            unit = self.make_unit(part)
            for slot in part:
                slot.unit = unit
            self.units.append(unit)
        self._num_to_launch += len(parts)
        self._num_incomplete += len(parts)
        digest = hashlib.sha256("\n".join(self.layout()).encode()).digest()
        self._census.resize(len(self.slots), digest)

    def make_slot(self, index: int, name: str, parameter: torch.Tensor) -> ParameterSlot:
        """A slot for a parameter, which belongs to this reducer from now on."""
        other = _reducers.get(id(parameter))
        if other is not None and other is not self:
            other.detach(
                "its parameters were given to another one, which reduces their gradients; use that"
                " one, or give each its own parameters"
            )
        _reducers[id(parameter)] = self
        return ParameterSlot(index, name, parameter, self)

    def make_unit(self, part: Sequence[ParameterSlot]) -> Unit:
        """A unit for slots that travel together."""
        if is_large(part):
            return LargeGradient(f"{self.prefix}.{part[0].name}", part[0], self.settings)
        self._num_buckets += 1
        return Bucket(f"{self.prefix}.bucket.{self._num_buckets - 1}", part, self.settings)

    def adopt(self) -> bool:
        """Take in what was frozen, or had no shape, and is trainable by now."""
        if not any(is_trainable(parameter) for _, parameter in self._waiting):
            return False
        named, self._waiting = self._waiting, []
        self.add(named)
        return True

    def detach(self, reason: str = "it was replaced") -> None:
        """Stop listening to the parameters.

        Args:
            reason: shown to users who call it anyway.
        """
        self._detached_because = reason
        _held.discard(self)
        for slot in self.slots:
            slot.detach()

    def check_attached(self) -> None:
        """Raise `StateError` where this does not reduce any more."""
        if self._detached_because:
            raise StateError(
                f"this DistributedOptimizer does not reduce gradients: {self._detached_because}"
            )

    # ---- a round --------------------------------------------------------------------------------

    def begin_round(self) -> None:
        """Begin a new round: no gradient has come."""
        self.rearm()
        self._is_complete = False
        self.has_news = False

    def drop_round(self) -> None:
        """Begin anew without a step; what peers count on is reduced first.

        Where the ranks leave the engine, nobody counts on it any more: this reducer ends.
        """
        if self.is_left:
            self.abandon()
            return
        if self.has_news:
            self.synchronize()
        self.begin_round()

    @property
    def is_left(self) -> bool:
        """Whether the ranks have left the engine of this reducer, or are about to."""
        return self.engine.is_left

    def abandon(self) -> None:
        """Forget the round for good, without waiting for anything.

        Requests may be under way, and ranks that live may still read what was submitted: so no
        memory is touched. It is kept with each request until that has ended.
        """
        self.detach("a rank was lost; it reduces again when the ranks have met again")
        self.has_news = False

    def rearm(self) -> None:
        """Be ready for `num_passes` more backward passes."""
        _held.discard(self)
        num_passes = self.num_passes
        for slot in self.slots:
            slot.left = num_passes
        for unit in self.units:
            unit.num_missing = len(unit.slots)
            unit.status = Status.COLLECTING
            if isinstance(unit, LargeGradient):
                unit.forget()
        self._num_to_launch = self._num_incomplete = len(self.units)
        self._absent.clear()
        self._census.reset()

    def arrived(self, unit: Unit) -> None:
        """A unit has all its gradients: submit it now, or with all others when they are needed."""
        self._num_incomplete -= 1
        if self.overlaps:
            self.launch(unit)
        elif self._num_incomplete == 0:
            _held.add(self)

    def launch(self, unit: Unit) -> None:
        """Submit a unit; after the last one, the census."""
        with torch.no_grad():
            unit.launch()
        self._num_to_launch -= 1
        if self._num_to_launch == 0:
            self._census.launch()

    def note_absent(self, slot: ParameterSlot) -> None:
        """A unit found no gradient."""
        self._absent.append(slot)
        self._census.mark_absent(slot.index)

    def note_sparse(self, slot: ParameterSlot, sparse_dim: int) -> None:
        """A unit found a sparse gradient where a dense one is expected."""
        self._census.mark_sparse(slot.index, sparse_dim)

    def settle(self) -> None:
        """Wait for the gradients where all of them came.

        Where some did not, a peer may wait in the same way for one of those, and neither would end.
        """
        if self._num_incomplete == 0 and not self._is_complete and not self.is_left:
            launch_held()
            self.complete()

    def synchronize(self) -> None:
        """Reduce everything that was not reduced yet, and be ready for more backward passes.

        Raises:
            MismatchError, PeerLost, Stalled: as the reduction itself; the next round works after a
                mismatch.
            StateError: another optimizer has taken the parameters.
        """
        self.check_attached()
        if not self._is_complete or self.has_news:
            self._is_complete = False
            try:
                launch_held()
                self.launch_rest()
            except (PeerError, TransportError):
                # A request was refused, as a rank is lost; those before it end for that reason too.
                self.fail_round()
                raise
            self.complete()
            # Unfrozen within this round: no hook has counted it, and its gradient is there.
            if self.adopt():
                self._census.reset()
                self.launch_rest()
                self.complete()
        self.rearm()

    def launch_rest(self) -> None:
        """Submit what waits for gradients that will not come any more."""
        for unit in self.units:
            if unit.status is Status.COLLECTING:
                self.launch(unit)

    def complete(self) -> None:
        """Wait for everything, and give every parameter the gradient it should have."""
        try:
            with torch.no_grad():
                findings = self._census.wait()
                self.check_layout()
                self.agree_on_kinds(findings)
                self.wait_for_units()
                if findings is not None:
                    self.give_to_absent(findings)
                    self.restore_sparse(findings)
        except Exception:
            if self._census.is_layout_equal:
                self.fail_round()
            raise
        self._absent.clear()
        self._is_complete = True
        self.has_news = False

    def fail_round(self) -> None:
        """Begin anew after an error."""
        # What is still in flight has to land: its memory is used again in the next round.
        with contextlib.suppress(Exception):
            self._census.wait()
        with contextlib.suppress(Exception):
            self.wait_for_units()
        self.begin_round()

    def check_layout(self) -> None:
        """Raise `MismatchError`, on every rank, where ranks have different parameters.

        Their buckets may have the same size nevertheless, with other elements in them.
        """
        if not self._census.is_layout_equal:
            self.detach("ranks have different parameters, as a MismatchError has told")
            check_same("DistributedOptimizer", self.layout(), self.settings.process_set)
            raise MismatchError("DistributedOptimizer: ranks do not reduce the same gradients")

    def layout(self) -> list[str]:
        """Describe what has to be the same on all ranks."""
        settings = self.settings
        return [
            f"op={settings.op}, gradient_predivide_factor={settings.predivide},"
            f" compression={settings.compression.__name__},"
            f" sparse_as_dense={settings.sparse_as_dense}"
        ] + [
            f"parameter {slot.name!r}: {slot.parameter.dtype} {tuple(slot.parameter.shape)}"
            for slot in self.slots
        ]

    def agree_on_kinds(self, findings: Findings | None) -> None:
        """Submit large gradients that were held back until it was known how they travel."""
        for place, unit in enumerate(self.units):
            if not is_open_question(unit):
                continue
            (slot,) = unit.slots
            sparse_dim = 0 if findings is None else findings.sparse_dims[slot.index]
            if findings is not None and findings.is_absent(slot.index):
                continue  # nothing to send, nothing learned
            is_dense = findings is None or findings.dense[slot.index]
            if is_dense or self.settings.sparse_as_dense:
                unit.is_agreed = True
                if unit.status is Status.HELD:
                    unit.submit()
            else:
                self.units[place] = self.make_sparse(slot, sparse_dim)
                self.units[place].launch()

    def make_sparse(self, slot: ParameterSlot, sparse_dim: int) -> SparseUnit:
        """Let a parameter travel as rows; all ranks come here in the same round."""
        unit = SparseUnit(f"{self.prefix}.{slot.name}", slot, sparse_dim, self.settings)
        slot.unit = unit
        slot.view = None
        self._census.expect_sparse(slot.index, sparse_dim)
        return unit

    def wait_for_units(self) -> None:
        """Wait for those in flight, also after one failed; raise the first failure."""
        failure: Exception | None = None
        for unit in self.units:
            if unit.status is Status.IN_FLIGHT:
                try:
                    unit.wait()
                except Exception as error:  # the others are awaited nevertheless
                    failure = failure or error
        if failure is not None:
            raise failure

    def give_to_absent(self, findings: Findings) -> None:
        """Give a parameter without a gradient here the one that other ranks had."""
        for slot in self._absent:
            if findings.is_absent(slot.index):
                continue
            if isinstance(slot.unit, LargeGradient):
                slot.unit.give()
            elif slot.view is not None:
                slot.parameter.grad = slot.view

    def restore_sparse(self, findings: Findings) -> None:
        """Make sparse again what travelled as dense: some optimizers take nothing else."""
        for slot in self.slots:
            sparse_dim, gradient = findings.sparse_dims[slot.index], slot.parameter.grad
            if not sparse_dim or gradient is None or isinstance(slot.unit, SparseUnit):
                continue
            slot.parameter.grad = gradient.to_sparse(sparse_dim)
            if not self.settings.sparse_as_dense:
                self.travel_as_rows(slot, sparse_dim)

    def travel_as_rows(self, slot: ParameterSlot, sparse_dim: int) -> None:
        """Send a gradient as rows from the next round on; all ranks do so in the same round."""
        unit = slot.unit
        if isinstance(unit, Bucket):
            unit.give_up(slot)
        if not isinstance(unit, Bucket) or not unit.slots:
            self.units.remove(unit)
        self.units.append(self.make_sparse(slot, sparse_dim))
        self.units[-1].status = Status.DONE

    # ---- zero -----------------------------------------------------------------------------------

    def zero_buckets(self) -> set[int]:
        """Set the gradients that lie in buckets to zero, and give the ids of those tensors."""
        for unit in self.units:
            if isinstance(unit, Bucket):
                unit.flat.zero_()
        return {id(slot.view) for slot in self.slots if slot.view is not None}


def launch_held() -> None:
    """Submit what came, of all optimizers: a peer may step them in another order than this rank."""
    while _held:
        reducer = _held.pop()
        if not reducer.is_left:
            reducer.launch_rest()


def is_trainable(parameter: torch.Tensor) -> bool:
    """Whether a parameter can get a gradient: it has a shape, and is not frozen."""
    is_lazy = isinstance(parameter, torch.nn.parameter.UninitializedParameter)
    return not is_lazy and parameter.requires_grad


def is_open_question(unit: Unit) -> TypeGuard[LargeGradient]:
    """Whether ranks have not agreed yet in which form a unit travels."""
    return isinstance(unit, LargeGradient) and not unit.is_agreed
