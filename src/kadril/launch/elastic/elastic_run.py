"""A run of an elastic job on this host, from the first check to the last clean-up."""

from __future__ import annotations

import os
from contextlib import closing

from kadril.launch.elastic.elastic_supervisor import ElasticSupervisor
from kadril.launch.elastic.worker_start import WorkerStart
from kadril.launch.local.guardian import Guardian
from kadril.launch.local.job import Job, JobFiles
from kadril.launch.local.local_host import LocalHost
from kadril.launch.local.program import check_program
from kadril.launch.local.rank_environment import rank_environment
from kadril.launch.mapping.binding import bind_ranks, describe_sharing, thread_variables
from kadril.launch.mapping.cpu_topology import this_topology
from kadril.launch.mapping.rank_file import PlacedRank
from kadril.launch.options import ElasticOptions, RunOptions
from kadril.launch.supervision.signal_inbox import SignalInbox
from kadril.launch.supervision.summary import exit_code

__all__ = ["run_elastic"]


def run_elastic(options: RunOptions, elastic: ElasticOptions, files: JobFiles | None = None) -> int:
    """Run a program on ranks that may be replaced, come and go; see `launcher.run_command`."""
    check_program(options.command)
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
        starter = WorkerStart(
            options, job, host, environment.variables, threads, bound, supervisor.tell
        )
        for warning in [*environment.warnings, *describe_sharing(places, bound)]:
            output.notice(warning)
        supervisor.tell(f"job {job.id} in {job.directory}")
        if note:
            supervisor.tell(note)
        with closing(starter):
            supervisor.begin(host, starter)
            outcome = supervisor.run()
        if files is not None:
            files.read(job.directory, outcome)
        return exit_code(outcome)
