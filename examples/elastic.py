"""Training that goes on when a rank is killed: the result is that of a run in which none was.

    kadril run -np 3 --min-np 2 examples/elastic.py            (rank 1 is killed in the middle)
    kadril run -np 3 --min-np 2 examples/elastic.py quiet      (nobody is)

    rank 0   step  step  commit  step .  PeerLost   restore   sync  step  step
    rank 1   step  step  commit  step X
    rank 1'                               starts, init        sync  step  step

What was done since the last commit is done again. Ranks that live stay in their process.
"""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import kadril.torch as hvd

NUM_EPOCHS, BATCH_SIZE, BATCHES_PER_COMMIT = 3, 4, 4


def die_once(epoch: int, batch: int) -> None:
    """Kill rank 1 in the middle of the second epoch; its successor has another generation."""
    is_first = os.environ.get("KADRIL_GENERATION") == "0" and "quiet" not in sys.argv
    if is_first and (epoch, batch, hvd.rank()) == (1, 6, 1):
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Fit a plane."""
    hvd.init()
    torch.manual_seed(0)
    x = torch.randn(120, 2)
    data = TensorDataset(x, x @ torch.tensor([[3.0], [-2.0]]))
    model = nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5),
        named_parameters=model.named_parameters(),
    )
    sampler = hvd.elastic.ElasticSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=BATCH_SIZE, sampler=sampler)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        while state.epoch < NUM_EPOCHS:
            for number, (inputs, targets) in enumerate(loader):
                optimizer.zero_grad()
                mse_loss(model(inputs), targets).backward()
                optimizer.step()
                state.batch += 1
                sampler.record_batch(number, len(inputs))
                die_once(state.epoch, state.batch)
                if state.batch % BATCHES_PER_COMMIT == 0:
                    state.commit()
            state.epoch, state.batch = state.epoch + 1, 0
            sampler.set_epoch(state.epoch)
            state.commit()

    train(state)
    weights = " ".join(value.hex() for value in model.weight.flatten().tolist())
    print(f"rank {hvd.rank()} of {hvd.size()}: weights {weights}")


if __name__ == "__main__":
    main()
