"""Digits: handwritten digits, 8 x 8, that come with scikit-learn."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kadril.experiment.datasets.dataset import Dataset, Floats
from kadril.experiment.errors import DataFileError

__all__ = ["Digits"]


class Digits(Dataset):
    """The 1,797 digits of scikit-learn: 1,500 to train and 297 to test. They need no files.

    Args:
        settings: see `Dataset`.
    """

    image_shape: ClassVar[tuple[int, int, int]] = (1, 8, 8)
    num_classes: ClassVar[int] = 10
    num_train: ClassVar[int] = 1500

    def source(self) -> str:
        """Return where the images come from."""
        return "scikit-learn"

    def read_set(self, name: str) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Return this rank's part of the images of a set, from 0 to 1, and their labels."""
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise DataFileError(
                "Digits come with scikit-learn: pip install 'kadril[experiment]'"
            ) from error
        images, labels = load_digits(return_X_y=True)
        chosen = slice(self.num_train, None) if name == "test" else slice(self.num_train)
        part: Floats = (self.cut(np.asarray(images)[chosen]) / 16).astype(np.float32)
        return part, np.asarray(labels)[chosen].astype(np.int64)
