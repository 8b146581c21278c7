"""`--config-file`: horovodrun's YAML, read strictly."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launch_playground import Playground

from kadril.errors import ConfigError
from kadril.launch.command import parse
from kadril.launch.options import RunOptions
from kadril.launch.request.config_file import PLACES, read_config_file, read_sections

WHOLE = """
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 10
  cache_capacity: 2048
  hierarchical_allreduce: true
  hierarchical_allgather: false
  torus_allreduce: false
autotune:
  enabled: true
  log_file: 'tune.txt'
  warmup_samples: 5
  steps_per_sample: 20
  bayes_opt_max_samples: 50
  gaussian_process_noise: 0.9
timeline:
  filename: 'trace.json'
  mark_cycles: true
stall_check:
  enabled: false
  warning_time_seconds: 120
  shutdown_time_seconds: 240
library_options:
  mpi_threads_disable: true
  num_nccl_streams: 2
  ccl_bgt_affinity: 1
  thread_affinity: 1
  gloo_timeout_seconds: 60
logging:
  level: INFO
  hide_timestamp: true
"""


def options(tmp_path: Path, text: str, *words: str) -> RunOptions:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return parse(["-np", "2", "--config-file", str(file), *words, "true"])


def test_every_key_of_horovodrun(tmp_path: Path) -> None:
    found = options(tmp_path, WHOLE)
    assert found.config == {
        "fusion_threshold": str(32 << 20),
        "cache_capacity": "2048",
        "timeline": "trace.json",
        "timeline_mark_cycles": "1",
        "stall_check": "0",
        "stall_warning": "120.0",
        "patience": "240.0",
        "connect_timeout": "60.0",
        "log_level": "INFO",
    }
    assert {notice.split()[0] for notice in found.notices} == {
        "--cycle-time-ms",
        "--hierarchical-allreduce",
        "--autotune",
        "--autotune-log-file",
        "--autotune-warmup-samples",
        "--autotune-steps-per-sample",
        "--autotune-bayes-opt-max-samples",
        "--autotune-gaussian-process-noise",
        "--mpi-threads-disable",
        "--num-nccl-streams",
        "--ccl-bgt-affinity",
        "--thread-affinity",
        "--log-without-timestamp",
    }
    for place in PLACES.keys() - {"logging.with_timestamp"}:
        assert f"  {place.partition('.')[2]}:" in WHOLE, "this test is to have every key"


def test_the_command_line_wins_wherever_it_stands(tmp_path: Path) -> None:
    text = "params: {fusion_threshold_mb: 32}\nstall_check: {enabled: false}\ncontroller: mpi"
    file = tmp_path / "config.yaml"
    file.write_text(text)
    flags = ["--fusion-threshold-mb", "8", "--stall-check", "--gloo"]
    for words in (["--config-file", str(file), *flags], [*flags, "--config-file", str(file)]):
        assert parse(["-np", "2", *words, "true"]).config == {
            "fusion_threshold": str(8 << 20),
            "stall_check": "1",
            "transport": "c10d:gloo",
        }


def test_controller(tmp_path: Path) -> None:
    assert options(tmp_path, "controller: GLOO").config == {"transport": "c10d:gloo"}
    with pytest.raises(ConfigError, match="--mpi cannot be used here"):
        options(tmp_path, "controller: mpi")


def test_timestamps_by_either_name() -> None:
    assert read_sections({"logging": {"with_timestamp": False}}) == {"log_without_timestamp": True}
    assert read_sections({"logging": {"hide_timestamp": False}}) == {"log_without_timestamp": False}


@pytest.mark.parametrize("text", ["", "params:", "params: {cycle_time_ms: }", "# nothing"])
def test_what_is_left_empty_is_not_set(tmp_path: Path, text: str) -> None:
    found = options(tmp_path, text)
    assert (found.config, found.notices) == ({}, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parms: {}", "no section 'parms'; did you mean 'params'"),
        ("qqq: {}", "no section 'qqq'; there are autotune"),
        (
            "params: {fusion_treshold_mb: 3}",
            "no key 'fusion_treshold_mb' in section 'params'; did you mean 'fusion_threshold_mb'",
        ),
        (
            "timeline: {fusion_threshold_mb: 3}",
            "no key 'fusion_threshold_mb' in section 'timeline'",
        ),
        ("params: {fusion_threshold_mb: big}", "must be a whole number, got 'big'"),
        ("params: {fusion_threshold_mb: 1.5}", "must be a whole number, got 1.5"),
        ("params: {fusion_threshold_mb: true}", "must be a whole number, got True"),
        ("params: {cycle_time_ms: true}", "must be a number, got True"),
        ("stall_check: {enabled: 1}", "stall_check.enabled must be true or false, got 1"),
        ("timeline: {filename: 3}", "timeline.filename must be text, got 3"),
        ("params: 3", "section 'params' must have keys"),
        ("- params", "a file has sections"),
        ("just words", "a file has sections"),
        ("controller: pigeon", "controller must be one of gloo, mpi, jsrun, got 'pigeon'"),
        ("params: {fusion_threshold_mb: -3}", "--fusion-threshold-mb: .* must be 0 or more"),
        ("params: [", "config.yaml: while parsing"),
        ("!!python/object/apply:os.system ['true']", "config.yaml: could not determine"),
    ],
)
def test_what_a_file_must_not_have(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options(tmp_path, text)


def test_no_file() -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_config_file("/no/such/file.yaml")


def test_without_pyyaml_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)  # as if it were not there
    with pytest.raises(ConfigError, match=r"pip install 'kadril\[yaml\]'"):
        read_config_file("config.yaml")


def test_a_real_run(playground: Playground) -> None:
    file = playground.write("config.yaml", "params: {cache_capacity: 5, cycle_time_ms: 3}\n")
    result = playground.run(
        "-np", "2", "--config-file", file, "sh", "-c", "echo $KADRIL_CACHE_CAPACITY"
    )
    assert sorted(result.out.splitlines()) == [b"[0] 5", b"[1] 5"]
    assert len(result.report) == 1
    assert result.report[0].startswith("--cycle-time-ms has no effect")
    result = playground.run("-np", "2", "--config-file", "missing.yaml", "true")
    assert result.code == 2
