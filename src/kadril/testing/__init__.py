"""The public test kit: write tests that run on ranks, with the tools that kadril tests itself with.

    from kadril.testing import ranks

    @ranks(1, 2, 4)
    def test_sum_of_ranks(world):
        total = torch.tensor([world.rank])
        world.transport.allreduce(total)
        assert total.item() == sum(range(world.size))

| name | for |
|---|---|
| `ranks`, `run_on_ranks`, `RankPool`, `RanksFailed` | tests on a standing pool of ranks |
| `check_adjoint`, `check_autograd_adjoint`, `integer_valued` | the dot-product test of operators |
| `Ranks`, `Outcome`, `fault_points` | ranks that are killed, stopped, or fail at a named point |
| `hosts`, `HostNetwork`, `HostsUnavailable` | several hosts on one machine, with links and ssh |
| `no_leaks`, `LeakError` | nothing is left behind |
| `shutdown` | end the processes the kit has started; the pytest plugin calls it |

Names are imported when first used: the kit itself needs neither torch nor pytest to be imported.

What is where:

    decorator            @ranks, and what it asked for      plugin    what pytest makes of it
    pool                 the standing pool: worlds, and functions that run on their ranks
    worker_pool          its processes: forked ones         mpi_worker_pool   one job under mpirun
    worker               the program of such a process      request_handler   what it does if asked
    collective_request   one request to all ranks of a world, with a deadline
    messages             requests and replies               failure   what became of a test
    faults               disposable ranks: kill, stop, arm a named point
    fork_client          have them forked, and hear of them
    fork_server          the process that forks them        fork_messages     what the two say
    forked_rank          such a rank, from fork to end      outcome           what became of it
    rendezvous           where the ranks of a world find each other
    worlds               how a rank opens a world           target    find a function elsewhere
    starting             what processes are started with
    process, orphans     state of a process; ranks end with their session
    host_network         several hosts on one machine       host      one of them
    host_ssh             their sshd                         namespaces        what makes a host one
    leaks                what was left behind               adjoint   the dot-product test
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kadril.testing.adjoint import check_adjoint, check_autograd_adjoint, integer_valued
    from kadril.testing.decorator import ranks
    from kadril.testing.failure import RanksFailed
    from kadril.testing.faults import Outcome, Ranks, fault_points
    from kadril.testing.host_network import HostNetwork, HostsUnavailable, hosts
    from kadril.testing.leaks import LeakError, no_leaks
    from kadril.testing.pool import RankPool, run_on_ranks

__all__ = [
    "HostNetwork",
    "HostsUnavailable",
    "LeakError",
    "Outcome",
    "RankPool",
    "Ranks",
    "RanksFailed",
    "check_adjoint",
    "check_autograd_adjoint",
    "fault_points",
    "hosts",
    "integer_valued",
    "no_leaks",
    "ranks",
    "run_on_ranks",
    "shutdown",
]

HOMES = {
    "HostNetwork": "host_network",
    "HostsUnavailable": "host_network",
    "LeakError": "leaks",
    "Outcome": "faults",
    "RankPool": "pool",
    "Ranks": "faults",
    "RanksFailed": "failure",
    "check_adjoint": "adjoint",
    "check_autograd_adjoint": "adjoint",
    "fault_points": "faults",
    "hosts": "host_network",
    "integer_valued": "adjoint",
    "no_leaks": "leaks",
    "ranks": "decorator",
    "run_on_ranks": "pool",
}


def shutdown() -> None:
    """End all processes that the kit keeps: the ranks of the pool, and the fork server of `Ranks`.

    They are started again when they are needed again.
    """
    for name, close in (("pool", "close_pool"), ("fork_client", "close_fork_client")):
        module = sys.modules.get(f"kadril.testing.{name}")
        if module is not None:
            getattr(module, close)()


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(importlib.import_module(f"kadril.testing.{HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
