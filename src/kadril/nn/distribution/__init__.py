"""`distribute`: an ordinary torch model on the blocks of a partition.

    model, example  --tracing-->  graph of calls  --planning-->  decisions  --execution-->  twin
                                                       |
                                                     rules

| to find, or to add ... | look at |
|---|---|
| what users call, and the convention for replicas | `distribute.py` |
| how `forward` becomes a graph: what is recorded, what is refused | `tracing/` |
| how a torch function, method or module is done on blocks | `rules/`, which says how to add one |
| how decisions become a plan, and operands are brought where a call needs them | `planning/` |
| what runs: the model, its programs, the check of its inputs | `execution/` |

Shared by all of them: `layout.py` (which axis splits which dim), `replicas.py` (from blocks to the
whole and back), `nested.py` (values in lists, tuples and dicts), `side_effects.py` (what a call
writes and draws) and `module_mode.py` (training or evaluation, for a while).
"""
