"""Rules for functions and methods of tensors.

| file | has rules for |
|---|---|
| `pointwise.py` | element by element, `cat`, `stack`; the helper `as_it_is` |
| `along_dims.py` | what rules for calls along dims share |
| `sums.py`, `extremes.py`, `vector_norms.py` | `sum`, `mean`; `max`, `argmax`; `norm` |
| `reductions.py` | `prod`, `any`, `var`, `softmax`, `cumsum` |
| `contractions.py` | `matmul`, `einsum`, `tensordot` |
| `reshape.py` | `reshape`, `flatten`, `permute`, `expand` |
| `rearrange.py` | `flip`, `roll`, `repeat`, pixel and channel shuffles |
| `slices.py`, `index_select.py` | `x[1:5]`, `chunk`, `pad`; `x[:, [2, 0]]` |
| `assignment.py` | `x[1:5] = y` |
| `factories.py` | `torch.zeros` and other tensors made in `forward` |
| `attributes.py` | `x.T`, `x.real`, `x.dim()` |
"""
