"""Reduction of gradients to their owners.

| file | what |
|---|---|
| gradients.py | the protocol that a trainer uses |
| reduced_gradients.py | joins a round and a carrier: gradients that the trainer reduces |
| prereduced.py | gradients that somebody else has reduced, as DistributedDataParallel does |
| round.py | the state of a round: what came, whose turn it is, what was dropped |
| arrival_hooks.py | reports when a gradient is in `.grad` |
| carrier.py | the protocol of carriers |
| carrier_choice.py | which of the two is chosen |
| outbox_carrier.py | through outboxes in shared memory, where nobody waits |
| outbox.py, outgoing.py, bucket_sums.py | its outboxes, its queue of gradients, its sums |
| recycled_memory.py | gradients whose memory is reused for sums |
| collective_carrier.py | by collectives, between hosts |
| communication_thread.py | makes them while the backward pass continues |
| intent.py | what ranks exchange before parameters are written |
| grad_notice.py | warns whoever looks for gradients that were given away |
| joined_gradients.py | gradients for ranks that have run out of data |
"""
