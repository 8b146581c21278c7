"""Jobs that outlive their ranks: `kadril run --min-np A --max-np B`.

elastic_run         a run on this host, from the first check to the last clean-up
elastic_supervisor  the event loop: which exits end the job, and which begin a new generation
worker_set          the workers of the job, their ranks in each generation
worker              one worker: its process, what it said, its end of the connection
fresh_start         whether all ranks may be started anew, before any has a state
worker_signals      signals to the launcher that end no worker
worker_start        how its processes are started: as programs, or forked
worker_slots        how many workers there should be, and when they may be started
host_slots          slots of a discovery script; cooldown
host_names          which names of a listing lead to this machine
helper_program      a program that the launcher runs beside its event loop
"""

from kadril.launch.elastic.elastic_run import run_elastic

__all__ = ["run_elastic"]
