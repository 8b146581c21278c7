"""Plans made of graphs of calls: a decision for each call, before anything is sent.

| file | has |
|---|---|
| `call_plan.py` | `plan_calls`: asks the rule of each call, and lists all that are refused |
| `alignment.py` | `make_alignment`: brings an operand from the layout it has to the one it needs |
"""
