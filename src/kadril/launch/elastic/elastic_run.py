"""A run of an elastic job on this host, from the first check to the last clean-up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from kadril import compat
from kadril.launch.elastic.elastic_supervisor import ElasticSupervisor
from kadril.launch.elastic.worker import Worker
from kadril.launch.local.guardian import Guardian
from kadril.launch.local.job import Job, JobFiles
from kadril.launch.local.local_host import LocalHost, RankStart
from kadril.launch.local.program import check_program, with_python
from kadril.launch.local.rank_environment import rank_environment
from kadril.launch.mapping.binding import bind_ranks, describe_sharing, thread_variables
from kadril.launch.mapping.cpu_topology import this_topology
from kadril.launch.mapping.rank_file import PlacedRank
from kadril.launch.options import ElasticOptions, RunOptions
from kadril.launch.supervision.signal_inbox import SignalInbox
from kadril.launch.supervision.summary import exit_code
from kadril.world.membership import CONTROL_FD

__all__ = ["run_elastic"]


def run_elastic(options: RunOptions, elastic: ElasticOptions, files: JobFiles | None = None) -> int:
    """Run a program on ranks that may be replaced, come and go; see `launcher.run_command`."""
    check_program(options.command)
    command = with_python(options.command)
    environment = rank_environment(options, os.environ)
    topology = this_topology()
    places = [PlacedRank(place, "localhost", ()) for place in range(elastic.max_ranks)]
    bound = bind_ranks(places, topology, bind=options.bind, source="")
    threads, note = thread_variables(environment.variables, bound, topology)
    job = Job(options.num_ranks, meets_here=False)
    with (
        SignalInbox() as inbox,
        Guardian(job) as guardian,
        job,
        ElasticSupervisor(options, elastic, inbox, job) as supervisor,
    ):
        if files is not None:
            files.write(job.directory)
        output = supervisor.output
        host = LocalHost(job.id, guardian, supervisor.selector, output, output.notice)

        def start_process(worker: Worker) -> int:
            # A spare process does nothing until somebody else's core is free.
            seat = worker.place % elastic.max_ranks
            variables = environment.variables | threads[seat]
            variables |= provisional_variables(options, job, worker)
            return host.start(
                RankStart(
                    worker.place,
                    command,
                    variables,
                    stdin=subprocess.DEVNULL,
                    inherit=[worker.theirs.fileno()],
                    processors=bound[seat],
                )
            )

        supervisor.start_process = start_process
        for warning in [*environment.warnings, *describe_sharing(places, bound)]:
            output.notice(warning)
        supervisor.tell(f"job {job.id} in {job.directory}")
        if note:
            supervisor.tell(note)
        supervisor.begin(host)
        outcome = supervisor.run()
        if files is not None:
            files.read(job.directory, outcome)
        return exit_code(outcome)


def provisional_variables(options: RunOptions, job: Job, worker: Worker) -> dict[str, str]:
    """Return who a worker is until its first generation tells it."""
    place = worker.place
    size = max(options.num_ranks, place + 1)
    everybody: Sequence[int] = range(size)
    variables = job.identity(place, place, size)
    # A socket that is never listened at: generations have places of their own.
    variables |= {
        "KADRIL_SIZE": str(size),
        "KADRIL_RENDEZVOUS": f"unix:{os.fspath(job.directory)}/meet",
        CONTROL_FD: str(worker.theirs.fileno()),
    }
    for name in compat.compat_names(options.compat):
        variables |= compat.rank_variables(name, place, (tuple(everybody),))
        if name == "horovod":
            variables["HOROVOD_ELASTIC"] = "1"
    return variables
