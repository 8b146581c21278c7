"""The engine: named requests that ranks may submit in any order.

    request      verbs and reductions, as the native core knows them
    conductor    one process set: submits requests, waits for them
    lane         lets the native engine run over a transport that is written in Python
    engine       all process sets of a world
    timeline     one trace file for all ranks

The work itself is done in `native/engine`, by one thread for each process set. A rank with nothing
to do sleeps, and so does one that waits for others.
"""

from __future__ import annotations

from kadril.engine.conductor import ProcessSetConductor
from kadril.engine.engine import Engine, engine_of
from kadril.engine.request import Reduction, Verb

__all__ = ["Engine", "ProcessSetConductor", "Reduction", "Verb", "engine_of"]
