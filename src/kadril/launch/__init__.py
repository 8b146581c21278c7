"""`kadril run`: start ranks on one host or several, watch them, and leave nothing behind.

    command        the command line of `kadril run`
    options        all that was asked for, as data
    launcher       a run on this host, from the first check to the last file removed
    several_hosts  a run on several: connect, check, prepare, start

    request/       flags about hosts, horovodrun's flags, YAML files, `--check-build`, `--dry-run`
    mapping/       where each rank runs: hosts, rank files, cores
    elastic/       jobs that outlive their ranks: generations, discovery of hosts
    forking/       ranks that are forked from a process which has loaded what they load
    local/         ranks of one host: start them, clean up after them
    remote/        ranks of another host, through an agent over ssh
    supervision/   the event loop: exits, output, signals, the summary at the end
    verbs/         `kadril rankfile`, `mpirun`, `ddlrun` and `env`

Nothing here imports torch, numpy or the native module.
"""

from kadril.launch.launcher import run, run_command
from kadril.launch.options import LaunchError, RunOptions

__all__ = ["LaunchError", "RunOptions", "run", "run_command"]
