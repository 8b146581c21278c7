"""Hold a results file of `run.py` against the bars that kadril set itself.

    python benchmarks/training/check_bars.py benchmarks/results/training-<cpu>-<date>.json

Prints one line per bar. The exit code is 0 if all are reached, 1 if one is missed or not measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from kadril.bench.bars import Bar, Spread, at_least, at_most, print_bars
from kadril.bench.sheet import Sheet

__all__ = ["DDP", "DDP_VIEWS", "check_bars", "main"]

DDP, DDP_VIEWS = ("DDP", "DDP static"), ("DDP views", "DDP views static")

# The sum of two gradients is the same whoever adds them, and halves are exact, so the same bits are
# what to expect. But a BLAS may round in another order where a gradient lies at another address,
# some 1e-7 of it, and a hundred steps make more of it.
SAME_LOSS = 1e-4


def check_bars(sheet: Sheet) -> Iterator[Bar]:
    """All bars."""
    mlp, chain = "mlp", "chain"
    alone, kadril = sheet.find(mlp, "alone"), sheet.find(mlp, "kadril")
    text = "10M-parameter MLP: a step takes at most 1.12x of one without communication"
    yield at_most(text, sheet.ratio(kadril, alone), 1.12)
    for least, peer, settings in ((1.6, "DDP", DDP), (1.25, "DDP with bucket views", DDP_VIEWS)):
        better = sheet.find(mlp, *settings)
        text = f"10M-parameter MLP: at least {least:g}x the throughput of {peer} on gloo"
        bar = at_least(text, sheet.ratio(better, kadril), least)
        yield bar._replace(measured=f"{bar.measured}; {better.setting}") if better else bar
    text = "500 parameters of 1000: forward, backward and reduction at most 1.5x of none"
    ratio = sheet.ratio(sheet.find(chain, "kadril"), sheet.find(chain, "alone"))
    yield at_most(text, ratio, 1.5)
    text = "the timeline costs at most 2 % of a step"
    ratio = sheet.ratio(sheet.find("timeline", "on"), sheet.find("timeline", "off"))
    yield at_most(text, ratio, 1.02)
    text = f"losses as those of DDP after the same steps, within {SAME_LOSS:g}"
    yield at_most(text, loss_difference(sheet), SAME_LOSS, lambda found: f"{found.value:.2g}")


def loss_difference(sheet: Sheet) -> Spread | None:
    """The greatest relative difference between kadril's losses and DDP's, over all steps."""
    losses = sheet.facts.get("losses", {}).get("mlp", {})
    if "kadril" not in losses or "DDP" not in losses:
        return None
    pairs = zip(losses["kadril"], losses["DDP"], strict=True)
    worst = max(abs(own - theirs) / abs(theirs) for own, theirs in pairs)
    return Spread(worst, worst, worst)


def main(argv: list[str]) -> int:
    """Check each file and give the exit code."""
    if not argv:
        print(__doc__)
        return 2
    sheets = [Sheet.from_json(Path(name).read_text()) for name in argv]
    are_reached = [print_bars(list(check_bars(sheet))) for sheet in sheets]
    return 0 if all(are_reached) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
