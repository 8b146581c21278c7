"""A compiled model whose backward graph gives its gradients away as it makes them.

    kadril run -np 2 examples/sharded_compiled.py
    kadril run -np 2 examples/sharded_compiled.py --inner inductor --picture graph.svg

A compiled backward pass hands out all gradients together, at its end. By then all of them are in
memory at once, and hooks come too late. So the reductions go into the graph itself:

    gw = mm(dy, x)
    send_gradient(gw)        each rank gets the part that it owns; gw is freed here
    dx = mm(dy, w)
    ...
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.functional import mse_loss

import kadril
from kadril.sharded import POS_Trainer, backward, explain, optimize_for

BATCH, WIDTH, NUM_LAYERS, NUM_STEPS = 64, 256, 6, 60


def make_model() -> nn.Module:
    """Make a few layers of the same width."""
    layers: list[nn.Module] = [nn.Linear(4, WIDTH), nn.Tanh()]
    for _ in range(NUM_LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def main() -> None:
    """Train with Adam, whose state is shared out too."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--inner", choices=("eager", "inductor"), default="eager")
    parser.add_argument("--picture", help="where to write bytes over nodes, as .svg or .png")
    options = parser.parse_args()
    kadril.init()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = torch.randn(NUM_STEPS, BATCH, 4)
    model = make_model()
    trainer = POS_Trainer(model, "adam", {"lr": 1e-3})

    # The same as torch.compile(model, backend="kadril"), but compiled here and now.
    mine = slice(kadril.rank(), None, kadril.size())
    compiled = optimize_for(
        model,
        data[0][mine],
        backend="add_reduce_op",
        inner=options.inner,
        **trainer.generate_graph_pass_options(),
    )
    backward_options = trainer.generate_backward_options()
    for step in range(NUM_STEPS):
        x = data[step][mine]
        loss = mse_loss(compiled(x), x.norm(dim=1, keepdim=True))
        backward(loss, backward_option=backward_options)
        trainer.step()
        if kadril.rank() == 0 and step % 20 == 19:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    num_kept = sum(parameter.grad is not None for parameter in model.parameters())
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    print(f"rank {kadril.rank()}: {num_kept} whole gradients, sum of weights {weights.sum():.6f}")

    if kadril.rank() == 0:
        found = explain(model, data[0][mine], path=options.picture, quiet=True)
        before, after = found.graphs[0].peak_before, found.graphs[0].peak_after
        print(f"most bytes in the backward graph: {before} before the pass, {after} after it")
    kadril.shutdown()


if __name__ == "__main__":
    main()
