"""The base of all models: epochs of steps, predictions, errors, a state that can be resumed.

A model is a list of layers that are run in order. Its training is a list of *stages*, one epoch
each, so that a run which was interrupted goes on where it was.

    fprop      x -> layers[0] -> ... -> layers[-1] -> y
    bprop      cost' -> layers[-1].bprop -> its error of the input -> ... -> layers[0].bprop

Any kinds of layers may follow each other: the error that a layer is given is always that of this
rank's outputs, and each distributed layer knows whether its own `berror` still has halos that
belong to others.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kadril.experiment.backend import Backend
from kadril.experiment.datasets.dataset import Dataset
from kadril.experiment.errors import ExperimentError
from kadril.experiment.layers.fully_connected import LayerWithNoBias
from kadril.experiment.layers.layer import BaseLayer, Rate, WeightLayer
from kadril.experiment.models.layer_sizes import check_layer_sizes
from kadril.experiment.schedules import Coefficient, Momentum
from kadril.experiment.towers import Towers
from kadril.experiment.transforms import Cost, CrossEntropy

__all__ = ["Model", "Record", "Stage"]

logger = logging.getLogger("kadril.experiment")

SETS = ("train", "test", "validation")


@dataclasses.dataclass(frozen=True)
class Stage:
    """One epoch of a training.

    Attributes:
        kind: "pretrain" or "train".
        epoch: from 0, within its kind and layer.
        layer: the layer that is pretrained.
    """

    kind: str
    epoch: int
    layer: int | None = None

    def __str__(self) -> str:
        place = "" if self.layer is None else f" layer {self.layer},"
        return f"{self.kind}{place} epoch {self.epoch}"


@dataclasses.dataclass
class Record:
    """The outcome of one epoch.

    Attributes:
        kind, epoch, layer: of the stage.
        cost: per batch, over all ranks.
        reconstruction, sparsity: the parts of the cost of a pretraining.
    """

    kind: str
    epoch: int
    cost: float
    layer: int | None = None
    reconstruction: float | None = None
    sparsity: float | None = None


# Told of each batch: the stage, batches done, batches in all.
Progress = Callable[[Stage, int, int], None]


class Model(torch.nn.Module):
    """Base of the models.

    Args:
        layers: in their order.
        cost: of outputs and targets; cross entropy where None.
        num_epochs: of the supervised training.
        batch_size: examples of a step, of all ranks together.
        learning_rate: of layers that have none of their own.
        momentum: see `kadril.experiment.schedules`; none where None.
        backend: of layers that have none of their own.
        serialized_path: where the trained model is kept; loaded instead of trained if it is there.
        autograd: whether gradients are torch's, instead of those of `bprop`.
        name: shown to people.

    Attributes:
        history: a record of each epoch.
        towers: the ranks; None for a model that is not distributed.
        on_batch: told of each batch.
        on_epoch: told of each record.
    """

    def __init__(
        self,
        layers: Sequence[BaseLayer],
        cost: Cost | None = None,
        num_epochs: int = 1,
        batch_size: int = 100,
        learning_rate: Rate = 0.01,
        momentum: Momentum | Mapping[str, Any] | Coefficient | None = None,
        backend: Backend | None = None,
        serialized_path: str | None = None,
        autograd: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if not layers:
            raise ValueError("a model has at least one layer")
        if batch_size < 1 or num_epochs < 0:
            raise ValueError(
                "batch_size is at least 1, and num_epochs at least 0; they are"
                f" {batch_size} and {num_epochs}"
            )
        self.name = name or type(self).__name__
        self.layers = torch.nn.ModuleList(layers)
        self.cost = cost or CrossEntropy()
        self.num_epochs = num_epochs
        self.batch_size = batch_size
        self.momentum = momentum
        self.serialized_path = serialized_path
        self.autograd = autograd
        self.towers: Towers | None = None
        self.history: list[Record] = []
        self.stages_done = 0
        self.on_batch: Progress = lambda stage, done, total: None
        self.on_epoch: Callable[[Record], None] = lambda record: None
        self._set_defaults(backend, learning_rate)

    def _set_defaults(self, backend: Backend | None, learning_rate: Rate) -> None:
        """Give layers what they were not given themselves, in their order."""
        known = [layer.backend for layer in self.sequence if layer.backend is not None]
        self.backend = backend or (known[0] if known else Backend())
        for place, layer in enumerate(self.sequence):
            if layer.pos is None:
                layer.pos = place
            elif layer.pos != place:
                raise ValueError(
                    f"{layer.name} is layer {place} of the model, and says pos: {layer.pos}"
                )
            if layer.batch_size is None:
                layer.batch_size = self.batch_size
            if isinstance(layer, WeightLayer) and layer.learning_rate is None:
                layer.learning_rate = learning_rate
            layer.initialize(layer.backend or self.backend)

    @property
    def sequence(self) -> list[BaseLayer]:
        """The layers, with their type."""
        return [layer for layer in self.layers if isinstance(layer, BaseLayer)]

    @property
    def nlayers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    # ---- one step -------------------------------------------------------------------------------

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs, with a graph; collective over the towers of a distributed model."""
        for layer in self.sequence:
            inputs = layer(inputs)
        return inputs

    def fprop(self, inputs: torch.Tensor) -> torch.Tensor:
        """Run the layers; return the last one's output."""
        for layer in self.sequence:
            layer.fprop(inputs)
            inputs = layer.output
        return inputs

    def bprop(
        self,
        targets: torch.Tensor,
        inputs: torch.Tensor,
        epoch: int = 0,
        momentum: Any = None,
        batch_size: int | None = None,
        num_layers: int | None = None,
    ) -> None:
        """Run the layers backwards, and update their weights.

        Args:
            targets: of the last batch that `fprop` was given.
            inputs: that batch.
            epoch: number of the epoch, which schedules go by.
            momentum: see `kadril.experiment.schedules`.
            batch_size: of all groups of towers; that of the targets where None.
            num_layers: how many of the last layers are trained; all where None.
        """
        layers = self.sequence
        with torch.no_grad():
            error = self.cost.apply_derivative(layers[-1].output, targets)
            error = error / (batch_size or len(targets))
            for place in reversed(range(len(layers))[-(num_layers or len(layers)) :]):
                before = layers[place - 1].output if place else inputs
                layers[place].bprop(error, before, epoch, momentum)
                if place > len(layers) - (num_layers or len(layers)):
                    error = layers[place].local_error()

    def step_by_autograd(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        epoch: int,
        batch_size: int,
        num_layers: int | None = None,
    ) -> torch.Tensor:
        """Take a step with torch's gradients; return the outputs."""
        last = self.sequence[-(num_layers or self.nlayers) :]
        outputs: torch.Tensor = self(inputs)
        torch.autograd.backward(self.cost.loss(outputs, targets) / batch_size)
        for layer in self.sequence:
            if isinstance(layer, WeightLayer):
                if layer in last:
                    layer.apply_gradient(epoch, self.momentum)
                layer.matrix.grad = None
        return outputs.detach()

    # ---- training -------------------------------------------------------------------------------

    def stages(self) -> list[Stage]:
        """Return all epochs of the training, in their order."""
        return [Stage("train", epoch) for epoch in range(self.num_epochs)]

    def adjust_for_dist(self, image_shape: Sequence[int] | None = None) -> None:
        """Prepare for the ranks of a world; nothing to do for a model that is not distributed."""

    def fit(self, datasets: Sequence[Dataset]) -> None:
        """Train, from the first stage that was not done yet.

        Args:
            datasets: of which the first one is trained with.
        """
        if self.towers is None:
            self.adjust_for_dist(datasets[0].image_shape)
        self.load_data(datasets)
        inputs = datasets[0].get_inputs(train=True)["train"]
        targets = datasets[0].get_targets(train=True)["train"]
        for stage in self.stages()[self.stages_done :]:
            record = self.run_stage(stage, inputs, targets)
            self.history.append(record)
            self.stages_done += 1
            self.log_record(record)
            self.on_epoch(record)

    def check_data(self, dataset: Dataset) -> None:
        """Check that images and classes of a dataset are what layers take and make.

        Raises:
            ExperimentError: they are not; names both sides.
        """
        check_layer_sizes(self.name, self.sequence, dataset.image_shape)
        last = self.sequence[-1]
        if isinstance(last, LayerWithNoBias):
            num_outputs = last.whole_shape[0]
            if num_outputs != dataset.num_classes:
                raise ExperimentError(
                    f"{self.name}: {type(dataset).__name__} has {dataset.num_classes} classes, and"
                    f" {last.name} makes {num_outputs} outputs"
                )

    def load_data(self, datasets: Sequence[Dataset]) -> None:
        """Load what was not loaded yet: this rank's part of it.

        Raises:
            DataFileError: see `Dataset.load`.
            ExperimentError: it was cut for other ranks than the model, or it has images or classes
                of other numbers than the model takes and makes.
        """
        for dataset in datasets:
            self.check_data(dataset)
            dataset.load(self.towers)
            mine = None if self.towers is None else (self.towers.grid, self.towers.position)
            its = None if dataset.towers is None else (dataset.towers.grid, dataset.towers.position)
            if mine != its:
                raise ExperimentError(
                    f"{type(dataset).__name__} has the part of this rank on a grid of"
                    f" {its and its[0]}, and {self.name} is on one of {mine and mine[0]}; give both"
                    " the same dist_flag and grid, or let the model load the data"
                )

    def run_stage(self, stage: Stage, inputs: torch.Tensor, targets: torch.Tensor) -> Record:
        """Do one epoch of the training; collective over all ranks of a distributed model."""
        costs = []
        for rows, total in self.batches(stage, len(inputs)):
            outputs = self.train_batch(stage, inputs[rows], targets[rows], total)
            share = (rows.stop - rows.start) / total if self.cost.is_mean else 1.0
            costs.append(share * self.cost.apply_function(outputs, targets[rows]).double())
        cost = float(self.over_groups(torch.stack(costs).sum())) / len(costs)
        if not np.isfinite(cost):
            raise ExperimentError(
                f"{stage}: the cost is {cost}; try a smaller learning_rate, or other weights to"
                " begin with"
            )
        return Record(stage.kind, stage.epoch, cost)

    def train_batch(
        self, stage: Stage, inputs: torch.Tensor, targets: torch.Tensor, batch_size: int
    ) -> torch.Tensor:
        """Take one step of a supervised training; return the outputs from before it."""
        return self.take_step(inputs, targets, stage.epoch, batch_size)

    def take_step(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        epoch: int,
        batch_size: int,
        num_layers: int | None = None,
    ) -> torch.Tensor:
        """Update the last layers, or all; return the outputs from before it."""
        if self.autograd:
            return self.step_by_autograd(inputs, targets, epoch, batch_size, num_layers)
        outputs = self.fprop(inputs)
        self.bprop(targets, inputs, epoch, self.momentum, batch_size, num_layers)
        return outputs

    def batches(self, stage: Stage, count: int) -> Iterator[tuple[slice, int]]:
        """Give this group's rows of each batch, and the size of the batch of all groups."""
        number = -(-count // self.batch_size)
        for place in range(number):
            start = place * self.batch_size
            total = min(self.batch_size, count - start)
            mine = slice(0, total) if self.towers is None else self.towers.rows_of(total)
            yield slice(start + mine.start, start + mine.stop), total
            self.on_batch(stage, place + 1, number)

    def over_groups(self, value: torch.Tensor) -> torch.Tensor:
        """Sum a number over the groups of towers."""
        if self.towers is not None and self.towers.groups > 1:
            value = value.clone().reshape(1)
            self.towers.across.transport.allreduce(value, name="cost")
        return value

    @property
    def is_reporting(self) -> bool:
        """Whether this rank is the one that reports."""
        return self.towers is None or (self.towers.rank == 0 and self.towers.group_index == 0)

    def log_record(self, record: Record) -> None:
        """Log the results of an epoch, on one rank."""
        if not self.is_reporting:
            return
        if record.kind == "pretrain":
            logger.info(
                "layer: %d, epoch: %d, cost: %.2f + %.2f = %.2f",
                record.layer,
                record.epoch,
                record.reconstruction,
                record.sparsity,
                record.cost,
            )
        else:
            logger.info("epoch: %d, total training error: %0.5f", record.epoch, record.cost)

    # ---- predictions ----------------------------------------------------------------------------

    def predict_set(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the class that each example most likely has; on all ranks."""
        found = []
        for start in range(0, len(inputs), self.batch_size):
            found.append(self.fprop(inputs[start : start + self.batch_size]).argmax(1))
        return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)

    def predict(
        self,
        datasets: Sequence[Dataset],
        train: bool = True,
        test: bool = True,
        validation: bool = True,
    ) -> list[dict[str, torch.Tensor]]:
        """Return, for each dataset and each of its sets, the classes of all examples."""
        self.load_data(datasets)
        wanted = [
            name
            for name, is_wanted in zip(SETS, (train, test, validation), strict=True)
            if is_wanted
        ]
        return [
            {
                name: self.predict_set(inputs)
                for name, inputs in dataset.get_inputs(**dict.fromkeys(wanted, True)).items()
            }
            for dataset in datasets
        ]

    def error_metrics(
        self, datasets: Sequence[Dataset], predictions: Sequence[Mapping[str, torch.Tensor]]
    ) -> list[dict[str, float]]:
        """Return the misclassification rate of each set, in percent, and log it on one rank."""
        found = []
        for dataset, sets in zip(datasets, predictions, strict=True):
            rates = {}
            for name, classes in sets.items():
                targets = dataset.get_targets(**{name: True})[name].argmax(1)
                rates[name] = 100.0 * float((classes != targets).double().mean())
                if self.is_reporting:
                    logger.info("%s set misclass rate: %0.5f%%", name, rates[name])
            found.append(rates)
        return found

    # ---- state ----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return whole weights and all else that training goes on from; collective."""
        layers = []
        for layer in self.sequence:
            kept: dict[str, Any] = {"class": plain_name(layer), "name": layer.name}
            if isinstance(layer, WeightLayer):
                kept["weights"] = layer.whole(layer.matrix)
                if layer.velocity is not None:
                    kept["velocity"] = layer.whole(layer.velocity)
            kept.update(self.layer_state(layer))
            layers.append(kept)
        return {
            "layers": layers,
            "stages_done": self.stages_done,
            "history": [dataclasses.asdict(record) for record in self.history],
        }

    def layer_state(self, layer: BaseLayer) -> dict[str, Any]:
        """Return what a kind of model keeps of a layer besides its weights."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, which may have been made by another number of ranks.

        Raises:
            ExperimentError: it is of a model with other layers; nothing is changed then.
        """
        kept = state["layers"]
        mine = [(plain_name(layer), self.whole_shape(layer)) for layer in self.sequence]
        theirs = [
            (each["class"], tuple(each["weights"].shape) if "weights" in each else None)
            for each in kept
        ]
        if mine != theirs:
            raise ExperimentError(
                f"the state is of a model with layers {theirs}, and this one has {mine}"
            )
        for layer, each in zip(self.sequence, kept, strict=True):
            if isinstance(layer, WeightLayer):
                with torch.no_grad():
                    layer.matrix.copy_(layer.part_of(each["weights"]))
                if "velocity" in each:
                    layer.velocity = layer.part_of(each["velocity"])
            self.load_layer_state(layer, each)
        self.stages_done = state["stages_done"]
        self.history = [Record(**record) for record in state["history"]]

    def load_layer_state(self, layer: BaseLayer, kept: Mapping[str, Any]) -> None:
        """Take over what `layer_state` has kept."""

    @staticmethod
    def whole_shape(layer: BaseLayer) -> tuple[int, ...] | None:
        """Return the shape of a layer's whole weights; None where it has none."""
        return tuple(layer.whole_shape) if isinstance(layer, WeightLayer) else None


def plain_name(layer: BaseLayer) -> str:
    """Return the name of a layer's class, without the suffix of its twin."""
    return type(layer).__name__.removesuffix("Dist")
