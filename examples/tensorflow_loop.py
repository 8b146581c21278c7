"""TensorFlow 2: a training loop of one's own in `tf.function`, with a distributed tape.

    kadril run -np 2 examples/tensorflow_loop.py

The lines that make it a program for many ranks are numbered.
"""

from __future__ import annotations

import argparse

import numpy as np
import tensorflow as tf

import kadril.tensorflow as hvd


def main() -> None:
    """Fit a line through points."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    # 1. Meet the other ranks.
    hvd.init()
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, 256).astype(np.float32)
    y = 3 * x + 1
    # 2. Each rank has its own part of the data.
    share = slice(hvd.rank(), None, hvd.size())
    inputs, targets = tf.constant(x[share]), tf.constant(y[share])
    slope, offset = tf.Variable(float(hvd.rank())), tf.Variable(0.0)
    # 3. All ranks start with the variables of rank 0.
    hvd.broadcast_variables([slope, offset], root_rank=0)

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((slope * inputs + offset - targets) ** 2)
        # 4. The tape gives the gradients of all ranks.
        tape = hvd.DistributedGradientTape(tape)
        for variable, gradient in zip(
            (slope, offset), tape.gradient(loss, [slope, offset]), strict=True
        ):
            variable.assign_sub(0.5 * gradient)
        # 5. So is the loss that is shown the mean over all ranks.
        return hvd.allreduce(loss, name="loss")

    for _ in range(options.steps):
        loss = step()
    if hvd.rank() == 0:
        print(f"y = {float(slope):.4f} x + {float(offset):.4f}, loss {float(loss):.2e}")


if __name__ == "__main__":
    main()
