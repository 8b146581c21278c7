"""POS_Trainer: a trainer whose optimizer state, gradients and parameters are sharded.

trainer = POS_Trainer(model, "adam", {"lr": 1e-3})
for x, y in batches:
    loss(model(x), y).backward()        hooks reduce each gradient to its owners
    trainer.step()                      each rank steps what it owns
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import torch

from kadril import world as worlds
from kadril.errors import StateError, UnsupportedError
from kadril.sharded.checkpoint.own.loading import load_checkpoint
from kadril.sharded.checkpoint.own.saving import save_checkpoint
from kadril.sharded.graph.options import backward_options, graph_pass_options
from kadril.sharded.graph.registry import Registration
from kadril.sharded.graph.trainer_plan import TrainerPlan
from kadril.sharded.optimizer.clip import clip_to_norm
from kadril.sharded.optimizer.fused_kernel import complete_momentum
from kadril.sharded.optimizer.optimizer_choice import OptimizerChoice
from kadril.sharded.optimizer.options_digest import options_digest
from kadril.sharded.optimizer.overlapped_step import scale_gradients, step_and_publish
from kadril.sharded.optimizer.scaler_guard import ScalerGuard
from kadril.sharded.optimizer.supported_optimizers import OptimizerClass, choose_rule
from kadril.sharded.ownership.dedicated_transport import dedicated_transport
from kadril.sharded.ownership.gradient_memory import Scale, clear_grads
from kadril.sharded.ownership.group_options import give_pieces
from kadril.sharded.ownership.live_trainers import check_untrained, register_trainer
from kadril.sharded.ownership.parameter_groups import Parameters, read_groups, with_prefix
from kadril.sharded.ownership.parameter_list import ParameterList
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.reduction.communication_thread import communication_thread_for
from kadril.sharded.reduction.grad_notice import GradNotice
from kadril.sharded.reduction.gradients import Gradients
from kadril.sharded.reduction.intent import Intent
from kadril.sharded.reduction.prereduced import PrereducedGradients
from kadril.sharded.reduction.reduced_gradients import ReducedGradients
from kadril.sharded.state.consolidated_state import consolidate
from kadril.sharded.state.given_state import read_state
from kadril.sharded.state.load_state import cut_state, put_state
from kadril.sharded.state.own_state import own_state
from kadril.sharded.trainer_arguments import check_batch_size, check_predivision, choose_stage
from kadril.transport.base import Transport
from kadril.world import World
from kadril.world.heap import trim_heap_after

__all__ = ["POS_Trainer"]

# Makes the optimizer of parameter groups, which have this rank's pieces.
MakeOptimizer: TypeAlias = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


class POS_Trainer(ScalerGuard, torch.optim.Optimizer):  # noqa: N801 - the name that users know
    """Trains parameters on all ranks of a world, each rank stepping its own part of them.

    With p ranks, a rank holds 1/p of the optimizer state and, with stage 2, of the gradients. On
    one host all ranks share one copy of the parameters.

        g = mean over ranks of the gradients        reduced to the owners of the elements
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
        optimizer: name of one of torch's optimizers, or a class.
        optimizer_params: options of the optimizer. For an optimizer given by name, torch's fused
            kernel is used where it has one for the CPU, unless `fused` or `foreach` is given.
        gradient_predivide_factor: f: gradients are divided by f before they are added up, and by
            size / f after.
        prefix: prefix of the names of parameters in messages and files.
        partition_gradients: False is stage 1, True is stage 2.
        stage: 2 reduces gradients during the backward pass and frees them at once: `.grad` is None
            after it. 1 keeps this rank's own gradients until `zero_grad()`.
        rule: "flat" cuts all evenly, "greedy" and "largest_first" keep parameters whole. By default
            flat, where the optimizer works element by element.
        world: the current one if None.
        share_parameters: whether ranks of a host share one copy of the parameters.
        reduce_gradients: False if something else makes gradients equal on all ranks.

    Attributes:
        optimizer: the torch optimizer of this rank's pieces. Schedulers take it, or the trainer.
        names: names of the parameters.
        is_closed: whether it has given its parameters back.

    With stage 2 a warning is given, once, when `.grad` of a parameter is read between `backward()`
    and `step()`, as `torch.nn.utils.clip_grad_norm_` and `model.zero_grad()` do.

    Raises:
        StateError: a parameter is trained by another trainer; `close()` that one first.
        MismatchError: ranks have different parameters or options; it names the first.
        UnsupportedError: the optimizer cannot be sharded.
        ValueError, TypeError: an argument is invalid.
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
        check_predivision(gradient_predivide_factor)
        self._choice = OptimizerChoice(optimizer, optimizer_params)
        self._prefix = prefix
        listed = ParameterList()
        for group in with_prefix(self._choice.translate(read_groups(params)), prefix):
            listed.add_group(group)
        self._choice.choose_kernels(listed)
        self._choice.check(listed)
        self._rule = choose_rule(self._choice.kind, rule)
        self._shares_parameters = share_parameters
        self._reduces = reduce_gradients
        self._predivision = gradient_predivide_factor
        self._lines = [
            f"optimizer {self._choice.kind.__name__}, stage {self.stage}, gradient_predivide_factor"
            f" {gradient_predivide_factor}, share_parameters {share_parameters},"
            f" reduce_gradients {reduce_gradients}"
        ]
        self.num_steps = 0
        self._open(worlds.current() if world is None else world, listed, self._choice.make)
        self._borrow_hooks()

    def _open(self, world: World, listed: ParameterList, make: MakeOptimizer) -> None:
        """Share the parameters out among the ranks of a world, and watch them; collective.

        Args:
            world: the world.
            listed: the parameters.
            make: makes the optimizer of groups of this rank's pieces.
        """
        world.check_usable("POS_Trainer")
        self.world = world
        self.transport = dedicated_transport(world)
        self.rank = self.transport.rank
        self.size = self.transport.size
        self._shards = Shards(self.transport, self._rule, shares=self._shares_parameters)
        scale = Scale(1.0 / self._predivision, self._predivision / self.size)
        self._thread = communication_thread_for(self.transport)
        self._gradients: Gradients
        self._registration: Registration | None = None
        if self._reduces:
            reduced = ReducedGradients(self._shards, scale, self._thread, stage=self.stage)
            self._gradients = reduced
        else:
            self._gradients = PrereducedGradients(self._shards)
        self.optimizer = self._share_out(listed, make)
        if self._reduces:
            # Known to compiled graphs for as long as the trainer lives.
            self._graph_plan = TrainerPlan(self._shards, reduced)
            self._registration = self._graph_plan.register()
        self._is_settled = False
        self.is_closed = False
        self._notice = GradNotice(self._gradients)
        self._notice.watch(listed.tensors)
        register_trainer(self, self.world, self.transport)

    def _share_out(self, listed: ParameterList, make: MakeOptimizer) -> torch.optim.Optimizer:
        """Move parameters to their buckets, and make the optimizer of this rank's pieces.

        Collective. Where it fails, ranks have parameters of their own again.
        """
        try:
            check_untrained(self.transport, listed, self)
            self._gradients.watch(self._shards.add(listed, self._lines))
            return make(self._shards.own_groups())
        except BaseException:
            self._gradients.detach()
            self._shards.evacuate()  # no rank may see what another does to its parameters
            self._shards.parameters = listed  # for `reopen`
            self.transport.close()
            raise

    def reopen(self, world: World) -> None:
        """Share the parameters out again among the ranks of another world; collective.

        They get the values of rank 0. Options, schedulers and hooks stay; gradients and the state
        are gone. `kadril.torch.elastic.TorchState` calls it, and loads the state.

        Raises:
            MismatchError: ranks have different parameters or options.
        """
        if not self.is_closed:
            self.let_go()
        clear_grads(self._shards.parameters.tensors)
        self._open(world, self._shards.parameters, partial(give_pieces, self.optimizer))

    def _borrow_hooks(self) -> None:
        """Let schedulers and users set hooks of the trainer's step: they are the optimizer's."""
        self.defaults = self.optimizer.defaults
        vars(self).update(
            {key: value for key, value in vars(self.optimizer).items() if key.endswith("_hooks")}
        )

    # ---- parameters -----------------------------------------------------------------------------

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
        """Return the elements that a rank owns: (begin, end) by name of parameter.

        Elements are counted in the order of the parameter's memory; `(0, numel)` is all of it.
        Parameters of which the rank owns nothing are left out. Nothing is sent.
        """
        if not 0 <= rank < self.size:
            raise ValueError(f"rank is {rank}; there are ranks 0 to {self.size - 1}")
        return self._shards.ranges_of(rank)

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
        """Learning rate of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate of all parameter groups; call it on every rank."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def members(self) -> list[list[torch.Tensor]]:
        """Return the whole parameters of each group."""
        return self._shards.parameters.members()

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Train more parameters; collective. Gradients that came since the last step stay.

        Raises:
            MismatchError: ranks add different parameters; nothing has changed.
            ValueError: a parameter is trained already.
            UnsupportedError: the optimizer does not step parameters of such a shape.
        """
        self._check_usable("add_param_group")
        listed = self._shards.parameters.copy()
        groups = self._choice.translate(
            read_groups([group], first=listed.next_number), self.optimizer.defaults
        )
        for each in with_prefix(groups, self._prefix):
            listed.add_group(each)
        self._choice.check(listed)
        first = len(self.optimizer.param_groups)
        if self.reduces_gradients:
            self._gradients.settle(Intent.ADD)  # gradients on their way know of fewer parameters
        check_untrained(self.transport, listed, self)
        self._gradients.watch(self._shards.add(listed, self._lines))
        self._notice.watch(listed.tensors)
        for made in self._shards.own_groups(first):
            self.optimizer.add_param_group(made)
        if self._registration is not None:
            self._graph_plan.refresh()

    # ---- training -------------------------------------------------------------------------------

    def step(self, batch_size: float = 1) -> None:  # type: ignore[override]
        """Reduce what is left of the gradients, and step; collective.

        Args:
            batch_size: gradients are divided by it, and by the number of ranks.

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
        check_batch_size(batch_size, operation)
        self._check_usable(operation)
        for bucket in self._shards.buckets:
            bucket.check_bound()
        self._gradients.settle(Intent.STEP, options_digest(self.optimizer, batch_size))
        if not self._is_settled or self._gradients.has_news:
            self._gradients.hand_over()
        if batch_size != 1:
            scale_gradients(self.optimizer, 1.0 / batch_size)
        complete_momentum(self.optimizer)
        step_and_publish(self.optimizer, self._shards, self._thread, arguments)
        self.num_steps += 1
        trim_heap_after(self.num_steps)  # before gradients are freed, whose place others take
        self._gradients.begin_round()
        self._is_settled = False

    def allreduce_grads(self) -> None:
        """Reduce what is left of the gradients: to clip them, or to look at them; collective.

        Afterwards each piece in `param_groups` has its gradient in `.grad`. Further backward passes
        add to it; `update()` or `step()` follows.
        """
        self._check_usable("allreduce_grads")
        self._gradients.settle(Intent.SETTLE)
        if not self._is_settled or self._gradients.has_news:
            self._gradients.hand_over()
        self._is_settled = True

    @property
    def shards(self) -> Shards:
        """The parameters as they are shared out, for checkpoints and elastic jobs."""
        return self._shards

    @property
    def reduces_gradients(self) -> bool:
        """Whether this trainer reduces the gradients."""
        return self._reduces

    def skip_step(self) -> None:
        """Drop the reduced gradients instead of stepping with them; on every rank.

        Called after `allreduce_grads()`, for gradients that are not finite. Gradients that came
        after it are dropped too.
        """
        self._gradients.drop_round()
        if self.stage == 2:
            clear_grads(self._shards.parameters.tensors)
        self._is_settled = False

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Scale all gradients down so that their norm is at most `max_norm`; collective.

        One reduction of a few numbers. `step()` follows; after further passes clip again.

        Returns:
            The norm before, the same on all ranks.

        Raises:
            RuntimeError: the norm is not finite, and `error_if_nonfinite` is True; on all ranks.
        """
        self.allreduce_grads()  # even if it was called before: there may have been passes since
        gradients = [
            own.tensor.grad for own in self._shards.own_pieces() if own.tensor.grad is not None
        ]
        return clip_to_norm(self.transport, gradients, max_norm, norm_type, error_if_nonfinite)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, reduced or not.

        With stage 2 a `step()` uses gradients up, so that this is needed only to drop them without
        a step. To drop those of backward passes call it on every rank that has made any, though
        not as many; what comes after that stays in `.grad` until the next `step()`, which raises
        `MismatchError` where a rank has dropped its gradients and another has not.

        Local, but for one case: with stage 2, where gradients travel neither in shared memory nor
        in a thread, and a pass has given gradients to only some of the parameters (it raised, say),
        this waits until the other ranks have given theirs or drop them.

        Args:
            set_to_none: make `.grad` None rather than zeros.
        """
        self._gradients.drop_round()
        clear_grads(self._shards.parameters.tensors, set_to_none)
        self._is_settled = False

    # ---- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the optimizer's state; local.

        In the form of `torch.distributed.checkpoint.state_dict.get_optimizer_state_dict`: state by
        name of parameter and of value, and groups that list names. Tensors are `CutTensor`s, which
        planners of torch.distributed.checkpoint know how to save and load:

            kadril.sharded.dcp.save({"model": model, "optim": trainer}, "last")

        They share memory with the optimizer's state, as in torch. Parameters are not in it.
        """
        return own_state(self._shards, self.optimizer)

    def consolidate(self, to: int = 0) -> dict[str, Any] | None:
        """Return the state in the form of a plain optimizer over whole parameters; collective.

        Parameters are numbered in the order of `names`, and listed in the order in which they were
        given, which is the order that counts when a plain optimizer loads it.

        Args:
            to: rank that gets the state.

        Returns:
            A state_dict of copies on rank `to`, None elsewhere.
        """
        with self._transport_for("consolidate") as transport:
            return consolidate(transport, self._shards, self.optimizer, to)

    def load_state_dict(self, state_dict: Any) -> None:
        """Load state; local, on every rank. Gradients stay, as with torch's optimizers.

        Args:
            state_dict: state of a plain torch optimizer over the whole parameters, numbered or by
                name, the same on all ranks; or what `state_dict()` gave on this rank; or a list of
                what it gave on all ranks of a world of any size.

        Raises:
            CheckpointError: it does not match; nothing was changed. It names the parameter.
        """
        stored = read_state(state_dict, self._shards, self.optimizer)
        loaded = cut_state(self._shards, self.optimizer, stored)
        put_state(self.optimizer, loaded, keeps_dtypes=stored.keeps_dtypes)

    def save(self, path: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write parameters and state to a directory; each rank writes what it owns. Collective.

        What was there before stays whole until the new one is: a kill at any moment leaves one that
        can be loaded. All ranks have to see the same directory.

        Args:
            path: directory of the checkpoint.
            extra: anything that JSON can hold, such as the epoch; rank 0's is written.

        Raises:
            CheckpointError: a rank could not write; on all ranks.
        """
        with self._transport_for("save") as transport:
            save_checkpoint(transport, Path(path), self._shards, self.optimizer, extra or {})

    def load(self, path: str | Path) -> dict[str, Any]:
        """Read parameters and state from what `save` wrote, on any number of ranks; collective.

        Returns:
            What was given as `extra`.

        Raises:
            CheckpointError: it is missing, damaged or of another model; on all ranks, and nothing
                was changed. It names the file or the parameter.
        """
        self.settle_to_load()
        extra = load_checkpoint(Path(path), self._shards, self.optimizer)
        self.zero_grad()
        return extra

    def _transport_for(self, operation: str) -> contextlib.closing[Transport]:
        """Make a transport for one call, as gradients use the trainer's; collective."""
        self._check_usable(operation)
        return contextlib.closing(dedicated_transport(self.world))

    def settle_to_load(self) -> None:
        """Wait until no rank computes with the parameters, before they are written; collective."""
        self._check_usable("load")
        self._gradients.settle(Intent.LOAD)

    # ---- the graph pass -------------------------------------------------------------------------

    def generate_graph_pass_options(self) -> dict[str, Any]:
        """Return keywords of `kadril.sharded.optimize_for`, which reduces gradients in graphs.

        Raises:
            StateError: this trainer does not reduce gradients, or keeps them (stage 1).
        """
        return graph_pass_options(self._registration_for("generate_graph_pass_options"))

    def generate_backward_options(self) -> dict[str, Any]:
        """Return the `backward_option` of `kadril.sharded.backward`.

        Raises:
            StateError: this trainer does not reduce gradients, or keeps them (stage 1).
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

        Another trainer may then have them. All other methods raise `StateError` from then on.
        """
        if self.is_closed:
            return
        self.transport.barrier(name="close")  # no rank steps what another is about to copy
        self.let_go()
        self._shards.close()
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
