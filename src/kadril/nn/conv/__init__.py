"""Convolutions of tensors whose batch, space or channels are split.

| file | has |
|---|---|
| `layers.py`, `transpose.py` | the layers: ordinary and transposed convolutions |
| `conv_layer.py` | `ConvLayer`, their base class: settings, parameters, and the choice of a form |
| `conv_settings.py` | the settings of a torch layer |
| `conv_form.py` | `ConvForm`, base of the forms: which dims are split, who holds which weight |
| `feature_form.py` | the feature form: every worker has the whole weight |
| `split_form.py` | the channel and general forms: every worker has a block of the weight |
| `convolution.py`, `transposed_convolution.py` | the arithmetic of one worker, and its box |
| `conv_window.py` | which inputs an output is made of along one dim, and the reverse |
| `channel_groups.py` | grouped convolution of a block of channels |
| `strips.py` | outputs at the border of a block, and the inputs from others they are made of |
| `strip_conv.py` | the convolution of a block as it lies, and of its strips |
| `overlap.py` | whether halos are exchanged while a block is convolved |
"""
