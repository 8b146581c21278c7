"""Checkpoints: a folder for each format, and what formats share.

| file, folder | what it holds |
|---|---|
| own/ | kadril's own format; `trainer.save()` and `trainer.load()` |
| dcp/ | that of torch.distributed.checkpoint; `kadril.sharded.dcp` has the functions users call |
| durable_files.py | files that survive a crash, and their checksums |
| same_version.py | agreement that all ranks have read the same checkpoint |

A format writes what this rank owns, and loads what this rank owns from any number of ranks:

            writes from                                        loads into
    own/    `piece_values()` of each piece, and its elements   `StoredState`, for `cut_state()`
    dcp/    `own_state()`, which `trainer.state_dict()` gives  `CutTensor`s, which it fills

The first is for formats of pieces, which read the pieces that they need. The second is for formats
that know tensors and boxes of them, and fill memory that they are given.
"""
