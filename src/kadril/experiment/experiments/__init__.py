"""Experiments: what a file describes as a whole.

| file | has |
|---|---|
| `fit.py` | `FitExperiment` |
| `fit_predict_err.py` | `FitPredictErrorExperiment` |
"""

from __future__ import annotations

from kadril.experiment.experiments.fit import FitExperiment, Logging, Result
from kadril.experiment.experiments.fit_predict_err import FitPredictErrorExperiment

__all__ = ["FitExperiment", "FitPredictErrorExperiment", "Logging", "Result"]
