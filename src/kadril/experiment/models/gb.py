"""`GB`: a sparse auto-encoder with unshared filters, fine-tuned to classify ("Google Brain").

    [LocalFiltering, L2Pooling, LCN] x 3, then fully connected layers

1. Greedy pretraining without targets, one filtering layer after the other: reconstruct its input,
   with sparse pooled outputs. Layers before it stay as they are.
2. Training with targets: the last layer alone for `num_initial_epochs`, then all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from kadril.experiment.datasets.dataset import Dataset
from kadril.experiment.errors import ExperimentError
from kadril.experiment.layers.filtering import LocalFilteringLayer
from kadril.experiment.layers.layer import BaseLayer
from kadril.experiment.layers.pooling import PoolingLayer
from kadril.experiment.models.mlp import MLP
from kadril.experiment.models.model import Record, Stage
from kadril.experiment.transforms import Cost, SumSquaredDiffs

__all__ = ["GB"]

logger = logging.getLogger("kadril.experiment")


class GB(MLP):
    """A sparse auto-encoder that is fine-tuned to classify.

    Args:
        layers: see `Model`; each filtering layer is followed by a pooling.
        pretrain_cost: of reconstructions; half of the sum of squares where None.
        num_pretrain_epochs: for each filtering layer.
        num_initial_epochs: of training in which only the last layer learns.
        pretraining: whether to pretrain at all.
        sparsity: of filtering layers that have none of their own.
        pretrain_learning_rate: the same. Pretraining uses neither schedules nor momentum.
        tied_weights: the same.
        visualize: whether to draw the filters after training, or the name of the file to draw to.
        spot_check: whether to log how well single outputs of the last local layer tell classes
            apart, after training.
        settings: further arguments of `Model`.
    """

    def __init__(
        self,
        layers: Sequence[BaseLayer],
        pretrain_cost: Cost | None = None,
        num_pretrain_epochs: int = 1,
        num_initial_epochs: int = 1,
        pretraining: bool = True,
        sparsity: float = 0.1,
        pretrain_learning_rate: float = 0.01,
        tied_weights: bool = True,
        visualize: bool | str = False,
        spot_check: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(layers=layers, **settings)
        if min(num_pretrain_epochs, num_initial_epochs) < 0:
            raise ValueError("num_pretrain_epochs and num_initial_epochs are at least 0")
        self.pretrain_cost = pretrain_cost or SumSquaredDiffs()
        self.num_pretrain_epochs = num_pretrain_epochs
        self.num_initial_epochs = num_initial_epochs
        self.pretraining = pretraining
        self.visualize = visualize
        self.spot_check = spot_check
        for layer in self.trainable_layers:
            defaults = {
                "sparsity": sparsity,
                "pretrain_learning_rate": pretrain_learning_rate,
                "tied_weights": tied_weights,
            }
            for name, value in defaults.items():
                if getattr(layer, name) is None:
                    setattr(layer, name, value)
            if not isinstance(self.layers[self.place_of(layer) + 1], PoolingLayer):
                raise ExperimentError(
                    f"{self.name}: {layer.name} is to be followed by a pooling layer, whose outputs"
                    " are made sparse"
                )

    @property
    def trainable_layers(self) -> list[LocalFilteringLayer]:
        """The layers that are pretrained."""
        return [layer for layer in self.sequence if isinstance(layer, LocalFilteringLayer)]

    def place_of(self, layer: BaseLayer) -> int:
        """Return the place of a layer in the model."""
        return self.sequence.index(layer)

    def stages(self) -> list[Stage]:
        """Return the epochs of pretraining, layer by layer, and then those of training."""
        before = [
            Stage("pretrain", epoch, self.place_of(layer))
            for layer in self.trainable_layers
            for epoch in range(self.num_pretrain_epochs if self.pretraining else 0)
        ]
        return before + super().stages()

    def run_stage(self, stage: Stage, inputs: torch.Tensor, targets: torch.Tensor) -> Record:
        """Do one epoch of pretraining or training; collective over all ranks."""
        if stage.kind == "pretrain":
            return self.pretrain_epoch(stage, inputs)
        return super().run_stage(stage, inputs, targets)

    def fit(self, datasets: Sequence[Dataset]) -> None:
        """Pretrain and train; see `Model.fit`. Then, with `spot_check`, log `separation`."""
        super().fit(datasets)
        if self.spot_check:
            inputs = datasets[0].get_inputs(train=True)["train"]
            found = self.separation(inputs, datasets[0].get_targets(train=True)["train"])
            for number, area in enumerate(found):
                logger.info("class %d: best single output has an AUC of %.3f", number, area)

    def pretrain(self, inputs: torch.Tensor) -> list[Record]:
        """Do the whole pretraining; return the results of each epoch."""
        return [
            self.pretrain_epoch(stage, inputs)
            for stage in self.stages()
            if stage.kind == "pretrain"
        ]

    def pretrain_epoch(self, stage: Stage, inputs: torch.Tensor) -> Record:
        """Let one layer learn to reconstruct its input, for an epoch."""
        place = stage.layer or 0
        layer = cast("LocalFilteringLayer", self.sequence[place])
        pooling = cast("PoolingLayer", self.sequence[place + 1])
        layer.pretrain_mode(pooling)
        costs = torch.zeros(2, dtype=torch.float64)
        for rows, total in self.batches(stage, len(inputs)):
            x = inputs[rows]
            for below in self.sequence[:place]:
                below.fprop(x)
                x = below.output
            parts = layer.pretrain(x, self.pretrain_cost, stage.epoch, total)
            costs += torch.stack([part.double() for part in parts])
        layer.train_mode()
        if self.towers is not None:
            self.towers.everyone.transport.allreduce(costs, name="cost of pretraining")
        rebuilt, sparse = (costs / max(1, -(-len(inputs) // self.batch_size))).tolist()
        return Record(stage.kind, stage.epoch, rebuilt + sparse, place, rebuilt, sparse)

    def train_batch(
        self, stage: Stage, inputs: torch.Tensor, targets: torch.Tensor, batch_size: int
    ) -> torch.Tensor:
        """Take a step: of the last layer alone in the first epochs, then of all."""
        only_last = stage.epoch < self.num_initial_epochs
        num_layers = 1 if only_last else None
        return self.take_step(inputs, targets, stage.epoch, batch_size, num_layers)

    # ---- what it has learned --------------------------------------------------------------------

    def filters(self, layer: LocalFilteringLayer) -> torch.Tensor:
        """Return all filters of a layer, on all ranks: filters x rows x columns x the filter."""
        whole = layer.whole(layer.matrix)
        sizes = (layer.nofm, *layer.global_ofmshape, layer.nifm, *layer.fshape)
        return whole.view(sizes)

    def separation(self, inputs: torch.Tensor, targets: torch.Tensor) -> list[float]:
        """Return, for each class, how well the best single output tells it from the others.

        That is the area under the ROC curve: 0.5 for an output that tells nothing, 1 for one that
        tells all. Outputs are those of the last layer before the fully connected ones.
        """
        place = max(self.place_of(layer) for layer in self.trainable_layers) + 1
        found = []
        for start in range(0, len(inputs), self.batch_size):
            x = inputs[start : start + self.batch_size]
            for layer in self.sequence[: place + 1]:
                layer.fprop(x)
                x = layer.output
            found.append(x)
        ranks = torch.cat(found).argsort(0).argsort(0).double()
        classes = targets.argmax(1)
        best = []
        for each in range(targets.shape[1]):
            inside = classes == each
            count = int(inside.sum())
            pairs = count * (len(classes) - count)
            areas = (ranks[inside].sum(0) - count * (count - 1) / 2) / max(1, pairs)
            best.append(areas.max())
        values = torch.stack(best)
        if self.towers is not None:
            self.towers.partition.transport.allreduce(values, "max", name="separation")
        return values.tolist()

    # ---- state ----------------------------------------------------------------------------------

    def layer_state(self, layer: BaseLayer) -> dict[str, Any]:
        """Return the weights of a way back that has its own."""
        if isinstance(layer, LocalFilteringLayer) and layer.defilter and not layer.tied_weights:
            return {"defilter": layer.whole(layer.defilter.weights)}
        return {}

    def load_layer_state(self, layer: BaseLayer, kept: Mapping[str, Any]) -> None:
        """Take over the weights of a way back that has its own."""
        if isinstance(layer, LocalFilteringLayer) and "defilter" in kept:
            pooling = self.layers[self.place_of(layer) + 1]
            if isinstance(pooling, PoolingLayer):
                layer.pretrain_mode(pooling)
                layer.train_mode()
            if layer.defilter is not None:
                layer.defilter.weights.copy_(layer.part_of(kept["defilter"]))
