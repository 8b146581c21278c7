"""Rules: how a call of torch is done on blocks.

A rule takes a `Call` and returns a `Decision`, or raises `Refused` with the reason (`call.py`):

    def flip(call: Call) -> Decision:
        layout = call.layout(call.operand)              the layout the operand has
        return Decision(
            {call.operand: layout},                     the layout in which it is needed
            layout,                                     the layout of the result
            make,                                       makes what runs on blocks; collective
        )

Rules send nothing and make nothing: a model that cannot be distributed is refused before anything
has happened. What `make` returns runs in each forward pass, and has the backward pass of a
replicated or split tensor: built from the operators of `kadril.ops`, it has that by itself.

| to add ... | do this |
|---|---|
| a function or method, element by element | add its name to `POINTWISE` in `function_table.py` |
| another function or method | write its rule in a file of `functions/`; add it to the table there |
| a new distributed layer | write it in `kadril.nn`, with `of(layer, P_x, what=)`; then: |
| a module that has a partitioned twin in `kadril.nn` | one line in `layer_table.py`: `twin(...)` |
| a function that is such a layer, `F.conv2d` | one line in `layers/parameter_functions.py` |
| one without parameters, `F.max_pool2d` | one line in `layers/layer_functions.py` |
| another module | write its rule in `layers/`; add it to `layer_table.py` |

Then add a model of that one call to `tests/ranks/nn/small_models.py`, or to the cases of
`tests/ranks/nn/test_distribute_functions.py`: it is compared with the ordinary model.

| file | has |
|---|---|
| `call.py` | `Call`, `Decision`, `Rule`, `Refused`, `DistributeError` |
| `function_table.py` | `FUNCTIONS`: the rules for functions and methods |
| `layer_table.py` | `LAYERS`: the rules for modules |
| `whole_operands.py` | calls without a partitioned form: they need their operands whole |
"""
