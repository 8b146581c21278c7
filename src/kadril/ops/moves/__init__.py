"""Moves of boxes between the workers of a partition.

move_plan          who sends which box to whom: pure data
   |
packing            boxes of tensors as messages, and back
   |
packed_carrier     runs a plan by messages, over any transport
shm_carrier        runs a plan through shared memory, without packing
   |
carriers           picks one of the two; a plan as a linear operator with its adjoint
   |
mover              agrees on the structure of a tensor and moves it, in one meeting
"""
