"""Flags of horovodrun: each sets an option, is said to have no effect, or is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launch_playground import Playground

import kadril
from kadril.cli import main
from kadril.config import Config, variable
from kadril.errors import ConfigError
from kadril.horovod_variables import NEVER
from kadril.launch import RunOptions
from kadril.launch.command import make_parser, parse
from kadril.launch.options import ElasticOptions
from kadril.launch.request.horovod_flags import FLAGS, Flag

# All flags of horovodrun 0.28.1, as its --help names them.
ALL_FLAGS = """
    -v --version -np --num-proc -cb --check-build --disable-cache --start-timeout
    --network-interfaces --network-interface --output-filename --verbose --config-file
    -p --ssh-port -i --ssh-identity-file --fusion-threshold-mb --cycle-time-ms --cache-capacity
    --hierarchical-allreduce --no-hierarchical-allreduce
    --hierarchical-allgather --no-hierarchical-allgather
    --torus-allreduce --no-torus-allreduce --autotune --no-autotune
    --autotune-log-file --autotune-warmup-samples --autotune-steps-per-sample
    --autotune-bayes-opt-max-samples --autotune-gaussian-process-noise
    --min-np --min-num-proc --max-np --max-num-proc --slots-per-host --elastic-timeout
    --reset-limit --blacklist-cooldown-range
    --timeline-filename --timeline-mark-cycles --no-timeline-mark-cycles
    --stall-check --no-stall-check --stall-check-warning-time-seconds
    --stall-check-shutdown-time-seconds --mpi-threads-disable --no-mpi-threads-disable --mpi-args
    --tcp --binding-args --num-nccl-streams --thread-affinity --gloo-timeout-seconds
    --log-level --log-with-timestamp --log-without-timestamp --log-hide-timestamp
    --no-log-hide-timestamp -prefix-timestamp --prefix-output-with-timestamp
    -H --hosts -hostfile --hostfile --host-discovery-script --gloo --mpi --jsrun
"""


def options(*words: str) -> RunOptions:
    return parse(["-np", "2", *words, "true"])


def with_value(flag: Flag) -> list[str]:
    """The flag with a value that it takes."""
    if flag.kind is bool:
        return [flag.name]
    value = "INFO" if flag.option == "log_level" else {int: "3", float: "2.5"}.get(flag.kind, "x")
    return [flag.name, *[value] * flag.num_values]


def test_no_flag_of_horovodrun_is_unknown() -> None:
    known = make_parser()._option_string_actions
    assert [name for name in ALL_FLAGS.split() if name not in known] == []


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_flag_does_something_or_says_that_it_does_not(flag: Flag) -> None:
    kinds = [flag.option, flag.own, flag.idle, flag.refused]
    assert [bool(kind) for kind in kinds].count(True) == 1
    if flag.refused:
        with pytest.raises(ConfigError, match=f"^{flag.name} cannot be used here: "):
            options(*with_value(flag))
        return
    if flag.own:
        return  # see test_flags_of_elastic_jobs
    found = options(*with_value(flag))
    if flag.option:
        assert list(found.config) == [flag.option]
        Config.from_environment({variable(flag.option): found.config[flag.option]})
    else:
        assert found.notices == (f"{flag.name} has no effect: {flag.idle}",)
        assert found.config == {}


def test_flags_of_elastic_jobs() -> None:
    words = "--min-np 1 --max-np 4 --reset-limit 3 --elastic-timeout 9 --slots-per-host 2"
    words += " --blacklist-cooldown-range 1 8 --host-discovery-script ./hosts.sh --no-replace"
    assert options(*words.split()).elastic == ElasticOptions(
        min_ranks=1,
        max_ranks=4,
        reset_limit=3,
        discovery_script="./hosts.sh",
        timeout=9.0,
        cooldown=(1.0, 8.0),
        replaces=False,
        slots_per_host=2,
    )
    assert options("--min-num-proc", "1").elastic == ElasticOptions(min_ranks=1, max_ranks=2)
    assert options().elastic is None
    (notice,) = options("--elastic-timeout", "9").notices
    assert notice.startswith("--elastic-timeout has no effect")


@pytest.mark.parametrize(
    ("words", "config"),
    [
        ("--fusion-threshold-mb 32", {"fusion_threshold": str(32 << 20)}),
        ("--fusion_threshold_mb 0", {"fusion_threshold": "0"}),
        ("--cache-capacity 7", {"cache_capacity": "7"}),
        ("--timeline-filename t.json", {"timeline": "t.json"}),
        ("--no-timeline-mark-cycles", {"timeline_mark_cycles": "0"}),
        ("--stall-check", {"stall_check": "1"}),
        ("--no-stall-check", {"stall_check": "0"}),
        ("--stall-check-warning-time-seconds 7", {"stall_warning": "7.0"}),
        ("--stall-check-shutdown-time-seconds 9", {"patience": "9.0"}),
        ("--stall-check-shutdown-time-seconds 0", {"patience": str(NEVER)}),
        ("--start-timeout 60", {"connect_timeout": "60.0"}),
        ("--start-timeout 60 --gloo-timeout-seconds 90", {"connect_timeout": "90.0"}),
        ("--start-timeout 90 --gloo-timeout-seconds 8", {"connect_timeout": "90.0"}),
        ("--log-level FATAL", {"log_level": "CRITICAL"}),
        ("--log-level TRACE", {"log_level": "DEBUG"}),
        ("--gloo", {"transport": "c10d:gloo"}),
    ],
)
def test_values_become_options(words: str, config: dict[str, str]) -> None:
    assert options(*words.split()).config == config


def test_asking_for_what_is_so_is_no_news() -> None:
    quiet = "--no-autotune --no-hierarchical-allreduce --no-torus-allreduce --log-with-timestamp"
    assert options(*quiet.split(), "--no-mpi-threads-disable").notices == ()


def test_gloo_says_what_it_chose() -> None:
    (notice,) = options("--gloo").notices
    assert "c10d:gloo" in notice
    assert "share memory" in notice


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--fusion-threshold-mb -1", "--fusion-threshold-mb: KADRIL_FUSION_THRESHOLD must be 0"),
        ("--stall-check-warning-time-seconds 0", "--stall-check-warning-time-seconds: .*more than"),
        ("--log-level LOUD", "--log-level: must be one of TRACE"),
        ("--gloo --transport shm", "--transport and --gloo set the same"),
        (
            "--patience 3 --stall-check-shutdown-time-seconds 4",
            "--patience and --stall-check-shutdown-time-seconds set the same",
        ),
        ("--mpi", "mpirun -np N"),
        ("--min-np 3", "--min-np must be at least 1 and at most --max-np"),
        ("--min-np 1 --dry-run", "--dry-run shows a fixed number"),
        ("--compat horovid", "did you mean horovod"),
        ("-H localhost:2 -hostfile x", "give one of them"),
    ],
)
def test_what_is_refused(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options(*words.split())


REPORT = """
    import os
    for name in sorted(os.environ):
        if name.startswith(("KADRIL_", "HOROVOD_")) and "JOB" not in name:
            print(f"{name}={os.environ[name]}")
"""


def variables(out: bytes, rank: int) -> dict[str, str]:
    prefix = f"[{rank}] "
    lines = [line for line in out.decode().splitlines() if line.startswith(prefix)]
    return dict(line.removeprefix(prefix).split("=", 1) for line in lines)


def test_ranks_get_the_options_and_the_user_the_notices(playground: Playground) -> None:
    words = "-np 2 --fusion-threshold-mb 1 --cycle-time-ms 5 --no-stall-check --tcp"
    result = playground.run(
        *words.split(),
        playground.write("report.py", REPORT),
        env={"KADRIL_FUSION_THRESHOLD": "99", "HOROVOD_STALL_CHECK_DISABLE": "0"},
    )
    assert result.code == 0
    for rank in range(2):
        found = variables(result.out, rank)
        assert found["KADRIL_FUSION_THRESHOLD"] == str(1 << 20)
        assert found["KADRIL_STALL_CHECK"] == "0"
    assert [line.partition(" has no effect")[0] for line in result.report] == [
        "--cycle-time-ms",
        "--tcp",
    ]


def test_refusals_exit_with_2_and_start_nothing(playground: Playground) -> None:
    result = playground.run("-np", "2", "--jsrun", "touch", "started")
    assert result.code == 2
    assert b"--jsrun cannot be used here" in result.err
    assert not (playground.directory / "started").exists()


def test_variables_without_meaning_are_told_once_by_the_launcher(playground: Playground) -> None:
    # Each rank would say it again, if it were not told that it has been said.
    program = """
        import kadril
        kadril.init()
        print("in")
    """
    result = playground.run(
        "-np",
        "2",
        playground.write("init.py", program),
        env={"HOROVOD_CYCLE_TIME": "5", "KADRIL_PATIENSE": "1", "HOROVOD_FUSION_THRESHOLD": "1"},
    )
    assert result.code == 0
    assert sorted(result.out.splitlines()) == [b"[0] in", b"[1] in"]
    assert result.err.count(b"HOROVOD_CYCLE_TIME") == 1
    assert result.err.count(b"KADRIL_PATIENSE") == 1


def test_a_variable_of_horovod_without_sense_is_found_before_the_start(
    playground: Playground,
) -> None:
    result = playground.run("-np", "2", "true", env={"HOROVOD_CACHE_CAPACITY": "many"})
    assert result.code == 2
    assert b"HOROVOD_CACHE_CAPACITY must be of type int" in result.err


@pytest.mark.parametrize("words", [("--version",), ("run", "--version")])
def test_version(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"kadril {kadril.__version__}\n"


# Where the output goes


def test_output_filename_has_the_layout_of_horovodrun(playground: Playground) -> None:
    # With 11 ranks numbers have two digits, so that the directories sort.
    words = ["-np", "11", "--output-filename", "a/b", "--output-dir", "c"]
    script = 'echo "out $KADRIL_RANK"; echo "err $KADRIL_RANK" >&2'
    result = playground.run(*words, "sh", "-c", script)
    assert result.code == 0
    assert b"[10] out 10\n" in result.out
    folder = playground.directory / "a" / "b"
    assert sorted(path.name for path in folder.iterdir()) == [f"rank.{r:02}" for r in range(11)]
    for rank in range(11):
        assert (folder / f"rank.{rank:02}" / "stdout").read_text() == f"out {rank}\n"
        assert (folder / f"rank.{rank:02}" / "stderr").read_text() == f"err {rank}\n"
        assert (playground.directory / "c" / f"rank.{rank}.out").read_text() == f"out {rank}\n"


def test_output_filename_of_few_ranks(playground: Playground) -> None:
    assert playground.run("-np", "2", "--output-filename", "logs", "echo", "x").code == 0
    names = sorted(
        str(p.relative_to(playground.directory))
        for p in Path(playground.directory, "logs").rglob("std*")
    )
    assert names == [f"logs/rank.{r}/{s}" for r in (0, 1) for s in ("stderr", "stdout")]


def test_output_filename_that_cannot_be_one(playground: Playground) -> None:
    result = playground.run("-np", "2", "--output-filename", playground.write("file", ""), "true")
    assert result.code == 2
    assert b"give --output-filename a directory" in result.err


@pytest.mark.parametrize("flag", ["-prefix-timestamp", "--prefix-output-with-timestamp"])
def test_lines_with_the_time_before_them(playground: Playground, flag: str) -> None:
    time = rb"20\d\d-[01]\d-[0-3]\d [0-2]\d:[0-5]\d:[0-6]\d "
    result = playground.run("-np", "1", flag, "--output-dir", "logs", "printf", "a\\nb\\n")
    assert re.fullmatch(time + rb"\[0\] a\n" + time + rb"\[0\] b\n", result.out)
    assert (playground.directory / "logs" / "rank.0.out").read_bytes() == b"a\nb\n"
    result = playground.run("-np", "1", flag, "--no-prefix", "echo", "a")
    assert re.fullmatch(time + rb"a\n", result.out)
