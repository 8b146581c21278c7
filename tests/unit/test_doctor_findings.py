"""Findings of `kadril doctor` about versions, limits, variables, and what ranks say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable

import pytest

import kadril
from kadril.config import TRANSPORTS
from kadril.launch.request.build_report import transports as report_transports
from kadril.observe.environment import find_environment
from kadril.observe.finding import Finding
from kadril.observe.machine import look_at_machine
from kadril.observe.selftest import finding_of
from kadril.observe.system import find_cores, find_kernel, find_limits, find_machine
from kadril.observe.transports import find_transports
from kadril.observe.versions import Probe, Probes, collect, find_versions

WELL = Probes(
    native=Probe({"file": "_native.so", "total_memory": 1}),
    torch=Probe({"version": "2.13.0", "backends": ["gloo"], "num_devices": 0}),
    mpi=Probe({"version": "4.1", "library": "Open MPI v5.0.11, package: x\0"}),
)


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_versions_where_all_is_well() -> None:
    found = by_name(find_versions(WELL))
    assert found["kadril"].value == kadril.__version__
    assert found["torch"].value == "2.13.0, backends: gloo"
    assert sys.executable in found["python"].value
    assert not any(finding.state == "bad" for finding in found.values())


def test_what_cannot_be_loaded_is_bad_and_has_a_remedy() -> None:
    broken = WELL._replace(native=Probe({}, "undefined symbol"), torch=Probe({}, "no torch"))
    found = by_name(find_versions(broken))
    for name, reason in (("native core", "undefined symbol"), ("torch", "no torch")):
        assert (found[name].value, found[name].state) == (reason, "bad")
        assert "pip install" in found[name].remedy
    assert by_name(find_transports(broken))["shm"].state == "bad"


def test_transports() -> None:
    found = by_name(find_transports(WELL))
    states = {name: finding.state for name, finding in found.items()}
    assert states == dict.fromkeys(TRANSPORTS, "ok")
    reported = {line.name.partition(":")[0] for line in report_transports(WELL)}
    assert {"alone", *reported} == set(TRANSPORTS)  # `kadril run --check-build` lists them, too
    lean = WELL._replace(
        torch=Probe({"version": "2.13.0", "backends": [], "num_devices": 0}),
        mpi=Probe({}, "No module named 'mpi4py'"),
    )
    found = by_name(find_transports(lean))
    assert (found["c10d"].state, found["mpi"].state) == ("note", "note")
    assert "No module named 'mpi4py'" in found["mpi"].value


@pytest.mark.parametrize(
    ("program", "probe"),
    [
        ("print('noise'); print('{\"version\": 1}')", Probe({"version": 1})),
        (
            "raise ImportError('libmpi.so is missing')",
            Probe({}, "ImportError: libmpi.so is missing"),
        ),
        ("import os; os.abort()", Probe({}, "it ended with code -6, without a word")),
    ],
)
def test_a_probe_may_end_as_it_likes(program: str, probe: Probe) -> None:
    # A library that finds no MPI may abort the process that loads it: the doctor must live on.
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONFAULTHANDLER": ""},
    )
    assert collect(process) == probe


def test_the_machine_and_its_kernel() -> None:
    found = by_name([*find_machine(), *find_kernel()])
    assert {"processor", "cores", "memory", "kernel", "memfd", "pidfd"} <= found.keys()
    assert found["pidfd"].state == "ok"


def test_cores_that_may_not_be_used_are_noted() -> None:
    machine = look_at_machine()._replace(num_cores=64, cores=(3, 4))
    finding = find_cores("machine", machine)
    assert (finding.value, finding.state) == ("2 of 64 allowed: 3, 4", "note")


def test_limits_are_seen_and_judged() -> None:
    program = """
import dataclasses, json, resource
from kadril.observe.system import find_limits
for name, soft in (("NOFILE", 64), ("FSIZE", 1 << 30), ("AS", resource.RLIM_INFINITY)):
    limit = getattr(resource, f"RLIMIT_{name}")
    resource.setrlimit(limit, (soft, resource.getrlimit(limit)[1]))
print(json.dumps([dataclasses.asdict(finding) for finding in find_limits()]))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.check_output([sys.executable, "-c", program], text=True, env=environment)
    found = by_name(Finding(**fields) for fields in json.loads(out))
    assert found["RLIMIT_NOFILE"].value.startswith("64 (at most ")
    assert "ulimit -n 256" in found["RLIMIT_NOFILE"].remedy
    assert found["RLIMIT_FSIZE"].state == "note"
    assert "ulimit -f unlimited" in found["RLIMIT_FSIZE"].remedy
    assert found["RLIMIT_AS"].state == "ok"
    assert "unlimited" in found["RLIMIT_AS"].value


def test_this_process_has_all_limits() -> None:
    names = {f"RLIMIT_{name}" for name in ("NOFILE", "NPROC", "AS", "FSIZE", "MEMLOCK")}
    assert set(by_name(find_limits())) == names


def test_options_are_shown_and_secrets_are_not() -> None:
    found = by_name(
        find_environment({"KADRIL_SPIN": "0", "KADRIL_SECRET_FILE": "/x", "MY_TOKEN": "hush"})
    )
    assert found["KADRIL_SPIN"].value == "0"
    assert found["KADRIL_SECRET_FILE"].value == "set, not shown"
    assert "MY_TOKEN" not in found
    assert found["launcher"].value.startswith("none")


def test_a_misspelt_option_is_noted_with_the_nearest() -> None:
    finding = by_name(find_environment({"KADRIL_PATIENCES": "9"}))["KADRIL_PATIENCES"]
    assert (finding.state, finding.remedy) == ("note", "did you mean KADRIL_PATIENCE?")


def test_an_option_that_makes_no_sense_is_bad() -> None:
    finding = by_name(find_environment({"KADRIL_SPIN": "fast"}))["options"]
    assert finding.state == "bad"
    assert "KADRIL_SPIN must be auto or a count" in finding.value


def test_the_launcher_is_named() -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    assert by_name(find_environment(variables))["launcher"].value == "torchrun: rank 1 of 4 ranks"
    half = {"KADRIL_RANK": "1", "KADRIL_SIZE": "2"}
    assert by_name(find_environment(half))["launcher"].state == "bad"


def answer(rank: int, said: str, *, failed: bool = False) -> dict[str, object]:
    return {"part": "sum", "rank": rank, "failed": failed, "said": said}


def test_both_ranks_must_speak() -> None:
    both = [answer(1, "fine here"), answer(0, "fine")]
    assert finding_of("all-reduce", both, (0, 1), "") == Finding("self-test", "all-reduce", "fine")
    finding = finding_of("all-reduce", both[:1], (0, 1), "one\ntwo\nOSError: no room\n")
    assert finding.state == "bad"
    assert finding.value.startswith("no word from rank 0\n")
    assert "OSError: no room" in finding.value


def test_one_failure_is_enough() -> None:
    finding = finding_of("mismatch", [answer(0, "ok"), answer(1, "wrong", failed=True)], (0, 1), "")
    assert (finding.value, finding.state) == ("wrong", "bad")
    assert finding.remedy
