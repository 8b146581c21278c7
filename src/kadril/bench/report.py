"""The report of a run: what was measured, and everything one must know to believe it."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Container, Mapping
from typing import Any

import kadril
from kadril.bench.figures import Ratio, Result, RoundResult
from kadril.errors import ConfigError
from kadril.observe.machine import look_at_machine

__all__ = ["Idleness", "Report", "describe_surroundings", "encode_by_line"]

FORMAT = 1
PACKAGES = ("torch", "numpy", "mpi4py")


@dataclasses.dataclass(frozen=True)
class Idleness:
    """Resources that the ranks of a job used while they had nothing to do.

    Attributes:
        cpu: seconds of processor time, of all its ranks together.
        wall: seconds that they were idle, of all its ranks together.
    """

    cpu: float
    wall: float

    @property
    def share(self) -> float:
        """Return the share of a core that one idle rank used."""
        return self.cpu / self.wall if self.wall else 0.0


@dataclasses.dataclass(frozen=True)
class Report:
    """Report of a run of `kadril bench`.

    Attributes:
        format: number of this layout of a report.
        date: when the run began, with time zone.
        command: how to run it again.
        num_ranks: number of ranks of every job.
        machine: see `kadril.observe.machine.Machine`.
        load: load average at the begin and at the end.
        versions: of Python, of packages, and what each engine calls itself.
        options: of the run.
        missing: peers, or collectives of a peer, that are not in here, and why.
        idle: of each job.
        results: see `figures.py`.
        ratios: see `figures.py`.
    """

    date: str
    command: str
    num_ranks: int
    machine: Mapping[str, Any]
    load: Mapping[str, tuple[float, ...]]
    versions: Mapping[str, str]
    options: Mapping[str, Any]
    missing: Mapping[str, str]
    idle: Mapping[str, Idleness]
    results: tuple[Result, ...]
    ratios: tuple[Ratio, ...]
    format: int = FORMAT

    def to_json(self) -> str:
        """Return the report as JSON, with one line for each result and each ratio."""
        return encode_by_line(dataclasses.asdict(self), {"results", "ratios"})

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read what `to_json` gave.

        Raises:
            ConfigError: it has another format.
        """
        fields = json.loads(text)
        if fields.get("format") != FORMAT:
            raise ConfigError(f"this is not a report of `kadril bench` in format {FORMAT}")
        results = [
            Result(**{**one, "rounds": tuple(RoundResult(**each) for each in one["rounds"])})
            for one in fields["results"]
        ]
        return cls(
            **{
                **fields,
                "idle": {job: Idleness(**idle) for job, idle in fields["idle"].items()},
                "results": tuple(results),
                "ratios": tuple(Ratio(**one) for one in fields["ratios"]),
            }
        )


def encode_by_line(fields: Mapping[str, Any], long_fields: Container[str]) -> str:
    """Return fields as JSON with a line for each of them, and for each item of a long one."""
    lines = []
    for name, value in rounded(fields).items():
        if name in long_fields:
            items = ",\n".join("  " + json.dumps(item) for item in value)
            lines.append(f"{json.dumps(name)}: [\n{items}\n]")
        else:
            lines.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def rounded(value: Any) -> Any:
    """Return the same with numbers of six digits: more is noise, and makes files large."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def describe_surroundings() -> dict[str, Any]:
    """Return date, machine, load and versions, as fields of a report; call it when a run begins."""
    versions = {"python": platform.python_version(), "kadril": kadril.__version__}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": look_at_machine()._asdict(),
        "load": {"begin": os.getloadavg()},
        "versions": versions,
    }
