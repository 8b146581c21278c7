"""Costs by epoch: of each layer's pretraining, and of the training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kadril.experiment.drawing.canvas import canvas
from kadril.experiment.models import Record

__all__ = ["draw_curves"]


def draw_curves(history: Sequence[Record], path: str | Path) -> None:
    """Draw the cost of each epoch.

    Args:
        history: of a model.
        path: of the picture.

    Raises:
        ExperimentError: it cannot be drawn.
    """
    kinds = [kind for kind in ("pretrain", "train") if any(each.kind == kind for each in history)]
    with canvas(
        path, 4.5 * max(1, len(kinds)), 3.2, ncols=max(1, len(kinds)), squeeze=False
    ) as axes:
        for axis, kind in zip(axes[0], kinds, strict=False):
            records = [each for each in history if each.kind == kind]
            for layer in sorted({each.layer for each in records}, key=lambda each: each or 0):
                own = [each for each in records if each.layer == layer]
                label = None if layer is None else f"layer {layer}"
                epochs = [each.epoch for each in own]
                axis.plot(epochs, [each.cost for each in own], marker="o", label=label)
            axis.set_title("pretraining" if kind == "pretrain" else "training")
            axis.set_xlabel("epoch")
            axis.set_ylabel("cost")
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.set_xlim(-0.5, max(each.epoch for each in records) + 0.5)
            if kind == "pretrain":
                axis.legend()
