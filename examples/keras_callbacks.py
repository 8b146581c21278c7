"""Keras 3 with callbacks, on TensorFlow or torch: warmup, averaged metrics, the best model.

    kadril run -np 2 examples/keras_callbacks.py
    KERAS_BACKEND=torch kadril run -np 2 examples/keras_callbacks.py

The data is made: points on two rings. The learning rate grows with the number of ranks, and begins
with that of one.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import keras
import numpy as np

import kadril.keras as hvd


def rings(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points on two rings around each other, and which ring each is on."""
    random = np.random.default_rng(seed)
    ring = random.integers(0, 2, count)
    angle = random.uniform(0, 2 * np.pi, count)
    radius = 1.0 + ring + random.normal(0, 0.1, count)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return points.astype(np.float32), ring.astype(np.float32)


def main() -> None:
    """Train, and test the best model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential(
        [
            keras.layers.Input((2,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    rate = 0.05 * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    with tempfile.TemporaryDirectory() as folder:
        # Rank 0 writes, into its own folder.
        best = str(Path(folder) / "best.keras")
        callbacks = [
            # All ranks start with rank 0's weights; only rank 0 shows a progress bar.
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            # Callbacks after this one see the means over all ranks.
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2),
            hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=best),
        ]
        # Each rank has its own data.
        points, labels = rings(1024, seed=hvd.rank())
        model.fit(points, labels, batch_size=32, epochs=options.epochs, callbacks=callbacks)
        if hvd.rank() == 0:
            loaded = keras.models.load_model(best)
            loss, accuracy = loaded.evaluate(*rings(1024, seed=99), verbose=0)
            print(f"{hvd.size()} ranks: the best model has loss {loss:.4f}, {accuracy:.1%} right")


if __name__ == "__main__":
    main()
