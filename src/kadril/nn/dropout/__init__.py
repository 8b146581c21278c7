"""Dropouts whose masks do not depend on the partition.

| file | has |
|---|---|
| `layers.py` | the dropouts |
| `mask.py` | the mask of a block, from a seed and places in the global tensor |
"""
