"""`kadril.run`: call a Python function on many ranks, and get what it returned on each.

    caller            driver                         job directory (0700)        ranks
    ------            ------                         --------------------        -----
    pack the call --> reads it (pipe), starts ranks --> call ------------------> unpack, call
                      copies bytes, never unpacks  <--- result.N, failure.N <--- pack the result
    unpack      <---- sends them back (pipe)

    caller         the caller's side
    serialization  what is packed, and how
    driver         the launcher, in a process of its own
    worker         the program of the ranks

A driver of its own keeps the launcher's forks and signal handlers out of a notebook or a program
with threads. Nothing that is unpacked has ever been in a place that another user can write to.

Nothing here imports torch or numpy.
"""

from kadril.function_job.caller import run

__all__ = ["run"]
