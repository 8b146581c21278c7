"""The event loop of an elastic job: which exits end it, and which begin a new generation.

    a worker fails --> its peers raise, restore, and say READY   (those that live stay as they are)
                   --> another one is started in its place, and says READY
    all are READY  --> ROSTER to all: the next generation meets

    slots come     --> workers are started; when they are READY, UPDATE to the others,
                       who say READY at their next commit
    slots go       --> UPDATE; the newest get LEAVE instead of a ROSTER

    a rank is killed before any has a state --> all are ended, and started anew

    a rank is sent SIGTERM --> PREEMPT and UPDATE to all: it gets LEAVE at the next commit. The last
                       one that has the state gets a ROSTER before, with one that is to take it over

The job fails where fewer than `min_ranks` are left and no more can be had, where nobody has its
state any more, after `reset_limit` generations, and where a program says that it cannot go on.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import time
from functools import partial

from kadril.errors import RendezvousError
from kadril.launch.elastic.fresh_start import FreshStart
from kadril.launch.elastic.worker import Worker
from kadril.launch.elastic.worker_set import WorkerSet, assign_ranks
from kadril.launch.elastic.worker_signals import signal_handlers, tell_of_end, tell_to_commit
from kadril.launch.elastic.worker_slots import WorkerSlots
from kadril.launch.elastic.worker_start import WorkerStart
from kadril.launch.local.job import Job
from kadril.launch.local.local_host import LocalHost
from kadril.launch.options import ElasticOptions, LaunchError, RunOptions
from kadril.launch.supervision.signal_inbox import SignalInbox
from kadril.launch.supervision.summary import RankExit, describe_status
from kadril.launch.supervision.supervisor import INTERRUPTS, LAST_WORDS, Supervisor
from kadril.world.job_messages import JobMessage, MessageKind

__all__ = ["ElasticSupervisor"]

# As `HostUpdateResult` has them.
REMOVED, ADDED = 1, 2

# How long ranks may take to come to the end after the first one that has, if they are too few.
ENDING_SECONDS = 60.0

# How long a spare process is not started after a failure: those that recover need the cores.
REFILL_SECONDS = 1.0


class ElasticSupervisor(Supervisor):
    """Watches the workers of an elastic job to their end, and reports.

    Attributes:
        workers: the workers that live.
    """

    _starter: WorkerStart  # from `begin()` on

    def __init__(
        self, options: RunOptions, elastic: ElasticOptions, inbox: SignalInbox, job: Job
    ) -> None:
        super().__init__(options, inbox)
        self.workers = WorkerSet()
        self._elastic = elastic
        self._job = job
        self._host: LocalHost | None = None
        self._slots = WorkerSlots(
            elastic, options.num_ranks, job.id, self.selector, self.output.notice
        )
        self._fresh_start = FreshStart(elastic.timeout)
        self._last_failure: RankExit | None = None
        self._late: dict[int, float] = {}  # when workers that do not answer are ended, by place
        self._short_since = math.inf  # since when there are too few
        self._ready_since = math.inf  # since when a worker waits for the others
        self._refill_at = -math.inf  # when a spare process may be started
        self._must_end_at = math.inf  # by when few ranks have to be at the end of the program
        self._worked_at = -math.inf  # when `_work` was called last
        self._modules: list[str] = []  # that ranks have loaded

    def __exit__(self, error_type: type[BaseException] | None, *rest: object) -> None:
        self._slots.close()
        super().__exit__(error_type, *rest)
        for worker in self.workers.by_place.values():
            worker.close()

    def _finish_hosts(self) -> None:
        self._slots.close()  # a script that runs is not what ranks have left behind
        super()._finish_hosts()

    def begin(self, host: LocalHost, starter: WorkerStart) -> None:
        """Start the first workers, when there are slots for them.

        Args:
            host: on which they are started.
            starter: how.

        Raises:
            LaunchError: there are too few in time, or one cannot be started.
        """
        self._host, self._starter = host, starter
        self.add(host)
        discovery = self._slots.discovery
        if discovery is not None:
            deadline = time.monotonic() + self._elastic.timeout
            if not self.wait(lambda: self._slots.has_enough, deadline):
                raise LaunchError(
                    f"{self._elastic.discovery_script} lists {discovery.num_slots or 0} slots"
                    f" of this host, and --min-np is {self._elastic.min_ranks};"
                    f" waited {self._elastic.timeout:g} s (--elastic-timeout)"
                )
        while len(self.workers.by_place) < self._slots.target:
            self._start_worker()

    def _num_wanted(self, now: float) -> int:
        """Number of processes that there should be: ranks, and spare ones while the job trains."""
        has_spares = self.workers.has_state and now >= self._refill_at
        has_spares = has_spares and not self._starter.is_preparing  # they are forked, then
        return self._slots.target + self._elastic.num_spares * has_spares

    def _num_missing(self, now: float) -> int:
        """Number of processes to be started, as far as there are places for them."""
        workers = self.workers
        num_living = len(workers.by_place)
        num_wanted = self._num_wanted(now)
        if workers.must_hand_over and not workers.staying and self._slots.target > 0:
            num_wanted = max(num_wanted, num_living + 1)  # to take over the state
        return min(num_wanted, self._options.num_places) - num_living

    @property
    def _is_ending(self) -> bool:
        return self._failed or self._stopping or bool(self._interrupted_by)

    def _start_worker(self) -> None:
        """Start a worker at the lowest place that is free.

        Raises:
            LaunchError: it cannot be started.
        """
        try:
            worker = self.workers.add()
        except OSError as error:
            raise LaunchError(f"no connection to it: {error.strerror}") from error
        try:
            worker.pid = self._starter.start(worker)
        except BaseException:
            del self.workers.by_place[worker.place]
            worker.close()
            raise
        worker.theirs.close()
        self.selector.register(worker, selectors.EVENT_READ, partial(self._hear, worker))
        self.tell(f"worker {worker.place} is process {worker.pid}")

    # Messages of workers.

    def _hear(self, worker: Worker) -> None:
        try:
            messages = worker.receive()
        except RendezvousError as error:
            self.output.notice(f"worker {worker.place} is not heard any more: {error}")
            messages = None
        if messages is None:
            self._forget(worker)
            return
        for message in messages:
            self._note(worker, message)

    def _forget(self, worker: Worker) -> None:
        # It may live on with its end closed; its exit is what counts.
        if worker.fileno() in self.selector.get_map():
            self.selector.unregister(worker)

    def _note(self, worker: Worker, message: JobMessage) -> None:
        kind = message.kind
        if kind is MessageKind.LISTENS:
            worker.listens = True
            self._modules = message.text("modules").split()
        elif kind is MessageKind.SYNCED:
            worker.has_state = self.workers.has_state = True
            self._slots.cooldown.note_success()
            self._prepare_forks()
        elif kind is MessageKind.FATAL:
            worker.fatal = message.text("reason")
        elif kind is MessageKind.READY:
            worker.is_ready = True
            worker.keeps_state = bool(message.number("keeps"))
            self._late.pop(worker.place, None)
            for other in self.workers.busy:
                if other.rank == message.number("stalled"):
                    self._late[other.place] = time.monotonic() + LAST_WORDS
            if self._is_ending:
                self._dismiss(worker, code=1)
        elif kind is MessageKind.PREEMPTED:
            self._preempt(worker, message.number("signal"))

    def _prepare_forks(self) -> None:
        """Get ready to fork workers, if more may be needed."""
        elastic = self._elastic
        may_need_more = elastic.replaces or self._slots.discovery is not None
        if not (elastic.has_fork_server and may_need_more) or self._starter.fork_client is not None:
            return
        self._starter.prepare_forks(self._modules)
        if self._starter.fork_client is not None:
            self.selector.register(
                self._starter.fork_client, selectors.EVENT_READ, self._hear_fork_server
            )

    def _hear_fork_server(self) -> None:
        client = self._starter.fork_client
        if client is None:
            return
        client.hear()
        if client.problem:
            self.selector.unregister(client)
            self.tell(f"ranks are started, and not forked: {client.problem}")
        else:
            self.tell(f"process {client.pid} is ready to fork ranks")

    def _preempt(self, worker: Worker, signum: int) -> None:
        leaves = signum == signal.SIGTERM
        for other in self.workers.busy:
            other.send(MessageKind.PREEMPT, leaves=self._is_ending)
            if leaves and not self._is_ending:
                other.was_updated = True
                other.send(MessageKind.UPDATE, change=REMOVED)
        if leaves and not worker.is_leaving:
            worker.is_leaving = True
            self._slots.note_loss()

    def _dismiss(self, worker: Worker, code: int = 0) -> None:
        code = 0 if worker.is_leaving else code  # what the job comes to is nothing to it
        # Nor is what it has of use to the job.
        worker.is_leaving, worker.is_ready, worker.has_state, worker.rank = True, False, False, -1
        worker.send(MessageKind.LEAVE, code=code)

    # Ends of workers.

    def _judge(self, fresh: list[RankExit], now: float) -> None:
        # Of those seen at the same moment, the killed ones are the likelier cause.
        for ended in sorted(fresh, key=lambda each: each.status > 0):
            worker = self.workers.by_place.pop(ended.rank)
            if worker.fileno() in self.selector.get_map():
                self._hear(worker)  # its last words
            self._forget(worker)
            self._late.pop(worker.place, None)
            worker.close()
            if self._is_ending:
                self._exits.append(ended)
                continue
            self._judge_one(worker, ended, now)
            has_failed = ended.status != 0 or worker.rank < 0
            if self._host is not None and has_failed and not self._is_ending:
                self._host.go_on_without(worker.pid)
        if not self.workers.by_place:
            self._judge_held(now)
        has_ended = not self.workers.by_place and not self.workers.is_finishing
        if has_ended and not self._fresh_start.is_under_way and not self._is_ending:
            self._fail("all ranks have left, and none has come to the end of the program")

    def _judge_one(self, worker: Worker, ended: RankExit, now: float) -> None:
        if worker.rank >= 0:
            # However it has ended: others may be about to meet it.
            for other in self.workers.by_place.values():
                other.send(MessageKind.LOST, generation=self.workers.generation)
        if worker.is_leaving and worker.rank < 0:
            return
        if ended.status == 0 and worker.rank < 0 and self.workers.generation >= 0:
            # Its program does without kadril, or without a rank.
            self._slots.cooldown.note_failure(now)
            return
        if ended.status == 0:
            self._exits.append(ended)
            self.workers.is_finishing = True
            time_to_end = min(ENDING_SECONDS, self._elastic.timeout)
            self._must_end_at = min(self._must_end_at, now + time_to_end)
            return
        if worker.is_leaving:
            self._last_failure = ended
            how = describe_status(ended.status)
            self.output.notice(f"rank {worker.rank} failed before it could leave: {how}")
            return
        self._judge_failure(worker, ended, now)

    def _judge_failure(self, worker: Worker, ended: RankExit, now: float) -> None:
        ranked = [each for each in self.workers.by_place.values() if each.rank >= 0]
        if worker.fatal:
            self._fail(f"the program cannot go on: {worker.fatal}", ended)
        elif not worker.listens and self._fresh_start.is_possible(self.workers, ended, now):
            self._start_afresh(worker, ended)
        elif self.workers.generation < 0 or not (worker.listens or any(r.listens for r in ranked)):
            # Nobody has begun, or nobody would begin again.
            if not self._fresh_start.hold(ended, now):
                super()._judge([*self._fresh_start.take_held(), ended], now)
        elif not ranked:
            self._fail("all ranks of the job have failed, and its state is lost", ended)
        else:
            self._recover(worker, ended, now)

    def _judge_held(self, now: float) -> None:
        held = self._fresh_start.take_held()
        if held and not self._is_ending:
            super()._judge(held, now)

    def _start_afresh(self, worker: Worker, ended: RankExit) -> None:
        """End all ranks: others are started when these are gone."""
        self._last_failure = ended
        self._slots.note_loss()
        self._fresh_start.begin()
        for other in self.workers.by_place.values():
            other.is_leaving, other.is_ready, other.rank = True, False, -1
            if self._host is not None:
                self._host.stop_rank(other.place, signal.SIGKILL)
        self.output.notice(
            f"rank {worker.place} failed: {describe_status(ended.status)}; no rank has come to"
            " elastic.run yet, and all are started anew"
        )

    def _recover(self, worker: Worker, ended: RankExit, now: float) -> None:
        self._last_failure = ended
        self._refill_at = now + REFILL_SECONDS
        what = f"rank {worker.rank}" if worker.rank >= 0 else f"new worker {worker.place}"
        if worker.rank >= 0:
            self._slots.note_loss()
        text = f"{what} failed: {describe_status(ended.status)}"
        self.output.notice(text + self._slots.pause_after_failure(worker, now))

    def _fail(self, reason: str, ended: RankExit | None = None) -> None:
        ended = ended or self._last_failure
        if ended is not None:
            self._exits.append(ended)
        self._failed = True
        self._reason = reason
        self._stop_at = min(self._stop_at, time.monotonic() + LAST_WORDS)
        for worker in self.workers.ready:
            self._dismiss(worker, code=1)

    # Work that is due by the clock.

    def _next_work(self) -> float:
        if self._is_ending or self._host is None:
            return math.inf
        times = [*self._late.values(), self._fresh_start.held_until]
        if self._slots.discovery is not None:
            times.append(self._slots.discovery.wake_at)
        is_short = self._num_missing(math.inf) > 0 and self._may_start
        if is_short and not self.workers.is_finishing:
            times.append(max(self._slots.start_at, self._refill_at))
        times += [self._short_since + self._elastic.timeout]
        times += [self._ready_since + self._elastic.timeout, self._must_end_at]
        # What was due before the last call was done then, or waits for an event.
        return min((each for each in times if each >= self._worked_at), default=math.inf)

    def _work(self, now: float) -> None:
        if self._is_ending or self._host is None:
            return
        self._worked_at = now
        if now >= self._fresh_start.held_until:
            self._judge_held(now)
            return
        if self._slots.discovery is not None:
            self._slots.discovery.tick(now)
        for place, when in list(self._late.items()):
            if now >= when:
                del self._late[place]
                self.output.notice(f"worker {place} does not answer the others, and is ended")
                self._host.stop_rank(place, signal.SIGKILL)
        may_advance = self.workers.by_place and (self.workers.generation >= 0 or self.workers.ready)
        if may_advance or self._fresh_start.is_under_way:
            self._advance(now)

    @property
    def _may_start(self) -> bool:
        """Whether missing workers are started; those of the first generation come in `begin`."""
        return self.workers.generation >= 0 or self._fresh_start.is_under_way

    def _advance(self, now: float) -> None:
        """Begin the next generation, or see to it that it can begin."""
        workers = self.workers
        is_ending_all = any(each.is_leaving for each in workers.by_place.values())
        if self._fresh_start.is_under_way and is_ending_all:
            return
        # New workers and spare ones may wait for as long as the others train.
        is_waiting = any(each.rank >= 0 or workers.generation < 0 for each in workers.ready)
        self._ready_since = min(self._ready_since, now) if is_waiting else math.inf
        if not workers.is_finishing and self._may_start:
            self._fill(now)
        if workers.is_lost and not workers.is_finishing:
            self._fail("no rank is left that has the state of the job")
        elif workers.busy:
            self._update_busy(now)
        elif workers.must_hand_over and not workers.is_finishing:
            self._hand_over(now)
        elif (
            workers.starting
            and len(workers.candidates) < self._slots.target
            and not workers.is_finishing
        ):
            pass  # they come
        else:
            self._form(now)
        if now >= self._ready_since + self._elastic.timeout:
            self._ready_since = math.inf
            for worker in [*workers.busy, *workers.starting]:
                self._late[worker.place] = now

    def _fill(self, now: float) -> None:
        """Start workers where some are missing."""
        while self._num_missing(now) > 0 and now >= self._slots.start_at:
            try:
                self._start_worker()
            except LaunchError as error:
                self.output.notice(f"cannot start another worker: {error}")
                for _ in range(3):  # it would fail again at once
                    self._slots.cooldown.note_failure(now)

    def _update_busy(self, now: float) -> None:
        """Tell workers that train of others that came, or that there are fewer slots."""
        workers = self.workers
        # Those that train meet then, and are too few; one that is past that does not hear it.
        must_meet = now >= self._must_end_at and len(workers.busy) < self._elastic.min_ranks
        is_smaller = len(workers.members) > self._slots.target
        has_new = len(workers.members) < self._slots.target and bool(workers.candidates)
        if not (must_meet or (not workers.is_finishing and (is_smaller or has_new))):
            return
        change = REMOVED * (is_smaller or must_meet) | ADDED * has_new
        for worker in workers.busy:
            if not worker.was_updated and worker.listens:
                worker.was_updated = True
                worker.send(MessageKind.UPDATE, change=change)

    def _form(self, now: float) -> None:
        workers, elastic = self.workers, self._elastic
        if workers.is_finishing and not any(worker.has_state for worker in workers.candidates):
            # The program is over, and these were still on their way.
            for worker in {*workers.staying, *workers.ready}:
                knows_nothing = not worker.has_state
                self._dismiss(worker)
                if self._host is not None and knows_nothing:
                    self._host.stop_rank(worker.place, signal.SIGTERM)
            return
        chosen, others = workers.choose(max(self._slots.target, 1))
        spares = [each for each in others if each.rank < 0 and not each.is_leaving]
        for worker in others:
            if worker not in spares[: elastic.num_spares]:
                self._dismiss(worker)
        may_be_few = workers.is_finishing and now < self._must_end_at
        if len(chosen) < elastic.min_ranks and not may_be_few:
            self._wait_for_more(len(chosen), now)
            return
        if not chosen:
            return
        self._announce(chosen)

    def _hand_over(self, now: float) -> None:
        """Have a worker that is to leave give the state, which it alone has, to those that stay.

        They meet for that alone, and make no step: the worker leaves when they have parted again.
        """
        workers = self.workers
        holder, *others = sorted(workers.holders, key=lambda each: each.rank)
        for worker in others:
            self._dismiss(worker)
        takers = workers.candidates[: max(self._slots.target, 1)]
        if takers:
            self._announce(assign_ranks([holder, *takers], need_state=True), hands_over=True)
            return
        is_awaited = len(workers.by_place) > 1 or now < self._slots.start_at
        self._wait_for_others(
            "all ranks that have the state of the job were sent SIGTERM",
            "another one to take it over",
            can_come=self._slots.discovery is not None or (self._slots.target > 0 and is_awaited),
            now=now,
        )

    def _wait_for_more(self, num_ranks: int, now: float) -> None:
        """Wait where more workers may come, since too few are left; otherwise fail."""
        can_come = not self.workers.is_finishing and (
            self._slots.discovery is not None
            or (
                self._slots.target >= self._elastic.min_ranks
                and (now < self._slots.start_at or len(self.workers.by_place) > num_ranks)
            )
        )
        text = f"{num_ranks} of at least {self._elastic.min_ranks} ranks (--min-np) are left"
        self._wait_for_others(text, "more", can_come=can_come, now=now)

    def _wait_for_others(self, text: str, what: str, *, can_come: bool, now: float) -> None:
        if self._short_since == math.inf:
            self._short_since = now
            if can_come:
                limit = f"{self._elastic.timeout:g} s at most"
                self.output.notice(f"{text}; waiting for {what}, {limit}")
        if not can_come or now >= self._short_since + self._elastic.timeout:
            self._fail(f"{text}, and no {what.removeprefix('an')} can be had")

    def _announce(self, chosen: list[Worker], *, hands_over: bool = False) -> None:
        workers = self.workers
        self._short_since = math.inf
        limit = self._elastic.reset_limit
        if limit is not None and workers.generation >= limit:
            self._fail(f"the job was reset {workers.generation} times already (--reset-limit)")
            return
        first = workers.generation < 0
        self._fresh_start.note_meeting(time.monotonic())
        begins = all(worker.rank < 0 for worker in chosen)
        workers.generation += 1
        num_new = sum(not worker.has_state for worker in chosen)
        syncs = not all(worker.has_state and worker.keeps_state for worker in chosen)
        for rank, worker in enumerate(chosen):
            worker.rank, worker.is_ready, worker.was_updated = rank, False, False
            worker.send(
                MessageKind.ROSTER,
                generation=workers.generation,
                rank=rank,
                size=len(chosen),
                rendezvous=f"unix:{os.fspath(self._job.directory)}/meet.{workers.generation}",
                num_new=num_new,
                syncs=syncs,
                hands_over=hands_over,
                begins=begins,
            )
        text = f"generation {workers.generation}: {len(chosen)} ranks, {num_new} of them new"
        if hands_over:
            text += ", to take over the state of one that leaves"
        (self.tell if first else self.output.notice)(text)

    def _forward(self, signum: int) -> None:
        workers = self.workers
        is_ours = signum in (signal.SIGTERM, signal.SIGUSR1) and not self._is_ending
        if is_ours and any(worker.listens for worker in workers.by_place.values()):
            self._forward_as_message(signum)
        elif signum in INTERRUPTS:
            super()._forward(signum)
        else:
            self._forward_to_handlers(signum)

    def _forward_as_message(self, signum: int) -> None:
        """Have all ranks commit at the same step; after SIGTERM they leave then."""
        leaves = signum == signal.SIGTERM
        self._forwarded.add(signum)
        tell_of_end(self.workers, leaves=leaves)
        if leaves:
            self._interrupt(signum)
            for worker in self.workers.ready:
                self._dismiss(worker)
            for worker in self.workers.starting:
                if self._host is not None:
                    self._host.stop_rank(worker.place, signal.SIGTERM)

    def _forward_to_handlers(self, signum: int) -> None:
        """Pass a signal on to those that have a handler for it; others would end by it."""
        self._forwarded.add(signum)
        if signum == signal.SIGUSR1:
            tell_to_commit(self.workers)
        groups = {worker.pid for worker in self.workers.by_place.values()}
        has_handlers = signal_handlers(groups, signum)
        if signum == signal.SIGHUP and not (has_handlers or self._is_ending):
            # The terminal has gone, and nobody wants to outlive it.
            self._interrupt(signum)
            for host in self._hosts:
                host.signal(signum)

    def _interrupt(self, signum: int) -> None:
        now = time.monotonic()
        self._interrupted_by, self._interrupt_time = signum, now
        self._kill_at = now + self._options.grace
