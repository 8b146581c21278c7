"""A program for elastic jobs of which a rank dies around the reductions of an optimizer.

    elastic_optimizer_program.py KIND PLACE:STEP:RANK

In the first generation the rank dies at that step, in this place:

    backward    when the backward pass has come half of the way
    between     after the backward pass; the others reduce something else then
    silent      likewise; the others go on when it is dead, with the gradients
    step        when it has submitted one of several gradients

KIND is how the program trains:

    plain       one optimizer; two of its gradients are large and travel by themselves
    late        the same, but gradients are cleared after `step()`
    passes      two backward passes for each step
    two         two optimizers over parameters of the same names; the first is not in the state
    own         a state of the program's own class
    sparse      an embedding with sparse gradients besides
    delta       `op=hvd.Adasum`
    scaled      a gradient scaler looks at the gradients before the step
    clipped     the same, and the program between
    trainer     a `POS_Trainer`

The mean of the gradients is made of small integers, and the same however many ranks there are; so
the weights are those of a quiet run in each bit.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import kadril.torch as hvd

LAST_STEP, STEPS_BETWEEN_COMMITS = 6, 2
SHAPES = ((3,), (70_000,), (2, 5), (300, 300), (4,))


class Fault:
    """The fault of the command line.

    Attributes:
        is_armed: whether this rank dies when it has submitted a gradient.
    """

    def __init__(self, word: str) -> None:
        self.place, step, victim = word.split(":")
        self.step, self.victim = int(step), int(victim)
        self.is_armed = False
        self.pids: list[int] = []

    def is_due(self, place: str, step: int) -> bool:
        is_first = os.environ["KADRIL_GENERATION"] == "0"
        return is_first and (place, step) == (self.place, self.step)

    def may_happen(self, place: str, step: int) -> None:
        if self.is_due(place, step) and hvd.rank() == self.victim:
            os.kill(os.getpid(), signal.SIGKILL)

    def may_happen_between(self, step: int) -> None:
        for place in ("between", "silent"):
            self.may_happen(place, step)
        if self.is_due("between", step):
            hvd.allreduce(torch.ones(2), name="loss")
        if self.is_due("silent", step):
            while is_alive(self.pids[self.victim]):
                time.sleep(0.001)
        self.is_armed = self.is_due("step", step) and hvd.rank() == self.victim


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Deadly(hvd.Compression.none):  # type: ignore[misc]
    """A compression by which a rank dies between two of its gradients."""

    fault: Fault
    num_submitted = 0

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        if cls.fault.is_armed:
            cls.num_submitted += 1
            if cls.num_submitted == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        return tensor, None


class Net(torch.nn.Module):
    """Parameters, most of which no layer has."""

    def __init__(self, number: int, is_sparse: bool) -> None:
        super().__init__()
        self.number = number  # of the model: each has other gradients
        self.weights = torch.nn.ParameterList(
            torch.zeros(shape, dtype=torch.float64) for shape in SHAPES
        )
        self.table = torch.nn.Embedding(5, 3, sparse=True).double() if is_sparse else None
        if self.table is not None:
            torch.nn.init.zeros_(self.table.weight)

    def loss(self, step: int, offset: int) -> torch.Tensor:
        """A loss with small integers as gradients."""
        loss = torch.zeros((), dtype=torch.float64)
        for number, parameter in enumerate(self.weights):
            places = torch.arange(parameter.numel()).reshape(parameter.shape)
            loss = (
                loss + (((places + step + number + self.number) % 7 - 3 + offset) * parameter).sum()
            )
        if self.table is not None:
            loss = loss + self.table(torch.arange(4)).sum() * (step % 3 + offset)
        return loss


def make_models(kind: str) -> list[Net]:
    return [Net(number, kind == "sparse") for number in range(2 if kind == "two" else 1)]


class Own(hvd.elastic.State):
    """A state that knows no more than how to restore an optimizer."""

    def __init__(self, model: Net, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model, self.optimizer, self.step = model, optimizer, 0
        self.save()

    def values(self) -> dict[str, Any]:
        both = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**both, "step": self.step}

    def save(self) -> None:
        self.saved = clone(self.values())

    def restore(self) -> None:
        saved = clone(self.saved)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step = saved["step"]

    def sync(self) -> None:
        self.saved = self._bcast_object(self.saved)
        self.restore()


def clone(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: clone(each) for key, each in value.items()}
    return [clone(each) for each in value] if isinstance(value, list) else value


class Training:
    """Recipe of a kind of program: its optimizers, and a step."""

    def __init__(self, kind: str, fault: Fault) -> None:
        self.kind, self.fault = kind, fault
        self.num_passes = 2 if kind == "passes" else 1
        self.models = make_models(kind)
        self.optimizers = [self.make_optimizer(model) for model in self.models]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        if kind == "two":
            first, second = self.models
            self.state: Any = hvd.elastic.TorchState(
                first, self.optimizers[1], second=second, step=0
            )
        elif kind == "own":
            self.state = Own(self.models[0], self.optimizers[0])
        elif kind in ("scaled", "clipped"):
            self.state = hvd.elastic.TorchState(
                self.models[0], self.optimizers[0], scaler=self.scaler, step=0
            )
        else:
            self.state = hvd.elastic.TorchState(self.models[0], self.optimizers[0], step=0)

    def make_optimizer(self, model: Net) -> Any:
        options = {"lr": 0.125, "momentum": 0.0 if self.kind in ("two", "sparse") else 0.5}
        if self.kind == "trainer":
            from kadril.sharded import POS_Trainer

            return POS_Trainer(model, "sgd", options)
        return hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), **options),
            model.named_parameters(),
            compression=Deadly if self.fault.place == "step" else hvd.Compression.none,
            backward_passes_per_step=self.num_passes,
            op=hvd.Adasum if self.kind == "delta" else hvd.Average,
        )

    def is_scaled(self) -> bool:
        return self.kind in ("scaled", "clipped")

    def step(self, step: int) -> None:
        if self.kind != "late":
            for optimizer in self.optimizers:
                optimizer.zero_grad()
        offset = 0 if self.kind == "delta" else 2 * hvd.rank() - hvd.size() + 1
        for number in range(self.num_passes):
            for model in self.models:
                is_last = (number, model) == (self.num_passes - 1, self.models[-1])
                self.backward(model, step, offset, may_die=is_last)
        if self.kind == "clipped":
            self.scaler.unscale_(self.optimizers[0])
        self.fault.may_happen_between(step)
        for optimizer in reversed(self.optimizers):
            if self.is_scaled():
                self.scaler.step(optimizer)
                self.scaler.update()
            else:
                optimizer.step()
        if self.kind == "late":
            self.optimizers[0].zero_grad()

    def backward(self, model: Net, step: int, offset: int, *, may_die: bool) -> None:
        loss = model.loss(step, offset)
        hook = None
        if may_die:
            middle = model.weights[2]
            hook = middle.register_hook(lambda _: self.fault.may_happen("backward", step))
        (self.scaler.scale(loss) if self.is_scaled() else loss).backward()
        if hook is not None:
            hook.remove()


def quiet_digest(kind: str) -> str:
    """The digest of the weights of a run of one process."""
    models = make_models(kind)
    for model in models:
        momentum = 0.0 if kind in ("two", "sparse") else 0.5
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=momentum)
        for step in range(LAST_STEP):
            optimizer.zero_grad()
            for _ in range(2 if kind == "passes" else 1):
                model.loss(step, 0).backward()
            optimizer.step()
    return digest(models)


def digest(models: list[Net]) -> str:
    data = [each.detach().numpy().tobytes() for model in models for each in model.parameters()]
    return hashlib.sha256(b"".join(data)).hexdigest()[:16]


def train(state: Any, training: Training) -> None:
    while state.step < LAST_STEP:
        training.step(state.step)
        state.step += 1
        if state.step % STEPS_BETWEEN_COMMITS == 0:
            state.commit()


def main() -> None:
    torch.set_num_threads(1)
    fault = Deadly.fault = Fault(sys.argv[2])
    hvd.init()
    if os.environ["KADRIL_GENERATION"] == "0":
        fault.pids = hvd.allgather_object(os.getpid())
    training = Training(sys.argv[1], fault)
    resets: list[int] = []
    training.state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    hvd.elastic.run(train)(training.state, training)
    text = f"end: rank {hvd.rank()} of {hvd.size()} resets {resets} weights"
    print(text, digest(training.models))  # noqa: T201


if __name__ == "__main__":
    main()
