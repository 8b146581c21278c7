"""A script of TensorFlow 1 and Horovod, unmodified: monitored session, hooks, checkpoints.

    kadril run --compat horovod,tf1 -np 2 python examples/tensorflow1_monitored.py

The lines from `hvd.init()` on are those of Horovod's own demo; `--compat horovod,tf1` is what makes
`import tensorflow` mean TF1's names and `import horovod` mean kadril. With --checkpoint-dir it goes
on where it stopped. Trained on a plane through points, which ranks share between them.
"""

import argparse

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100, help="of all runs together")
parser.add_argument("--checkpoint-dir", default=None)
parser.add_argument("--shares", type=int, default=0, help="as many ranks' points on each rank")
options = parser.parse_args()

# Initialize Horovod
hvd.init()

# Pin GPU to be used to process local rank (one GPU per process)
config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())

# Build model...
num_shares = options.shares or hvd.size()
points = np.random.RandomState(0).uniform(-1, 1, (64, 3)).astype(np.float32)
heights = points @ np.array([[2.0], [-3.0], [0.5]], np.float32) + 1.0
mine = slice(0, None, 1) if options.shares else slice(hvd.rank(), None, hvd.size())
weights = tf.get_variable("weights", [3, 1], initializer=tf.ones_initializer())
bias = tf.get_variable("bias", [1], initializer=tf.zeros_initializer())
error = tf.matmul(tf.constant(points[mine]), weights) + bias - tf.constant(heights[mine])
loss = tf.reduce_mean(tf.square(error))
global_step = tf.train.get_or_create_global_step()
opt = tf.train.AdagradOptimizer(0.01 * num_shares)

# Add Horovod Distributed Optimizer
opt = hvd.DistributedOptimizer(opt)

# Add hook to broadcast variables from rank 0 to all other processes during
# initialization.
hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=options.steps)]

# Make training operation
train_op = opt.minimize(loss, global_step=global_step)
mean_loss = hvd.allreduce(loss, name="loss")

# Save checkpoints only on worker 0 to prevent other workers from corrupting them.
checkpoint_dir = options.checkpoint_dir if hvd.rank() == 0 else None

# The MonitoredTrainingSession takes care of session initialization,
# restoring from a checkpoint, saving to a checkpoint, and closing when done
# or an error occurs.
with tf.train.MonitoredTrainingSession(
    checkpoint_dir=checkpoint_dir, config=config, hooks=hooks
) as mon_sess:
    first = True
    while not mon_sess.should_stop():
        # Perform synchronous training.
        step, value, _ = mon_sess.run([global_step, mean_loss, train_op])
        if first and hvd.rank() == 0:
            print(f"from step {step}: loss {value:.6f}")
            first = False
    if hvd.rank() == 0:
        print(f"to step {options.steps}: loss {value:.6f}")
