"""Identity of a process: the table of launchers, over environments as each of them leaves them."""

from __future__ import annotations

import pytest

from kadril.errors import ConfigError
from kadril.world import slurm
from kadril.world.identity import LAUNCHERS, Identity, find_identity
from kadril.world.process_group import Member

FILE = "/run/kadril-x/secret"

KADRIL = {
    "KADRIL_JOB": "5eed",
    "KADRIL_RANK": "1",
    "KADRIL_SIZE": "4",
    "KADRIL_LOCAL_RANK": "1",
    "KADRIL_LOCAL_SIZE": "4",
    "KADRIL_GENERATION": "3",
    "KADRIL_RENDEZVOUS": "unix:/run/kadril-x/rendezvous.sock",
    "KADRIL_SECRET_FILE": FILE,
}
TORCHRUN = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "my job/1",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "prterun-node1-77@1",
}
HOROVODRUN = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1"}
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "6", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
MVAPICH = {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"}
PMIX = {"PMIX_RANK": "7", "PMIX_NAMESPACE": "ns"}
SLURM_JOB = {
    "SLURM_JOB_ID": "4711",
    "SLURM_NTASKS": "6",
    "SLURM_JOB_NODELIST": "node[03-04,09]",
    "SLURM_NNODES": "3",
    "SLURM_PROCID": "0",
}
SLURM_STEP = {
    **SLURM_JOB,
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_NODELIST": "node[04,09]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_PROCID": "4",
}
KUBERNETES = {
    "JOB_COMPLETION_INDEX": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "trainer-0.trainer",
    "MASTER_PORT": "29500",
}

PORT = slurm.store_address(SLURM_STEP)[1]  # type: ignore[index]
STEP_STORE = f"tcp:node04:{PORT}"

CASES = {
    "kadril run": (
        KADRIL,
        Identity(
            "kadril run",
            1,
            4,
            rendezvous="unix:/run/kadril-x/rendezvous.sock",
            job="5eed",
            generation=3,
            secret_file=FILE,
        ),
    ),
    "rank 0 of kadril run": (
        {**KADRIL, "KADRIL_RANK": "0", "KADRIL_LISTEN_FD": "5"},
        Identity(
            "kadril run",
            0,
            4,
            rendezvous="unix:/run/kadril-x/rendezvous.sock",
            job="5eed",
            generation=3,
            secret_file=FILE,
            listen_fd=5,
        ),
    ),
    "torchrun": (
        TORCHRUN,
        Identity("torchrun", 2, 4, rendezvous="tcp:node7:29400", job="my_job_1.2", is_served=True),
    ),
    "by hand, as for init_process_group": (
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "5000"},
        Identity("torchrun", 0, 2, rendezvous="tcp:::1:5000", job="torch.0"),
    ),
    "torchrun with a secret": (
        {**TORCHRUN, "KADRIL_SECRET_FILE": FILE},
        Identity(
            "torchrun",
            2,
            4,
            rendezvous="tcp:node7:29400",
            job="my_job_1.2",
            secret_file=FILE,
            is_served=True,
        ),
    ),
    "Open MPI": (
        OPEN_MPI,
        Identity("Open MPI", 3, 8, rendezvous="mpi", job="mpi-prterun-node1-77_1"),
    ),
    "MPICH": (MPICH, Identity("MPICH", 5, 6, rendezvous="mpi", job="mpi-")),
    "MVAPICH": (MVAPICH, Identity("MVAPICH", 0, 2, rendezvous="mpi", job="mpi-")),
    "PMIx, which does not tell the size": (
        PMIX,
        Identity("PMIx", 7, None, rendezvous="mpi", job="mpi-ns"),
    ),
    "Open MPI with an address": (
        {**OPEN_MPI, "MASTER_ADDR": "node1", "MASTER_PORT": "1234"},
        Identity(
            "Open MPI",
            3,
            8,
            rendezvous="mpi",
            fallback="tcp:node1:1234",
            job="mpi-prterun-node1-77_1",
        ),
    ),
    "mpirun inside a Slurm allocation": (
        {**SLURM_JOB, **OPEN_MPI},
        Identity("Open MPI", 3, 8, rendezvous="mpi", job="mpi-prterun-node1-77_1"),
    ),
    "mpirun inside a Slurm step of its daemons": (
        {**SLURM_STEP, **OPEN_MPI},
        Identity("Open MPI", 3, 8, rendezvous="mpi", job="mpi-prterun-node1-77_1"),
    ),
    "srun --mpi=pmix": (
        {**SLURM_STEP, "PMIX_RANK": "4", "PMIX_NAMESPACE": "slurm.pmix.4711.1"},
        Identity("PMIx", 4, 6, rendezvous="mpi", fallback=STEP_STORE, job="slurm-4711.1"),
    ),
    "srun --mpi=pmix --pty bash": (
        {
            **SLURM_JOB,
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": "1",
            "PMIX_RANK": "0",
            "PMIX_NAMESPACE": "slurm.pmix.4711.0",
        },
        Identity("PMIx", 0, 1, rendezvous="mpi", job="mpi-slurm.pmix.4711.0"),
    ),
    "srun --mpi=pmi2": (
        {**SLURM_STEP, "PMI_RANK": "4", "PMI_SIZE": "6"},
        Identity("MPICH", 4, 6, rendezvous="mpi", fallback=STEP_STORE, job="slurm-4711.1"),
    ),
    "srun": (SLURM_STEP, Identity("Slurm", 4, 6, rendezvous=STEP_STORE, job="slurm-4711.1")),
    "srun on one node": (
        {**SLURM_STEP, "SLURM_STEP_NUM_NODES": "1"},
        Identity("Slurm", 4, 6, rendezvous=f"tcp:127.0.0.1:{PORT}", job="slurm-4711.1"),
    ),
    "srun with an address": (
        {**SLURM_STEP, "MASTER_ADDR": "node04", "MASTER_PORT": "4000"},
        Identity("Slurm", 4, 6, rendezvous="tcp:node04:4000", job="slurm-4711.1"),
    ),
    "torchrun inside srun": (
        {**SLURM_STEP, **TORCHRUN},
        Identity("torchrun", 2, 4, rendezvous="tcp:node7:29400", job="my_job_1.2", is_served=True),
    ),
    "kadril run inside everything": (
        {**SLURM_STEP, **OPEN_MPI, **TORCHRUN, **KADRIL},
        Identity(
            "kadril run",
            1,
            4,
            rendezvous="unix:/run/kadril-x/rendezvous.sock",
            job="5eed",
            generation=3,
            secret_file=FILE,
        ),
    ),
    "Kubernetes": (
        KUBERNETES,
        Identity("Kubernetes", 1, 2, rendezvous="tcp:trainer-0.trainer:29500", job="torch.0"),
    ),
    "horovodrun, with an address given by hand": (
        {**HOROVODRUN, "MASTER_ADDR": "node1", "MASTER_PORT": "29500"},
        Identity("horovodrun", 1, 2, rendezvous="tcp:node1:29500", job="torch.0"),
    ),
    "kadril run --compat horovod": (
        {**HOROVODRUN, "MASTER_ADDR": "node1", **KADRIL},
        Identity(
            "kadril run",
            1,
            4,
            rendezvous="unix:/run/kadril-x/rendezvous.sock",
            job="5eed",
            generation=3,
            secret_file=FILE,
        ),
    ),
    "torchrun --nproc-per-node 1": (
        {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"},
        Identity("torchrun", 0, 1, job="torch.0"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_launcher_and_each_nesting(name: str) -> None:
    environment, expected = CASES[name]
    assert find_identity(environment) == expected


ALONE = {
    "nothing at all": {},
    "the shell of sbatch": SLURM_JOB,
    "the shell of sbatch, as newer Slurm leaves it": {
        **SLURM_JOB,
        "SLURM_STEP_ID": str(0xFFFFFFFB),
    },
    "the shell of salloc in a step of its own": {**SLURM_JOB, "SLURM_STEP_ID": str(0xFFFFFFFA)},
    "srun --pty bash": {
        **SLURM_JOB,
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_NTASKS": "6",
    },
    "an indexed job that wants no world": {"JOB_COMPLETION_INDEX": "3"},
    "only an address": {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
    "someone else's RANK": {"RANK": "captain"},
    "one rank, as scripts ask for it": {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
    "only a size of one": {"WORLD_SIZE": "1"},
    "a place on the host that says nothing of others": {"LOCAL_RANK": "0"},
}


@pytest.mark.parametrize("name", ALONE)
def test_not_a_rank(name: str) -> None:
    identity = find_identity(ALONE[name])
    assert (identity.source, identity.rank, identity.size) == ("no launcher", 0, 1)


# Ranks that each believe to be alone train four models instead of one: what shows that there are
# others, and not how to meet them, is refused with the variables by name.
OTHERS = {
    "no address": (
        {"RANK": "1", "WORLD_SIZE": "4"},
        "RANK=1, WORLD_SIZE=4; not set: MASTER_ADDR (variables of torchrun). To meet them, set"
        " RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
    ),
    "a rank without a size": ({"RANK": "0"}, "RANK=0; not set: WORLD_SIZE, MASTER_ADDR"),
    "a size without a rank": (
        {"WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
        "WORLD_SIZE=2, MASTER_ADDR=a; not set: RANK",
    ),
    "a rank beyond its size": ({"RANK": "3", "WORLD_SIZE": "1"}, "RANK=3, WORLD_SIZE=1"),
    "a place on the host": ({"LOCAL_RANK": "1"}, "LOCAL_RANK=1; not set: LOCAL_WORLD_SIZE, RANK"),
    "several on the host": ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_WORLD_SIZE=2"),
    "horovodrun, whose server is no place for kadril": (
        HOROVODRUN,
        "HOROVOD_RANK=1, HOROVOD_SIZE=2; not set: MASTER_ADDR (variables of horovodrun). To meet"
        " them, start the ranks with `kadril run`",
    ),
    "half of Open MPI": ({"OMPI_COMM_WORLD_RANK": "0"}, "not set: OMPI_COMM_WORLD_SIZE"),
    "half of MPICH": ({"PMI_SIZE": "2"}, "PMI_SIZE=2; not set: PMI_RANK"),
    "half of MVAPICH": ({"MV2_COMM_WORLD_RANK": "1"}, "start the ranks with mpirun"),
    "half of kadril run": ({"KADRIL_RANK": "1"}, "KADRIL_RANK=1; not set: KADRIL_SIZE"),
    "a task of Slurm in a container that dropped its step": (
        {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"},
        "SLURM_PROCID=1, SLURM_NTASKS=2; not set: SLURM_STEP_ID, SLURM_STEP_NUM_TASKS",
    ),
    "task 0 of the same": (
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"},
        "start the ranks with srun",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_signs_of_others(name: str) -> None:
    environment, words = OTHERS[name]
    with pytest.raises(ConfigError) as caught:
        find_identity(environment)
    assert words in str(caught.value)
    assert "kadril.init(rank=0, size=1)" in str(caught.value)


@pytest.mark.parametrize("name", OTHERS)
def test_a_process_group_of_torch_knows_better_than_half_told_variables(name: str) -> None:
    adopted = find_identity(OTHERS[name][0], member=Member(1, 2))
    assert adopted == Identity("torch.distributed", 1, 2, rendezvous="torch", job="torch")
    alone = find_identity(OTHERS[name][0], member=Member(0, 1))
    assert (alone.source, alone.size, alone.rendezvous) == ("torch.distributed", 1, "")


# A process group of several ranks beside a launcher: both must tell the same.


def place(environment: dict[str, str]) -> Member | None:
    """The place that a launcher gives to a process, as a process group has it."""
    identity = find_identity(environment)
    return None if identity.size is None else Member(identity.rank, identity.size)


@pytest.mark.parametrize("name", CASES)
def test_a_launcher_that_agrees_with_torch_keeps_its_place(name: str) -> None:
    environment, expected = CASES[name]
    identity = find_identity(environment, member=place(environment) or Member(7, 9))
    found = (identity.source, identity.rank, identity.size, identity.rendezvous, identity.job)
    wanted = (expected.source, expected.rank, expected.size, expected.rendezvous, expected.job)
    assert found == wanted


@pytest.mark.parametrize("name", CASES)
def test_a_launcher_that_contradicts_torch(name: str) -> None:
    environment, expected = CASES[name]
    member = Member(expected.rank + 1, (expected.size or 8) + 1)
    if expected.size == 1:  # mp.spawn in a process that was launched alone
        assert find_identity(environment, member=member).source == "torch.distributed"
        return
    with pytest.raises(ConfigError) as caught:
        find_identity(environment, member=member)
    for words in (
        f"{expected.source} says rank {expected.rank} of",
        f"torch.distributed is initialized as rank {member.rank} of {member.size}",
        "kadril.init(rendezvous='torch')",
    ):
        assert words in str(caught.value)
    assert find_identity(environment, member=member, rendezvous="torch") == Identity(
        "torch.distributed",
        member.rank,
        member.size,
        rendezvous="torch",
        job="torch",
        secret_file=expected.secret_file,
    )


@pytest.mark.parametrize("name", CASES)
def test_a_process_group_of_one_says_nothing_about_others(name: str) -> None:
    environment, expected = CASES[name]
    assert find_identity(environment, member=Member(0, 1)) == expected


@pytest.mark.parametrize(
    ("environment", "rendezvous", "fallback"),
    [
        ({**TORCHRUN, "MASTER_PORT": None}, "torch", "torch"),
        ({**SLURM_STEP, "SLURM_STEP_NODELIST": None, "SLURM_JOB_NODELIST": None}, "torch", "torch"),
        (MPICH, "mpi", "torch"),
    ],
)
def test_the_store_of_torch_where_the_launcher_names_no_place(
    environment: dict[str, str | None], rendezvous: str, fallback: str
) -> None:
    told = {name: value for name, value in environment.items() if value is not None}
    members = {"RANK": Member(2, 4), "PMI_RANK": Member(5, 6), "SLURM_PROCID": Member(4, 6)}
    (member,) = [each for name, each in members.items() if name in told]
    identity = find_identity(told, member=member)
    assert (identity.rendezvous, identity.fallback) == (rendezvous, fallback)


WRONG = {
    "a rank that is no number": ({**TORCHRUN, "RANK": "one"}, "RANK must be a whole number"),
    "a negative rank": ({**MPICH, "PMI_RANK": "-1"}, "PMI_RANK must be a whole number"),
    "a rank beyond the size": ({**TORCHRUN, "RANK": "4"}, "torchrun says this is rank 4 of 4"),
    "a world of none": ({**KADRIL, "KADRIL_SIZE": "0"}, "rank 1 of 0"),
    "a number of many digits": ({**MPICH, "PMI_SIZE": "9" * 5000}, "PMI_SIZE"),
    "no port": (
        {name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")},
        "MASTER_ADDR and not MASTER_PORT",
    ),
    "a port that is no number": ({**TORCHRUN, "MASTER_PORT": "http"}, "MASTER_PORT"),
    "half of kadril run": (
        {"KADRIL_RANK": "0", "KADRIL_SIZE": "2"},
        "KADRIL_RANK and KADRIL_SIZE are set and KADRIL_JOB is not",
    ),
    "a listening socket that is no number": (
        {**KADRIL, "KADRIL_RANK": "0", "KADRIL_LISTEN_FD": ""},
        "KADRIL_LISTEN_FD",
    ),
    "a generation that is no number": ({**KADRIL, "KADRIL_GENERATION": "x"}, "KADRIL_GENERATION"),
    "Slurm without hosts": (
        {
            "SLURM_PROCID": "0",
            "SLURM_STEP_ID": "0",
            "SLURM_NTASKS": "2",
        },
        "SLURM_STEP_NODELIST",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_variables_that_make_no_sense(name: str) -> None:
    environment, message = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        find_identity(environment)


# Explicit arguments


def test_arguments_win_over_every_launcher() -> None:
    everything = {**SLURM_STEP, **OPEN_MPI, **TORCHRUN, **KADRIL}
    identity = find_identity(
        everything, rank=1, size=2, rendezvous="unix:/x/y", job="mine", secret_file=FILE
    )
    assert identity == Identity(
        "arguments of init()",
        1,
        2,
        rendezvous="unix:/x/y",
        job="mine",
        secret_file=FILE,
        generation=3,
    )


def test_arguments_take_the_address_of_the_environment() -> None:
    identity = find_identity({"MASTER_ADDR": "a", "MASTER_PORT": "1"}, rank=1, size=2)
    assert identity.rendezvous == "tcp:a:1"


def test_arguments_meet_at_the_store_of_torch() -> None:
    identity = find_identity({}, member=Member(1, 2), rank=1, size=2)
    assert identity.rendezvous == "torch"
    for member in (None, Member(0, 2)):
        with pytest.raises(ConfigError, match=r"where are the 2 ranks to meet"):
            find_identity({}, member=member, rank=1, size=2)
        with pytest.raises(ConfigError, match=r"Leave rank and size out"):
            find_identity({}, member=member, rank=1, size=2, rendezvous="torch")
    with pytest.raises(ConfigError, match=r"not initialized"):
        find_identity({}, rendezvous="torch")


def test_a_world_of_one_needs_no_address() -> None:
    assert find_identity(TORCHRUN, rank=0, size=1).rendezvous == ""


@pytest.mark.parametrize(
    "arguments",
    [{"rank": 0}, {"size": 2}, {"rank": 0, "size": 2}, {"job": "x"}, {"rank": 2, "size": 2}],
)
def test_arguments_that_do_not_go_together(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        find_identity({}, **arguments)  # type: ignore[arg-type]


# Slurm


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("node[003-010,012],other", "node003"),
        ("node[7,9]", "node7"),
        ("rack[2-4]n[01-12]", "rack2n01"),
        ("a[1-2]b,c", "a1b"),
        ("", ""),
    ],
)
def test_first_host_of_a_node_list(nodes: str, host: str) -> None:
    assert slurm.first_host(nodes) == host


def test_steps_of_one_job_get_ports_of_their_own() -> None:
    ports = {
        slurm.store_address({**SLURM_STEP, "SLURM_STEP_ID": str(step)})[1]  # type: ignore[index]
        for step in range(50)
    }
    assert len(ports) > 45
    assert all(16384 <= port < 32768 for port in ports)


def test_every_launcher_of_the_table_is_tested() -> None:
    tested = {expected.source for _, expected in CASES.values()}
    assert {launcher.name for launcher in LAUNCHERS} == tested
