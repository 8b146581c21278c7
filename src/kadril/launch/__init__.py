"""`kadril run`: start ranks on one host or several, watch them, and leave nothing behind.

What was asked for:

    command            the command line of `kadril run`
    host_options       its flags about hosts
    horovod_flags      horovodrun's flags: what each sets, why it has no effect, why it is refused
    config_file        the same from a YAML file
    options            all of it as data
    build_report       `--check-build`
    dry_run            `--dry-run`

Where ranks are:

    hosts              `--hosts` and `--hostfile`
    rank_file          rank files: reading and writing
    placement          the host of each rank
    cpu_topology       sockets and cores of a host
    binding            the processors of each rank

A run:

    launcher           on this host, from the first check to the last file removed
    several_hosts      on several: connect, check, prepare, start
    program            which Python runs the program, and whether it is there
    rank_environment   the variables that all ranks get
    job                private directory, secret and rendezvous socket of one job on one host
    guardian           a tiny process that cleans up when the launcher is killed
    leftovers          find and end what is left of a job (the guardian's program)
    supervisor         the event loop: exits, output, signals, deadlines
    rank_host          a host as the supervisor sees it
    local_host         ranks of this host
    remote_host        ranks of another one, by way of its agent
    agent              the program that starts ranks on a host and tells of them
    frame_channel      frames between launcher and agent
    ssh                how an agent is started, and why it was not
    ssh_connection     whether the connection of an agent is dead
    network_address    addresses and ports of a host
    rank_process       one rank: how it is started, signalled and how it ended
    rank_pipes         what ranks of a host write, read as long as there is room for it
    signal_inbox       signals to the launcher, as events
    output             the streams of all ranks, the sinks, and the back-pressure between them
    log_files          files that keep what each rank wrote
    line_stream        bytes of a rank -> whole lines with a prefix
    sink               whole lines -> the launcher's own stdout or stderr, never blocking
    summary            who failed first and why; the exit code

Other verbs:

    rank_file_command  `kadril rankfile`          dimensions      4x3 in the words of DDL
    mpirun_command     `kadril mpirun`            mpi_flavour     Open MPI 4 or 5, or Hydra
    ddlrun_command     `kadril ddlrun`
    option_table       `kadril env`

Nothing here imports torch, numpy or the native module.
"""

from kadril.launch.launcher import run, run_command
from kadril.launch.options import LaunchError, RunOptions

__all__ = ["LaunchError", "RunOptions", "run", "run_command"]
