"""Graphs of calls, traced by running a model once on tensors without memory.

| file | has |
|---|---|
| `trace.py` | `trace`: the graph of a model, for inputs of some global shapes |
| `recorder.py` | `Recorder`: notes each call of torch |
| `tracked_tensor.py` | `TrackedTensor`: what is known about a tensor while the model runs |
| `canonical_call.py` | one form for calls that can be written in several ways |
| `instrument.py` | prepares the model for tracing, and restores it |
"""
