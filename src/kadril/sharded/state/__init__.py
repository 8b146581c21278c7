"""Optimizer state outside of an optimizer, in the forms that users and checkpoints have it in.

| file | what it holds |
|---|---|
| stored_state.py | `StoredState`: pieces from any number of ranks, the form in the middle |
| value_kinds.py | which values can be cut, and what checkpoints can hold |
| own_state.py | out of the optimizer: this rank's part, as `trainer.state_dict()` gives it |
| consolidated_state.py | out of the optimizers of all ranks: one plain state_dict on one rank |
| given_state.py | what users give: plain_state.py reads numbers, named_state.py names |
| option_check.py | whether options are those of the same kind of optimizer |
| load_state.py | into the optimizer: cut for this rank's pieces |
| layout.py | values of pieces one after the other, in a file or in memory |
| committed_state.py | what all ranks have at a commit, in memory that outlives each of them |
| boxes.py | ranges of a tensor's memory as the boxes that torch's checkpoints know |

    optimizer --own_state--> state_dict            files --checkpoint/--+
    optimizers --consolidated_state--> state_dict                       v
    state_dict --given_state--> StoredState <---------------------------+
    StoredState --load_state--> optimizer
"""
