"""A run of a program on ranks of several hosts.

connect    an agent on every host, by ssh where it is another one; all answer, or nothing starts
check      versions, hosts that are one and the same, cores that a rank file names
prepare    secret and variables go to the agents; is the program there? which port is free?
start      the ranks of all hosts
supervise  as on one host
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kadril
from kadril.errors import ConfigError
from kadril.launch.local.guardian import Guardian
from kadril.launch.local.job import Job, JobFiles
from kadril.launch.local.program import with_python
from kadril.launch.local.rank_environment import RankEnvironment, rank_environment
from kadril.launch.mapping.binding import bind_ranks, describe_sharing, thread_variables
from kadril.launch.mapping.cpu_topology import CpuTopology
from kadril.launch.mapping.placement import Placement
from kadril.launch.options import LaunchError, RunOptions, SshOptions
from kadril.launch.remote.remote_host import RemoteHost
from kadril.launch.remote.ssh import agent_command, describe_failure
from kadril.launch.supervision.signal_inbox import SignalInbox
from kadril.launch.supervision.summary import exit_code
from kadril.launch.supervision.supervisor import Supervisor

__all__ = ["run_on_hosts"]


def run_on_hosts(options: RunOptions, files: JobFiles | None = None) -> int:
    """Run a program on ranks of several hosts and return the exit code; see `run_command`.

    Args:
        options: what was asked for.
        files: by which ranks get and leave data; they travel with the job.

    Raises:
        LaunchError: a host cannot be reached, or lacks what is needed; nothing was started.
    """
    placement = options.placement
    if placement is None:
        raise ConfigError("ranks have no hosts; give -H, --hostfile or -rf")
    environment = rank_environment(options, os.environ)
    job = Job(options.num_ranks, meets_here=False)
    with (
        SignalInbox() as inbox,
        Guardian(job) as guardian,
        job,
        Supervisor(options, inbox) as supervisor,
    ):
        if files is not None:
            files.write(job.directory)
        for warning in environment.warnings:
            supervisor.output.notice(warning)
        hosts = connect(placement, options.ssh, guardian, supervisor, job.directory)
        check_hosts(hosts)
        plans = plan_ranks(hosts, options, environment, supervisor)
        rendezvous = prepare(hosts, plans, job, options, environment, supervisor)
        supervisor.tell(f"the job meets at {rendezvous or 'a socket of its host'}")
        for host in hosts:
            for path in job.files():
                host.send_file(path)
            host.start(rendezvous)
        outcome = supervisor.run()
        if files is not None:
            files.read(job.directory, outcome)
        return exit_code(outcome)


def connect(
    placement: Placement,
    options: SshOptions,
    guardian: Guardian,
    supervisor: Supervisor,
    store: Path,
) -> list[RemoteHost]:
    """Start an agent on every host, and wait until all have answered.

    Raises:
        LaunchError: some did not; the message has the words of ssh, for each.
    """
    hosts: list[RemoteHost] = []
    for plan in placement.hosts:
        command = agent_command(plan.name, plan.is_here, options)
        supervisor.tell(f"host {plan.name}: {' '.join(command)}")
        host = RemoteHost(
            plan, command, guardian, supervisor.selector, supervisor.output, supervisor.tell, store
        )
        hosts.append(host)
        supervisor.add(host)
    await_all(hosts, lambda host: host.hello is not None, options, supervisor)
    return hosts


def await_all(
    hosts: Sequence[RemoteHost],
    has_answered: Callable[[RemoteHost], bool],
    options: SshOptions,
    supervisor: Supervisor,
) -> None:
    """Wait until all hosts have answered, or cannot.

    Raises:
        LaunchError: some cannot, or did not in time.
    """
    supervisor.wait(
        lambda: all(
            has_answered(host) or host.refusal is not None or not host.is_connected
            for host in hosts
        ),
        # ssh has this time to connect; what follows, the start of Python, gets as much.
        time.monotonic() + 2 * options.timeout,
    )
    failures, code = [], 1
    for host in hosts:
        if host.refusal is not None:
            failures.append(f"{host.name}: {host.refusal}")
            code = host.refusal.exit_code
        elif not host.is_connected:
            exit_code = host.exit_code or 0
            reason = describe_failure(host.name, host.words, exit_code, options)
            failures.append(f"{host.name}: {reason}")
        elif not has_answered(host):
            failures.append(
                f"{host.name}: no answer in {2 * options.timeout:g} s; try --start-timeout"
            )
    if failures:
        raise LaunchError(
            f"nothing was started: {len(failures)} of {len(hosts)} hosts cannot take part\n  "
            + "\n  ".join(failures),
            exit_code=code,
        )


def check_hosts(hosts: Sequence[RemoteHost]) -> None:
    """Make sure that all hosts run this version of kadril, and that none is there twice.

    Raises:
        LaunchError: they do not.
    """
    seen: dict[str, RemoteHost] = {}
    for host in hosts:
        hello = told_by(host)
        if hello["version"] != kadril.__version__:
            raise LaunchError(
                f"host {host.name} has kadril {hello['version']}, and this one"
                f" {kadril.__version__}; install the same version on all"
            )
        other = seen.setdefault(hello["identity"], host)
        if other is not host:
            raise LaunchError(
                f"{other.name} and {host.name} are one host ({hello['hostname']}); give it one"
                " name, with the slots of both"
            )


def told_by(host: RemoteHost) -> dict[str, Any]:
    """Return what the agent of a host has said of it."""
    if host.hello is None:
        raise LaunchError(f"host {host.name} has not answered")
    return host.hello


def plan_ranks(
    hosts: Sequence[RemoteHost],
    options: RunOptions,
    environment: RankEnvironment,
    supervisor: Supervisor,
) -> list[list[dict[str, Any]]]:
    """Return how each rank of each host is started, for its agent.

    Raises:
        LaunchError: a rank file names a socket or a core that a host does not have.
    """
    source = "" if options.placement is None else options.placement.source
    plans = []
    for host in hosts:
        topology = CpuTopology.from_fields(**told_by(host)["topology"])
        ranks = host.plan.ranks
        try:
            bound = bind_ranks(ranks, topology, bind=options.bind, source=source)
        except ConfigError as error:
            raise LaunchError(str(error), exit_code=2) from None
        for warning in describe_sharing(ranks, bound):
            supervisor.output.notice(warning)
        threads, note = thread_variables(environment.variables, bound, topology)
        if note:
            supervisor.tell(f"host {host.name}: {note}")
        plans.append(
            [
                {
                    "rank": placed.rank,
                    "variables": environment.of_rank[placed.rank] | of_threads,
                    "processors": sorted(processors),
                }
                for placed, of_threads, processors in zip(ranks, threads, bound, strict=True)
            ]
        )
    return plans


def prepare(
    hosts: Sequence[RemoteHost],
    plans: Sequence[list[dict[str, Any]]],
    job: Job,
    options: RunOptions,
    environment: RankEnvironment,
    supervisor: Supervisor,
) -> str:
    """Have all agents get ready, and return where the ranks meet.

    Raises:
        LaunchError: a host lacks the program, the directory or the interface.
    """
    # Not that of the launcher's own directory: the agent of this host makes one beside it.
    job_id = os.urandom(8).hex()
    address = address_of_first(hosts)
    for number, host in enumerate(hosts):
        host.prepare(
            {
                "job": job_id,
                "size": options.num_ranks,
                "secret": job.secret.hex(),
                "command": with_python(options.command),
                "directory": os.fspath(Path.cwd()),
                "variables": environment.variables | interface_variables(options, environment),
                "exports": dict(options.environment),
                "ranks": plans[number],
                "meets_here": len(hosts) == 1,
                "serves": number == 0 and len(hosts) > 1,
                "address": address,
                "interface": options.ssh.interface,
                "port": options.ssh.port,
            }
        )
    await_all(hosts, lambda host: host.ready is not None, options.ssh, supervisor)
    answer = hosts[0].ready
    if len(hosts) == 1 or answer is None:
        return ""
    return f"tcp:{answer['address'] or address}:{answer['port']}"


def address_of_first(hosts: Sequence[RemoteHost]) -> str:
    """Return the address of rank 0's host, as the other hosts see it.

    ssh tells an agent both ends of its connection: that of a remote host is its own address, and
    the other end is the address of this one.
    """
    first = hosts[0]
    if not first.plan.is_here:
        ends = told_by(first)["connection"].split()
        return str(ends[2]) if len(ends) == 4 else first.name.rpartition("@")[2]
    for host in hosts[1:]:
        ends = told_by(host)["connection"].split()
        if len(ends) == 4:
            return str(ends[0])
    return str(told_by(first)["hostname"])


def interface_variables(options: RunOptions, environment: RankEnvironment) -> dict[str, str]:
    """Return the variables by which ranks take the interface that was asked for."""
    name = options.ssh.interface
    if not name:
        return {}
    variables = {"KADRIL_INTERFACE": name}
    if "GLOO_SOCKET_IFNAME" not in environment.variables and not name[0].isdecimal():
        variables["GLOO_SOCKET_IFNAME"] = name
    return variables
