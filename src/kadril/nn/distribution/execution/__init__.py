"""Execution: the model on a partition, and the programs that it calls.

| file | has |
|---|---|
| `builder.py` | `Builder`: twins of modules, and programs made of plans |
| `program.py` | `Program`: the steps for inputs of some global shapes, in some mode |
| `model.py` | `DistributedModel`: picks the program for its inputs |
| `input_blocks.py` | `InputBalancer`: checks the blocks of an input, and balances them |
"""
