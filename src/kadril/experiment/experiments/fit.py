"""`FitExperiment`: load the data, train the model, and keep it."""

from __future__ import annotations

import dataclasses
import logging as log
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kadril.experiment.backend import Backend
from kadril.experiment.datasets import Dataset
from kadril.experiment.errors import DataFileError, ExperimentError
from kadril.experiment.files.checkpoint_file import read_checkpoint, write_checkpoint
from kadril.experiment.files.registry import register
from kadril.experiment.models import DistModel, Model, Record
from kadril.transport.agreement import raise_on_all

__all__ = ["FitExperiment", "Logging", "Result"]

logger = log.getLogger("kadril.experiment")


class Logging(msgspec.Struct, forbid_unknown_fields=True):
    """Settings of the log.

    Attributes:
        level: 10 for debugging, 20 for information, 30 for warnings; or a name.
        format: of a line, as `logging.basicConfig` takes it.
        filename: where to, instead of the terminal.
    """

    level: int | str = 20
    format: str = "%(asctime)-15s %(levelname)s:%(module)s - %(message)s"
    filename: str | None = None


@dataclasses.dataclass
class Result:
    """The outcome of an experiment.

    Attributes:
        history: a record of each epoch.
        misclassified: for each dataset, the rate of each set in percent; where it was asked for.
        seconds: seconds of training.
        prediction_seconds: of the predictions.
    """

    history: list[Record]
    misclassified: list[dict[str, float]]
    seconds: float
    prediction_seconds: float = 0.0


class FitExperiment:
    """Load the data, train the model, and keep it.

    Args:
        model: what is trained.
        datasets: what it is trained with: the first one.
        backend: of datasets that have none of their own.
        dist_flag: whether ranks share the work; then the model and its layers are distributed ones.
        logging: what is logged, and how.

    Attributes:
        checkpoint: where the state is kept after each epoch; nowhere where None.
        resumed: the checkpoint to go on from; None for a run from the beginning.
    """

    def __init__(
        self,
        model: Model,
        datasets: Sequence[Dataset],
        backend: Backend | None = None,
        dist_flag: bool = False,
        logging: Logging | None = None,
    ) -> None:
        if not datasets:
            raise ValueError("an experiment needs at least one dataset")
        self.model = model
        self.datasets = list(datasets)
        self.backend = backend or model.backend
        self.dist_flag = dist_flag
        self.logging = logging or Logging()
        self.checkpoint: str | None = None
        self.resumed: str | None = None
        for dataset in self.datasets:
            if dataset.backend is None:
                dataset.backend = self.backend

    def check_flags(self) -> None:
        """Check that experiment, datasets and model agree on being distributed.

        Raises:
            ExperimentError: they do not; says which to change.
        """
        model = type(self.model).__name__
        is_dist = isinstance(self.model, DistModel)
        if self.dist_flag and not is_dist:
            raise ExperimentError(
                f"dist_flag is True, and {model} is not distributed: use {model}Dist, and layers"
                " whose names end in Dist"
            )
        if is_dist and not self.dist_flag:
            raise ExperimentError(
                f"{model} is distributed, and the experiment is not: add 'dist_flag: True' to it"
                " and to its datasets"
            )
        for dataset in self.datasets:
            if dataset.dist_flag != self.dist_flag:
                raise ExperimentError(
                    f"dist_flag is {self.dist_flag} for the experiment, and {dataset.dist_flag} for"
                    f" {type(dataset).__name__}: it has to be the same"
                )

    def prepare(self) -> None:
        """Arrange the ranks, and load the data; collective over the world."""
        self.check_flags()
        model, shape = self.model, self.datasets[0].image_shape
        if isinstance(model, DistModel) and model.towers is None:
            model.adjust_for_dist(shape, model.make_towers(shape))
        self.on_all("loading the data", lambda: model.load_data(self.datasets), DataFileError)
        self.on_all("opening the log", self.configure_logging)

    def on_all(
        self, what: str, call: Callable[[], object], kind: type[ExperimentError] = ExperimentError
    ) -> None:
        """Call a function that each rank runs for itself; raise on all where it fails on one.

        Raises:
            ExperimentError: what was raised here, or one of this kind that names the rank.
        """
        problem: ExperimentError | None = None
        try:
            call()
        except ExperimentError as error:
            problem = error
        if self.model.towers is not None:
            raise_on_all(self.model.towers.everyone.transport, what, problem, kind)
        elif problem is not None:
            raise problem

    def resume(self, path: str) -> None:
        """Go on from a state; collective over the world."""
        self.on_all("reading the checkpoint", lambda: self.model.load_state(read_checkpoint(path)))

    def configure_logging(self) -> None:
        """Log as the file says; on the rank that reports.

        Raises:
            ExperimentError: there is no such level or format, or the file cannot be written.
        """
        logger.handlers.clear()
        logger.propagate = False
        filename = self.logging.filename
        handler: log.Handler = log.NullHandler()
        try:
            if self.model.is_reporting:
                handler = log.StreamHandler() if filename is None else log.FileHandler(filename)
            formatter = log.Formatter(self.logging.format)
            formatter.format(log.makeLogRecord({"msg": "a line"}))
            logger.setLevel(self.logging.level)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ExperimentError(f"logging: {type(error).__name__}: {error}") from error
        handler.setFormatter(formatter)
        logger.addHandler(handler)

    def run(self) -> Result:
        """Run the experiment; collective over the world.

        Raises:
            ExperimentError: see `check_flags`; or a checkpoint does not match.
        """
        self.prepare()
        kept = self.model.serialized_path
        if self.resumed is not None:
            self.resume(self.resumed)
            logger.info("goes on from %s", self.resumed)
        elif kept is not None and Path(kept).expanduser().exists():
            self.resume(kept)
            logger.info("loaded the model of %s", kept)
        tell = self.model.on_epoch

        def on_epoch(record: Record) -> None:
            self.save(self.checkpoint)
            tell(record)

        self.model.on_epoch = on_epoch
        start = time.perf_counter()
        try:
            self.model.fit(self.datasets)
        finally:
            self.model.on_epoch = tell
        seconds = time.perf_counter() - start
        self.save(kept)
        return Result(self.model.history, [], seconds)

    def save(self, path: str | None) -> None:
        """Keep the state; collective over the world, and written by one rank."""
        if path is None:
            return
        state = self.model.state()

        def write() -> None:
            if self.model.is_reporting:
                write_checkpoint(path, state)

        # Where the writer alone raised, the others would go on to the next epoch, and wait for it.
        self.on_all("keeping the state", write)


register(FitExperiment, "neon.experiments.fit.FitExperiment")
