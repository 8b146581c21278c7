"""Not there; see the message."""

from ._missing import refuse

refuse("horovod.tensorflow")
