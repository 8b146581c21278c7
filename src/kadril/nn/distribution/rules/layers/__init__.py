"""Rules for modules, and for functions that are layers.

| file | has rules for |
|---|---|
| `twin_rules.py` | modules with a partitioned twin; modules that run on blocks as they are |
| `layer_functions.py` | functions that are layers without parameters: `F.max_pool2d`, `F.dropout` |
| `parameter_functions.py` | functions that are layers with parameters: `F.conv2d`, `F.linear` |
| `layer_call.py` | `LayerCall`: a function seen as a call of its layer |
| `parametrized.py` | layers whose weight is computed in each pass: `weight_norm`, `spectral_norm` |
| `attention.py` | `nn.MultiheadAttention`, `F.scaled_dot_product_attention` |
| `losses.py` | losses, as functions and as modules |
| `padding.py` | `nn.ZeroPad2d` and the other modules that pad |
| `area_upsample.py` | `nn.Upsample(mode="area")` |
| `seeded_dropout.py` | dropouts, which drop the same elements on all replicas |
"""
