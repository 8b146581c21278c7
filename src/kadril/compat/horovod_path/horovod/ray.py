"""A module that does not exist here; importing it raises an error that says so."""

from ._missing import refuse

refuse("horovod.ray")
