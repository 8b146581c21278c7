"""`kadril doctor` for real: two ranks are started, and one of them killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

from launch_playground import Launched, Playground, Result


def doctor(playground: Playground, *words: str, **variables: str) -> Result:
    process = subprocess.Popen(
        [sys.executable, "-m", "kadril", "doctor", *words],
        env=playground.environment(variables),
        cwd=playground.directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    playground.launched.append(Launched(process))
    return playground.launched[-1].finish(timeout=100)


def findings(result: Result) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in json.loads(result.out)["findings"]}


def test_all_is_well_here(playground: Playground) -> None:
    result = doctor(playground)
    text = result.out.decode()
    assert result.code == 0, text
    topics = re.findall(r"^\S.*$", text, flags=re.MULTILINE)
    assert topics[:7] == [
        "versions",
        "transports",
        "machine",
        "limits",
        "kernel",
        "environment",
        "self-test",
    ]
    assert topics[7].startswith("all is well")
    assert "elements are right over shm" in text
    assert "both ranks were told after" in text
    noticed = re.search(r"a killed rank was noticed, and named, after ([\d.]+) ms", text)
    assert noticed
    assert 0 <= float(noticed[1]) < 1000


def broken_torch(playground: Playground) -> str:
    """Return a PYTHONPATH with a torch that cannot be loaded, as quickly as torch is slowly."""
    broken = playground.directory / "broken"
    broken.mkdir()
    (broken / "torch.py").write_text("raise ImportError('libgomp.so.1 is missing')\n")
    return f"{broken}:{playground.environment()['PYTHONPATH']}"


def test_a_broken_torch_is_found_without_starting_ranks(playground: Playground) -> None:
    variables = {"KADRIL_SECRET_FILE": "/very/secret", "PYTHONPATH": broken_torch(playground)}
    result = doctor(playground, "--json", "--no-selftest", **variables)
    assert result.code == 1
    found = findings(result)
    assert [name for name, finding in found.items() if finding["state"] == "bad"] == ["torch"]
    assert "libgomp.so.1 is missing" in found["torch"]["value"]
    assert "pip install" in found["torch"]["remedy"]
    assert found["shm"]["state"] == "ok"
    assert found["KADRIL_SECRET_FILE"]["value"] == "set, not shown"
    assert b"/very/secret" not in result.out
    assert not any(finding["topic"] == "self-test" for finding in found.values())


def test_a_selftest_that_cannot_work_says_why(playground: Playground) -> None:
    variables = {"KADRIL_TRANSPORT": "alone", "PYTHONPATH": broken_torch(playground)}
    result = doctor(playground, "--json", **variables)
    assert result.code == 1
    found = findings(result)
    bad = [name for name, finding in found.items() if finding["state"] == "bad"]
    assert bad == ["torch", "all-reduce"]
    assert "transport 'alone' is for one rank" in found["all-reduce"]["value"]
