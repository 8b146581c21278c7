"""The tiered transport: ranks on several hosts, shared memory inside each.

| file | what it holds |
|---|---|
| tiered.py | the transport: which way each collective goes, groups |
| topology.py | which ranks share a host, which hosts share a rack |
| tier_plan.py | who adds which elements, and what crosses which link; pure data |
| cost_model.py | the time that a plan, a ring, a tree or a torus takes, by a model |
| tier_group.py, host_notes.py | how ranks of several hosts meet; the notes inside a host |
| tier_reduction.py, tier_reduce_scatter.py | reductions, chunk by chunk |
| tier_kernels.py | by what each tier adds, and where it scales |
| tier_moves.py, tier_blocks.py | broadcast and all-gather; an array seen as one block per host |
| tier_probe.py, tier_tuning.py | how fast tiers are; which way arrays take by that, kept on disk |
| pipeline.py, scratch.py | chunks under way together, and their memory |
| tier_clock.py | how long a call spends in each tier |
| wire_format.py | the element type between hosts |
"""
