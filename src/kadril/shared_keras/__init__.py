"""Code that `kadril.keras` and `kadril.tensorflow.keras` share; loads none of the frameworks.

| file | what it holds |
|---|---|
| family.py | `KerasFamily`: the functions that users call, over what differs between frameworks |
| distributed_apply.py | optimizers that step with the gradients of all ranks |
| accumulation.py | several backward passes for one step |
| callbacks.py | what the callbacks do |
| learning_rate.py | the callbacks that change the learning rate |
| elastic.py | callbacks that keep an elastic state up to date |
| derived.py | all callbacks as classes of a package's Keras |
| optimizer_access.py | learning rate, momentum and variables of optimizers of Keras 2 and 3 |
"""
