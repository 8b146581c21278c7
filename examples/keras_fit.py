"""Keras 3: `model.fit` on several ranks, each with its part of the data.

    kadril run -np 2 examples/keras_fit.py

The lines that make it a program for many ranks are numbered. The data is made: points on two rings.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np

import kadril.tensorflow as hvd


def rings(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points on two rings around each other, and which ring each is on."""
    random = np.random.default_rng(0)
    ring = random.integers(0, 2, count)
    angle = random.uniform(0, 2 * np.pi, count)
    radius = 1.0 + ring + random.normal(0, 0.1, count)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return points.astype(np.float32), ring.astype(np.float32)


def main() -> None:
    """Train, and test on all points."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    # 1. Meet the other ranks.
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential(
        [
            keras.layers.Input((2,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    # 2. Gradients are averaged over all ranks.
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01 * hvd.size()))
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    # 3. All ranks start with the weights of rank 0.
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    points, labels = rings(2048)
    # 4. Each rank has its own part of the data.
    share = slice(hvd.rank(), None, hvd.size())
    model.fit(points[share], labels[share], batch_size=32, epochs=options.epochs, verbose=0)
    loss, accuracy = model.evaluate(points, labels, verbose=0)
    # 5. The same on all ranks: only one needs to say so.
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks, {options.epochs} epochs: loss {loss:.4f}, {accuracy:.1%} right")


if __name__ == "__main__":
    main()
