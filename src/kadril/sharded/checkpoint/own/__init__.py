"""Kadril's own checkpoint format: a directory with a shard of each rank, and an index.

| file | what it holds |
|---|---|
| saving.py | `trainer.save()`: the shards, then the index |
| loading.py | `trainer.load()`: what this rank owns, from the shards of any number of ranks |
| index_file.py | the index of a directory, which names the shards |
| shard_file.py | one shard: the pieces of one rank |

    pieces of each rank --shard_file--> shards, then --index_file--> index
    index --> shards of any number of ranks --> StoredState (state/) --> pieces of this rank
"""
