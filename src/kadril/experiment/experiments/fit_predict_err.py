"""`FitPredictErrorExperiment`: train a model, and count what it gets wrong."""

from __future__ import annotations

import time

from kadril.experiment.experiments.fit import FitExperiment, Result
from kadril.experiment.files.registry import register

__all__ = ["FitPredictErrorExperiment"]


class FitPredictErrorExperiment(FitExperiment):
    """Train a model, and count what it gets wrong, in each set. See `FitExperiment`."""

    def run(self) -> Result:
        """Run the experiment; collective over the world."""
        result = super().run()
        start = time.perf_counter()
        predictions = self.model.predict(self.datasets)
        result.misclassified = self.model.error_metrics(self.datasets, predictions)
        result.prediction_seconds = time.perf_counter() - start
        return result


register(FitPredictErrorExperiment, "neon.experiments.fit_predict_err.FitPredictErrorExperiment")
