"""Memory over a step: what is seen of it, its picture, and the bars of `benchmarks/sharded`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.memory_trace import MemoryTrace
from harness.results import Series
from test_bench_results import BENCHMARKS, load_check_bars, make_results

SIZE = 64 << 20  # so large that it is given back to the system when it is freed


# In a process of its own: what earlier tests have left is freed at any time.
TAKE_AND_GIVE_BACK = f"""
import dataclasses, json, sys
import numpy as np
sys.path.insert(0, {str(BENCHMARKS)!r})
from harness.memory_trace import rank_bytes, trace_phases

held = []
calls = {{
    "rest": lambda: None,
    "take": lambda: held.append(np.ones({SIZE}, dtype=np.uint8)),
    "hold": lambda: held[0].sum(),
    "give back": held.clear,
}}
np.ones(8).sum()
trace = trace_phases(calls, num_ranks=1, before=rank_bytes(1))
print(json.dumps(dataclasses.asdict(trace)))
"""


def test_what_a_phase_takes_and_gives_back_is_seen() -> None:
    command = [sys.executable, "-c", TAKE_AND_GIVE_BACK]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    trace = MemoryTrace(**json.loads(done.stdout))
    assert trace.phases == ["rest", "take", "hold", "give back"]
    places = [place for place, _ in trace.samples]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0.0, 4.0)
    held_bytes = [num_bytes for place, num_bytes in trace.samples if 2.0 <= place < 3.0]
    # numpy itself may take some meanwhile, but hardly half as much as this.
    assert min(held_bytes) > SIZE / 2
    assert trace.peak >= max(held_bytes)
    assert trace.samples[0][1] < SIZE / 2
    assert trace.samples[-1][1] < SIZE / 2


def test_a_picture_of_memory(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "memory.svg"
    # In a process of its own: matplotlib keeps the files of its fonts open.
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "import pathlib\n"
        "from harness.memory_trace import MemoryTrace\n"
        "from harness.memory_plot import draw_memory\n"
        "trace = MemoryTrace(('forward', 'step'), [(0.0, 0.0), (1.5, 3e6), (2.0, 1e6)])\n"
        f"draw_memory({{'one': trace, 'two': trace}}, 'A title', pathlib.Path({str(path)!r}))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert "<svg" in path.read_text()


def memory_facts(ours: float, peak: float) -> dict[str, Any]:
    """Both ranks had 100 MiB before, and 300 with DDP."""

    def looks(after: float) -> list[list[dict[str, float]]]:
        return [[{"before": 100 * 2**20, "after": after * 2**20}] * 2] * 3

    models = ("transformer", "wide transformer")
    memory = {model: {"DDP": looks(300), "kadril": looks(ours)} for model in models}
    step = {"kadril, compiled": [{"peaks": [peak * 2**20] * 3}, {"peaks": [1.0, 1.0, 1.0]}]}
    return {"memory": memory, "step": step}


def bars_of(ours: float, peak: float, deepspeed: float | None = None) -> dict[str, str]:
    series = []
    for model in ("mlp", "transformer"):
        for kind in ("default", "fused"):
            workload = f"{model}, {kind} Adam"
            times = {"kadril": 1.0, "alone": 1.0, "DDP + ZeRO": 1.6, "FSDP2": 2.0}
            times.update({"kadril, compiled": 1.0, "kadril, inductor": 1.0})
            if deepspeed is not None:
                times["DeepSpeed ZeRO-2"] = deepspeed
            series += [Series(workload, setting, [[time]]) for setting, time in times.items()]
    results = make_results("sharded", *series, **memory_facts(ours, peak))
    missing = {f"{each.workload}: DeepSpeed ZeRO-2": "no module" for each in series}
    if deepspeed is None:
        results.missing.update(missing)  # type: ignore[attr-defined]
    return {bar.text: bar.state for bar in load_check_bars("sharded").check_bars(results)}


def test_the_bars_of_sharded_training() -> None:
    found = bars_of(ours=180, peak=70, deepspeed=2.5)
    assert set(found.values()) == {"reached"}
    assert len(found) == 4 * 6 + 2 * 2 + 1


def test_memory_that_is_missed() -> None:
    # 200 of 300 is too much in all; of what was added, 100 of 200 is not.
    found = bars_of(ours=200, peak=71, deepspeed=2.4)
    missed = {text for text, state in found.items() if state == "missed"}
    assert missed == {
        "transformer: memory of the host at most 0.6x of DDP's",
        "wide transformer: memory of the host at most 0.6x of DDP's",
        "a compiled pass with 108 MiB of gradients adds at most 70 MiB to a rank",
        *(text for text in found if "DeepSpeed" in text),
    }


def test_what_is_not_installed_has_no_bar() -> None:
    assert not any("DeepSpeed" in text for text in bars_of(ours=180, peak=70))


def test_what_was_not_measured_is_said() -> None:
    states = {bar.state for bar in load_check_bars("sharded").check_bars(make_results("sharded"))}
    assert states == {"not measured"}


def test_a_trace_has_a_peak() -> None:
    assert MemoryTrace(("a",), [(0.0, 1.0), (0.5, 9.0), (1.0, 2.0)]).peak == 9.0
