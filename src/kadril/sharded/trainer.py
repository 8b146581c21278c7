"""POS_Trainer: a trainer whose optimizer state, gradients and parameters are shared out.

trainer = POS_Trainer(model, "adam", {"lr": 1e-3})
for x, y in batches:
    loss(model(x), y).backward()        hooks reduce each gradient to its owners
    trainer.step()                      each rank steps what it owns
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from kadril import world as worlds
from kadril.errors import StateError, UnsupportedError
from kadril.sharded.checkpoint.directory import load_checkpoint, save_checkpoint
from kadril.sharded.graph.options import backward_options, graph_pass_options
from kadril.sharded.graph.plan import Registration
from kadril.sharded.graph.trainer_plan import GraphPlan
from kadril.sharded.optimizer.clip import clip_gradients, total_norm
from kadril.sharded.optimizer.optimizers import (
    OptimizerClass,
    check_parameters,
    choose_rule,
    complete_momentum,
    find_optimizer,
    groups_in_torch_words,
    may_fuse,
    without_compiler,
)
from kadril.sharded.optimizer.options_digest import options_digest
from kadril.sharded.optimizer.overlapped_step import scale_gradients, step_and_publish
from kadril.sharded.optimizer.scaler_guard import ScalerGuard
from kadril.sharded.ownership.bucket import Scale
from kadril.sharded.ownership.live_trainers import check_free, keep_track, own_transport
from kadril.sharded.ownership.parameter_list import Group, ParameterList, Parameters, read_groups
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.reduction.courier import courier_for
from kadril.sharded.reduction.given import GivenGradients
from kadril.sharded.reduction.grad_notice import GradNotice, raw_grad
from kadril.sharded.reduction.gradients import Gradients, ReducedGradients
from kadril.sharded.reduction.meeting import Wish
from kadril.sharded.reduction.posted import PostedGradients
from kadril.sharded.state.optimizer_state import (
    consolidate,
    load_state,
    own_state,
    put_state,
    read_state,
)
from kadril.transport.base import Transport
from kadril.world import World
from kadril.world.heap import trim_heap

__all__ = ["POS_Trainer"]


class POS_Trainer(ScalerGuard, torch.optim.Optimizer):  # noqa: N801 - the name that users know
    """Trains parameters on all ranks of a world, each rank stepping its own part of them.

    With p ranks, a rank holds 1/p of the optimizer state and, with stage 2, of the gradients. On
    one host all ranks share one copy of the parameters.

        g = mean over ranks of the gradients        reduced to whoever owns the elements
        own elements = optimizer(own elements, own part of g / batch_size)

    1. The result is that of the plain optimizer on the mean of the gradients, to the last bit where
       the sums are the same (elementwise optimizers; see `rule`).
    2. Every rank constructs it, with the same parameters, and calls `step()` equally often. All
       ranks begin with the values of rank 0.
    3. A parameter that got no gradient on any rank is not stepped; one that got none here counts
       as zero. Ranks may make different numbers of backward passes before a step: they add up.
    4. Where parameters are shared, what one rank writes to them all ranks see. Change them outside
       of the trainer on one rank, between two barriers; not on each.

    Args:
        params: a module, a dict by name (taken in sorted order), a list of parameters or of
            (name, parameter) pairs, or a list of parameter groups as torch has them.
        optimizer: name of one of torch's, or a class.
        optimizer_params: its options. Of those given by name, fused kernels are used where torch
            has one for the CPU, unless `fused` or `foreach` says otherwise.
        gradient_predivide_factor: f: gradients are divided by f before they are added up, and by
            size / f after.
        prefix: of the names of parameters in messages and files.
        partition_gradients: False is stage 1, True is stage 2.
        stage: 2 reduces gradients during the backward pass and frees them at once: `.grad` is None
            after it. 1 keeps this rank's own gradients until `zero_grad()`.
        rule: "flat" cuts all evenly, "greedy" and "largest_first" keep parameters whole. By default
            flat, where the optimizer works element by element.
        world: the current one where None.
        share_parameters: whether ranks of a host are to share one copy of the parameters.
        reduce_gradients: False where somebody else makes gradients equal on all ranks.

    Attributes:
        optimizer: the torch optimizer of this rank's pieces. Schedulers take it, or the trainer.
        names: of the parameters.
        is_closed: whether it has given its parameters back.

    With stage 2 a warning tells, once, whoever looks at `.grad` of a parameter between `backward()`
    and `step()`, as `torch.nn.utils.clip_grad_norm_` and `model.zero_grad()` do.

    Raises:
        StateError: a parameter is trained by another trainer; `close()` that one first.
        MismatchError: ranks have different parameters or options; it names the first.
        UnsupportedError: the optimizer cannot be sharded.
        ValueError, TypeError: what was given makes no sense.
    """

    def __init__(
        self,
        params: Parameters,
        optimizer: str | OptimizerClass,
        optimizer_params: Mapping[str, Any] | None = None,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        partition_gradients: bool | None = None,
        *,
        stage: int | None = None,
        rule: str | None = None,
        world: World | None = None,
        share_parameters: bool = True,
        reduce_gradients: bool = True,
    ) -> None:
        self.stage = choose_stage(stage, partition_gradients)
        if not gradient_predivide_factor > 0:
            raise ValueError(
                f"gradient_predivide_factor is {gradient_predivide_factor}; it has to be positive"
            )
        kind, options = find_optimizer(optimizer, optimizer_params)
        self._asked = optimizer
        groups = groups_in_torch_words(optimizer, read_groups(params), options)
        listed = ParameterList()
        for group in with_prefix(groups, prefix):
            listed.add_group(group)
        if isinstance(optimizer, str) and may_fuse(
            kind, [options, *listed.options], listed.tensors
        ):
            options["fused"] = True
        made = without_compiler(kind, [options, *listed.options])
        self._made = (made, options)
        check_parameters(made, options, listed)
        self.world = worlds.current() if world is None else world
        self.world.check_usable("POS_Trainer")
        self.transport = own_transport(self.world)
        check_free(self.transport, listed)
        self.rank = self.transport.rank
        self.size = self.transport.size
        self._prefix = prefix
        self._shards = Shards(self.transport, choose_rule(kind, rule), shares=share_parameters)
        scale = Scale(1.0 / gradient_predivide_factor, gradient_predivide_factor / self.size)
        self._courier = courier_for(self.transport)
        self._gradients: Gradients
        self._registration: Registration | None = None
        if reduce_gradients:
            reduced = (
                ReducedGradients(self._shards, scale, self._courier, stage=1)
                if self.stage == 1
                else PostedGradients(self._shards, scale, self._courier)
            )
            self._gradients = reduced
        else:
            self._gradients = GivenGradients(self._shards)
        self._lines = [
            f"optimizer {kind.__name__}, stage {self.stage}, gradient_predivide_factor"
            f" {gradient_predivide_factor}, share_parameters {share_parameters},"
            f" reduce_gradients {reduce_gradients}"
        ]
        try:
            self._gradients.watch(self._shards.add(listed, self._lines))
            self.optimizer = made(self._piece_groups(0), **options)
        except BaseException:
            self._gradients.detach()
            self._shards.evacuate()  # no rank is to see what another does to its parameters
            self.transport.close()
            raise
        if reduce_gradients:
            # Known to compiled graphs for as long as the trainer lives.
            self._graph_plan = GraphPlan(self._shards, reduced)
            self._registration = self._graph_plan.register()
        # An optimizer for schedulers and hooks: those of its step are the inner one's.
        self.defaults = self.optimizer.defaults
        vars(self).update(
            {key: value for key, value in vars(self.optimizer).items() if key.endswith("_hooks")}
        )
        self._is_settled = False
        self.is_closed = False
        self.num_steps = 0
        self._notice = GradNotice(self._gradients)
        self._notice.watch(listed.tensors)
        keep_track(self, self.world, self.transport)

    # ---- what there is --------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters, in their order; the same on all ranks."""
        return tuple(self._shards.parameters.names)

    @property
    def rule(self) -> str:
        """The partition rule."""
        return self._shards.rule

    @property
    def owners(self) -> dict[str, int]:
        """The rank that owns each parameter; with rule `flat` the one that owns most of it."""
        return self._shards.owners()

    def parts_of(self, rank: int) -> dict[str, tuple[int, int]]:
        """Elements that a rank owns: (begin, end) for each parameter of which it has some.

        Elements count in the order in which the parameter's memory has them; `(0, numel)` is all of
        it. Every rank knows that of all ranks; nothing is sent.
        """
        if not 0 <= rank < self.size:
            raise ValueError(f"rank is {rank}; there are ranks 0 to {self.size - 1}")
        parts = zip(self.names, map(self._shards.pieces_of, range(len(self.names))), strict=True)
        return {
            name: (piece.begin, piece.end)
            for name, pieces in parts
            for piece in pieces
            if piece.rank == rank
        }

    @property
    def state(self) -> Any:  # type: ignore[override]
        """State of `optimizer`, by piece."""
        return self.optimizer.state

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Groups of `optimizer`: options of the user's groups, and this rank's pieces."""
        return self.optimizer.param_groups

    @property
    def learning_rate(self) -> float:
        """Of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def set_learning_rate(self, lr: float) -> None:
        """Of all parameter groups; on every rank alike."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def _piece_groups(self, first: int) -> list[dict[str, Any]]:
        """Parameter groups from a number on, with this rank's pieces in place of parameters."""
        parameters = self._shards.parameters
        groups: list[dict[str, Any]] = [
            {**options, "params": []} for options in parameters.options[first:]
        ]
        for own in self._shards.own_pieces():
            number = parameters.groups[own.piece.entry] - first
            if number >= 0:
                groups[number]["params"].append(own.tensor)
        return groups

    def members(self) -> list[list[torch.Tensor]]:
        """The whole parameters of each group."""
        parameters = self._shards.parameters
        groups: list[list[torch.Tensor]] = [[] for _ in parameters.options]
        for tensor, number in zip(parameters.tensors, parameters.groups, strict=True):
            groups[number].append(tensor)
        return groups

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Train more parameters; collective. Gradients that came since the last step stay.

        Raises:
            MismatchError: ranks add different ones; nothing has changed.
            ValueError: a parameter that is trained already.
            UnsupportedError: one of a shape that this optimizer does not step.
        """
        self._check_usable("add_param_group")
        known = self._shards.parameters
        listed = ParameterList()
        for number, options in enumerate(known.options):
            members = [place for place, each in enumerate(known.groups) if each == number]
            names = [known.names[place] for place in members]
            tensors = [known.tensors[place] for place in members]
            given = [members.index(place) for place in known.given if place in members]
            listed.add_group(Group(names, tensors, options, given))
        read = read_groups([group], first=known.next_number)
        groups = groups_in_torch_words(self._asked, read, self.optimizer.defaults)
        for each in with_prefix(groups, self._prefix):
            listed.add_group(each)
        check_parameters(*self._made, listed)
        first = len(self.optimizer.param_groups)
        if self.reduces_gradients:
            self._gradients.settle(Wish.ADD)  # what is on its way knows of fewer parameters
        check_free(self.transport, listed, self)
        added = self._shards.add(listed, self._lines)
        self._gradients.watch(added)
        self._notice.watch(listed.tensors)
        for made in self._piece_groups(first):
            self.optimizer.add_param_group(made)
        if self._registration is not None:
            self._graph_plan.refresh()

    # ---- training -------------------------------------------------------------------------------

    def step(self, batch_size: float = 1) -> None:  # type: ignore[override]
        """Reduce what is left of the gradients, and step; collective.

        Args:
            batch_size: gradients are divided by it, as by the number of ranks.

        Raises:
            MismatchError: ranks step with different options.
            PeerLost, Stalled: a rank does not come.
            StateError: a parameter was moved to other memory.
        """
        self.step_with(batch_size, "step", {})

    def update(self, batch_size: float = 1) -> None:
        """Step with gradients that were reduced by `allreduce_grads()`; collective.

        Raises:
            StateError: `allreduce_grads()` was not called.
        """
        if not self._is_settled:
            raise StateError(
                "update() steps with reduced gradients: call allreduce_grads() first, or step()"
                " for both"
            )
        self.step_with(batch_size, "update", {})

    def step_with(self, batch_size: float, operation: str, arguments: Mapping[str, Any]) -> None:
        """Step with arguments for the optimizer's own `step`; collective. See `step`."""
        if callable(batch_size):
            raise TypeError(
                f"{operation}() takes a batch size; closures are taken by ShardedOptimizer.step()"
            )
        if not batch_size > 0:
            raise ValueError(f"batch_size is {batch_size}; it has to be positive")
        self._check_usable(operation)
        for bucket in self._shards.buckets:
            bucket.check_bound()
        self._gradients.settle(Wish.STEP, options_digest(self.optimizer, batch_size))
        if not self._is_settled or self._gradients.has_news:
            self._gradients.hand_over()
        if batch_size != 1:
            scale_gradients(self.optimizer, 1.0 / batch_size)
        complete_momentum(self.optimizer)
        step_and_publish(self.optimizer, self._shards, self._courier, arguments)
        self.num_steps += 1
        if self.num_steps & (self.num_steps - 1) == 0:
            # The first step makes state amid gradients, which leaves holes, and every one may leave
            # some that are not used again. Ever more seldom, so that it costs nothing in the end;
            # and before gradients are freed, whose place the next ones take.
            trim_heap()
        self._begin_round()

    def allreduce_grads(self) -> None:
        """Reduce what is left of the gradients: to clip them, or to look at them; collective.

        Afterwards each piece in `param_groups` has its gradient in `.grad`. Further backward passes
        add to it; `update()` or `step()` follows.
        """
        self._check_usable("allreduce_grads")
        self._gradients.settle(Wish.SETTLE)
        if not self._is_settled or self._gradients.has_news:
            self._gradients.hand_over()
        self._is_settled = True

    @property
    def reduces_gradients(self) -> bool:
        """Whether gradients are this trainer's to reduce."""
        return not isinstance(self._gradients, GivenGradients)

    def skip_step(self) -> None:
        """Use reduced gradients up as `step()` does, without a step; on every rank.

        After `allreduce_grads()`, where they turned out to be of no use. What came after that is
        dropped too.
        """
        self._gradients.drop_round()
        if self.stage == 2:
            for tensor in self._shards.parameters.tensors:
                tensor.grad = None
        self._is_settled = False

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Scale all gradients down so that their norm is at most `max_norm`; collective.

        One reduction of a few numbers. `step()` follows; after further passes clip again.

        Returns:
            The norm before, the same on all ranks.

        Raises:
            RuntimeError: the norm is not finite, and that was to be an error; on all ranks.
        """
        self.allreduce_grads()  # again, too: there may have been passes since
        gradients = [
            own.tensor.grad for own in self._shards.own_pieces() if own.tensor.grad is not None
        ]
        norm = total_norm(self.transport, gradients, float(norm_type))
        result = torch.tensor(norm)
        if error_if_nonfinite and not bool(torch.isfinite(result)):
            raise RuntimeError(
                f"the norm of order {norm_type} of all gradients is {norm}; give"
                " error_if_nonfinite=False to go on all the same"
            )
        clip_gradients(gradients, norm, float(max_norm))
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, reduced or not.

        With stage 2 a `step()` uses gradients up, so that this is needed only to drop them without
        a step. To drop those of backward passes call it on every rank that has made any, though
        not as many; what comes after that stays in `.grad` until the next `step()`, which raises
        `MismatchError` where a rank has dropped its gradients and another has not.

        Args:
            set_to_none: make `.grad` None rather than zeros.
        """
        self._gradients.drop_round()
        for tensor in self._shards.parameters.tensors:
            gradient = raw_grad(tensor)
            if set_to_none or gradient is None:
                tensor.grad = None
            else:
                gradient.detach_().zero_()
        self._is_settled = False

    # ---- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of the optimizer's state; local.

        In the form of `torch.distributed.checkpoint.state_dict.get_optimizer_state_dict`: state by
        name of parameter and of value, and groups that list names. Tensors are `CutTensor`s, which
        planners of torch.distributed.checkpoint know how to save and load:

            kadril.sharded.dcp.save({"model": model, "optim": trainer}, "last")

        Their elements are those of the optimizer, as in torch. Parameters are not in it.
        """
        return own_state(self._shards, self.optimizer)

    def consolidate(self, to: int = 0) -> dict[str, Any] | None:
        """The state as the plain torch optimizer over the whole parameters has it; collective.

        Parameters are numbered in the order of `names`, and listed in the order in which they were
        given, which is the one that counts when a plain optimizer loads it.

        Args:
            to: rank that gets it.

        Returns:
            A state_dict of copies on rank `to`, None elsewhere.
        """
        with self._own_call("consolidate") as transport:
            return consolidate(transport, self._shards, self.optimizer, to)

    def load_state_dict(self, state_dict: Any) -> None:
        """Load state; local, on every rank. Gradients stay, as with torch's optimizers.

        Args:
            state_dict: that of a plain torch optimizer over the whole parameters, numbered or by
                name, the same on all ranks; or what `state_dict()` gave on this rank; or, in a
                list, on all ranks of a world of any size.

        Raises:
            CheckpointError: it does not fit; nothing was changed. It names the parameter.
        """
        stored = read_state(state_dict, self._shards, self.optimizer)
        loaded = load_state(self._shards, self.optimizer, stored)
        put_state(self.optimizer, loaded, keeps_dtypes=stored.keeps_dtypes)

    def save(self, path: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write parameters and state to a directory, each rank what it owns; collective.

        What was there before stays whole until the new one is: a kill at any moment leaves one that
        can be loaded. All ranks have to see the same directory.

        Args:
            path: of the directory.
            extra: anything that JSON can hold, such as the epoch; rank 0's is written.

        Raises:
            CheckpointError: a rank could not write; on all ranks.
        """
        with self._own_call("save") as transport:
            save_checkpoint(transport, Path(path), self._shards, self.optimizer, extra or {})

    def load(self, path: str | Path) -> dict[str, Any]:
        """Read parameters and state from what `save` wrote, on any number of ranks; collective.

        Returns:
            What was given as `extra`.

        Raises:
            CheckpointError: it is missing, damaged or of another model; on all ranks, and nothing
                was changed. It names the file or the parameter.
        """
        self._settle_to_load()
        extra = load_checkpoint(Path(path), self._shards, self.optimizer)
        self.zero_grad()
        return extra

    @contextlib.contextmanager
    def _own_call(self, operation: str) -> Iterator[Transport]:
        """A transport for one call, while gradients go over the trainer's; collective."""
        self._check_usable(operation)
        transport = own_transport(self.world)
        try:
            yield transport
        finally:
            transport.close()

    def _settle_to_load(self) -> None:
        """Bring ranks to the same place before parameters are written; collective."""
        self._check_usable("load")
        self._gradients.settle(Wish.LOAD)

    # ---- the graph pass -------------------------------------------------------------------------

    def generate_graph_pass_options(self) -> dict[str, Any]:
        """Keywords of `kadril.sharded.optimize_for`, which reduces gradients in compiled graphs.

        Raises:
            StateError: gradients are not this trainer's to reduce, or are kept.
        """
        return graph_pass_options(self._registration_for("generate_graph_pass_options"))

    def generate_backward_options(self) -> dict[str, Any]:
        """The `backward_option` of `kadril.sharded.backward`.

        Raises:
            StateError: gradients are not this trainer's to reduce, or are kept.
        """
        return backward_options(self._registration_for("generate_backward_options"))

    def _registration_for(self, operation: str) -> Registration:
        self._check_usable(operation)
        if self._registration is None:
            raise StateError(f"{operation}: gradients are reduced by somebody else")
        if self.stage == 1:
            raise StateError(
                f"{operation}: the graph pass gives gradients away, and this trainer keeps them;"
                " make it with stage=2"
            )
        return self._registration

    def close(self) -> None:
        """Give the parameters back: each rank has its own again, with these values; collective.

        For another trainer of the same parameters. Whatever is called after it raises `StateError`.
        """
        if self.is_closed:
            return
        self.transport.barrier(name="close")  # nobody steps what another is about to copy
        self.let_go()
        self.transport.close()

    def let_go(self) -> None:
        """Give the parameters back, on this rank; local."""
        self.is_closed = True
        self._notice.stop()
        self._gradients.detach()
        self._shards.evacuate()
        self._registration = None

    def _check_usable(self, operation: str) -> None:
        if self.is_closed:
            raise StateError(f"{operation}: this trainer was closed")
        self.world.check_usable(operation)

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            "a POS_Trainer belongs to its world, and cannot be copied or pickled; keep its state"
            " with save() or state_dict()"
        )

    def _begin_round(self) -> None:
        self._gradients.begin_round()
        self._is_settled = False


def choose_stage(stage: int | None, partition_gradients: bool | None) -> int:
    """The stage of two ways to say it."""
    said = None if partition_gradients is None else 1 + partition_gradients
    if stage not in (None, 1, 2):
        raise ValueError(f"stage is {stage}; 1 keeps gradients, 2 gives them back")
    if stage is not None and said is not None and stage != said:
        raise ValueError(
            f"stage is {stage} and partition_gradients is {partition_gradients}, which is stage"
            f" {said}; give one of them"
        )
    return stage or said or 2


def with_prefix(groups: list[Group], prefix: str | None) -> list[Group]:
    """Groups whose names have a prefix."""
    if not prefix:
        return groups
    return [group._replace(names=[prefix + name for name in group.names]) for group in groups]
