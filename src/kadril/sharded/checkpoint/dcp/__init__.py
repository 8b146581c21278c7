"""Checkpoints in the format of torch.distributed.checkpoint, over a transport.

| file | what it holds |
|---|---|
| saving.py | `Saving`: one save, from the plans of all ranks to the metadata |
| background.py | a save in a thread beside the training, one at a time |
| writer.py | `AtomicWriter`: replaces a checkpoint in one move |
| load_target.py | `Target`: memory to load into, and how loaded values reach their objects |
| optimizer_target.py | such memory for the state of one optimizer |
| reader.py | `CheckedReader`: reads nothing that was damaged since it was saved |
| plain_planner.py | `PlainLoadPlanner`: reads values that are no tensors without running code |
| metadata_unpickler.py | reads metadata, which is a pickle, without running code |
| checksums.py | the file with checksums that `AtomicWriter` writes and `CheckedReader` reads |

`kadril.sharded.dcp` has the functions that users call.
"""
