"""`kadril run`: start ranks on this host, watch them, and leave nothing behind.

    command            the command line of `kadril run`
    horovod_flags      horovodrun's flags: what each sets, why it has no effect, why it is refused
    config_file        the same from a YAML file
    hosts              `--hosts` and `--hostfile`, which may name this host only
    build_report       `--check-build`
    options            what was asked for
    launcher           a run from the first check to the last file removed
    rank_environment   the variables that all ranks get
    job                private directory, secret and rendezvous socket of one job
    guardian           a tiny process that cleans up when the launcher is killed
    leftovers          find and end what is left of a job (the guardian's program)
    supervisor         the event loop: exits, output, signals, deadlines
    rank_process       one rank: how it is started, signalled and how it ended
    signal_inbox       signals to the launcher, as events
    output             the streams of all ranks, the sinks, and the back-pressure between them
    log_files          files that keep what each rank wrote
    line_stream        bytes of a rank -> whole lines with a prefix
    sink               whole lines -> the launcher's own stdout or stderr, never blocking
    summary            who failed first and why; the exit code
    option_table       `kadril env`

Nothing here imports torch, numpy or the native module.
"""

from kadril.launch.launcher import run, run_command
from kadril.launch.options import LaunchError, RunOptions

__all__ = ["LaunchError", "RunOptions", "run", "run_command"]
