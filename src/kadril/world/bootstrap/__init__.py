"""Ways for the ranks of a world to exchange a few small blobs before there is a transport.

Each file is one way: over the hub of `kadril run`, over torch's store, over MPI.
"""

from __future__ import annotations

from kadril.world.bootstrap.base import Bootstrap, agree
from kadril.world.bootstrap.opening import open_bootstrap

__all__ = ["Bootstrap", "agree", "open_bootstrap"]
