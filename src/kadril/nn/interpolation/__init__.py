"""Interpolation of tensors whose dims are split.

| file | has |
|---|---|
| `upsample.py` | the layer |
| `function.py` | `interpolate`, the function |
| `interpolated_box.py` | the interpolation of one worker's box |
| `taps.py` | which inputs an output is made of along one dim, and with which weights |
"""
