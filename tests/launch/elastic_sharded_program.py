"""A program for elastic jobs that trains by an optimizer of torch, plain or sharded.

    elastic_sharded_program.py DIRECTORY LAST_STEP COMMIT_EVERY KIND [FAULT ...]

KIND is plain, trainer, greedy (a trainer that keeps parameters whole) or optimizer; faults are
those of elastic_program.py. The mean of the gradients is made of small integers, and the same
however many ranks there are, so the weights are those of a quiet run in each bit.
"""

from __future__ import annotations

import sys

import torch
from elastic_program import Faults, tell_end

import kadril.torch as hvd
from kadril.sharded import POS_Trainer, ShardedOptimizer
from kadril.torch.elastic import TorchState


class Values(TorchState):
    """The state of this program, which may die in the middle of a commit."""

    faults: Faults

    def save(self) -> None:
        if hasattr(self, "faults"):
            self.faults.may_happen(self.step, "save")
        super().save()


def make_optimizer(kind: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    if kind == "trainer":
        return POS_Trainer(model, "adam", {"lr": 0.125})
    if kind == "greedy":
        return POS_Trainer(model, "adamw", {"lr": 0.125}, rule="greedy", stage=1)
    if kind == "optimizer":
        return ShardedOptimizer(
            model.parameters(), torch.optim.Adam, lr=0.125, reduce_gradients=True
        )
    plain = torch.optim.Adam(model.parameters(), lr=0.125)
    return hvd.DistributedOptimizer(plain, model.named_parameters())


def pull(model: torch.nn.Module, step: int) -> None:
    """Compute gradients of which the mean over all ranks does not depend on their number."""
    loss = torch.zeros(())
    for number, parameter in enumerate(model.parameters()):
        places = torch.arange(parameter.numel()).reshape(parameter.shape)
        mean = (places + step + number) % 7 - 3
        own = mean + 2 * hvd.rank() - hvd.size() + 1
        loss = loss + (own * parameter).sum()
    loss.backward()


def train(state: Values, last: int, every: int) -> None:
    state.faults.await_timers()
    while state.step < last:
        state.faults.await_change(state, state.step)
        state.optimizer.zero_grad()
        pull(state.model, state.step)
        state.optimizer.step()
        state.step += 1
        state.faults.may_happen_after(state.step)
        if state.step % every == 0:
            state.faults.may_happen(state.step, "commit")
            state.commit()
            state.faults.await_timers()


def main() -> None:
    last, every, kind = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    faults = Faults()
    hvd.init()
    faults.may_happen_at_start()
    torch.manual_seed(hvd.rank())  # the state of rank 0 is what counts
    model = torch.nn.Sequential(torch.nn.Linear(9, 7), torch.nn.Linear(7, 5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) if hvd.rank() else torch.ones(()))
    state = Values(model, make_optimizer(kind, model), step=0)
    state.faults = faults
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size()), faults.may_happen_at_reset])
    hvd.elastic.run(train)(state, last, every)
    weights = [value for each in model.parameters() for value in each.flatten().tolist()]
    tell_end(resets, weights)


if __name__ == "__main__":
    main()
