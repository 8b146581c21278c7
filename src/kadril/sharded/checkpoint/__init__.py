"""Checkpoints: kadril's own format, and that of torch.distributed.checkpoint.

| file | what it holds |
|---|---|
| saving.py, loading.py | `trainer.save()`, `trainer.load()`: a directory with a shard per rank |
| index_file.py | the index of such a directory, which names the shards |
| shard_file.py | one shard: the pieces of one rank |
| durable_files.py | files that survive a crash, and their checksums |
| dcp/ | the same in torch's format; `kadril.sharded.dcp` has the functions that users call |

    pieces of each rank --shard_file--> shards, then --index_file--> index
    index --> shards of any number of ranks --> StoredState (state/) --> pieces of this rank

A new format is a folder beside dcp/ that writes what `state/own_state.py` gives, and reads it as
`StoredState`.
"""
