"""Compare a results file of `run.py` with the bars that kadril set itself.

python benchmarks/training/check_bars.py benchmarks/results/training-<cpu>-<date>.json
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from harness.bars import Bar, Spread, at_least, at_most
from harness.check import main
from harness.results import Results

__all__ = ["DDP", "DDP_VIEWS", "check_bars"]

DDP, DDP_VIEWS = ("DDP", "DDP static"), ("DDP views", "DDP views static")

# The sum of two gradients is the same whoever adds them, and halves are exact, so the same bits are
# what to expect. But a BLAS may round in another order where a gradient lies at another address,
# some 1e-7 of it, and a hundred steps make more of it.
SAME_LOSS = 1e-4


def check_bars(results: Results) -> Iterator[Bar]:
    """Yield all bars."""
    mlp, chain = "mlp", "chain"
    alone, kadril = results.find(mlp, "alone"), results.find(mlp, "kadril")
    text = "10M-parameter MLP: a step takes at most 1.12x of one without communication"
    yield at_most(text, results.ratio(kadril, alone), 1.12)
    for least, peer, settings in ((1.6, "DDP", DDP), (1.25, "DDP with bucket views", DDP_VIEWS)):
        better = results.find(mlp, *settings)
        text = f"10M-parameter MLP: at least {least:g}x the throughput of {peer} on gloo"
        bar = at_least(text, results.ratio(better, kadril), least)
        yield bar._replace(measured=f"{bar.measured}; {better.setting}") if better else bar
    text = "500 parameters of 1000: forward, backward and reduction at most 1.5x of none"
    ratio = results.ratio(results.find(chain, "kadril"), results.find(chain, "alone"))
    yield at_most(text, ratio, 1.5)
    text = "the timeline costs at most 2 % of a step"
    ratio = results.ratio(results.find("timeline", "on"), results.find("timeline", "off"))
    yield at_most(text, ratio, 1.02)
    text = f"losses as those of DDP after the same steps, within {SAME_LOSS:g}"
    yield at_most(text, loss_difference(results), SAME_LOSS, lambda found: f"{found.value:.2g}")


def loss_difference(results: Results) -> Spread | None:
    """The greatest relative difference between kadril's losses and DDP's, over all steps."""
    losses = results.facts.get("losses", {}).get("mlp", {})
    if "kadril" not in losses or "DDP" not in losses:
        return None
    pairs = zip(losses["kadril"], losses["DDP"], strict=True)
    worst = max(abs(own - theirs) / abs(theirs) for own, theirs in pairs)
    return Spread(worst, worst, worst)


if __name__ == "__main__":
    main(check_bars)
