"""CIFAR-10: small photographs, 3 x 32 x 32, from its python or its binary batches."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from kadril.experiment.datasets.data_folder import find_files
from kadril.experiment.datasets.dataset import Dataset, Floats
from kadril.experiment.errors import DataFileError

__all__ = ["CIFAR10"]

FOLDERS = ("CIFAR10", "cifar10", "cifar-10-batches-py", "cifar-10-batches-bin")
BELOW = (*FOLDERS, *(f"CIFAR10/{each}" for each in FOLDERS[2:]))

# All that a batch of arrays and labels is made of. Anything else in a pickle can run code.
HARMLESS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}


class CIFAR10(Dataset):
    """CIFAR-10, from its python batches or its binary ones; as many training batches as there are.

    Args:
        settings: see `Dataset`. `repo_path` is the folder of the batches, or one above it; needed.
    """

    image_shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)
    num_classes: ClassVar[int] = 10
    patterns: ClassVar[dict[str, tuple[str, str]]] = {
        "train": ("data_batch_?", "data_batch_?.bin"),
        "test": ("test_batch", "test_batch.bin"),
    }

    def read_set(self, name: str) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Return this rank's part of the images of a set, from 0 to 1, and their labels."""
        if self.repo_path is None:
            raise DataFileError(
                "CIFAR10 needs a repo_path, the folder of its batches (or --data on the command"
                " line); data that needs no files: MNIST without repo_path, and Digits"
            )
        paths = find_files(self.repo_path, BELOW, self.patterns[name])
        if not paths:
            base = Path(self.repo_path).expanduser()
            places = ", ".join(str(base / each) for each in ("", *FOLDERS))
            raise DataFileError(
                f"no batches {' or '.join(self.patterns[name])} of CIFAR-10 in {places}; give the"
                " right repo_path (or --data on the command line)"
            )
        parts, labels = zip(*(self.read_image_file(path) for path in paths), strict=True)
        return np.concatenate(parts), np.concatenate(labels)

    def read_image_file(self, fname: str | Path) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Return this rank's part (n-rant) of all images of a batch, from 0 to 1, and their labels.

        Raises:
            DataFileError: it is damaged, or holds anything but arrays and labels.
        """
        path = Path(fname)
        read = self._read_binary if path.suffix == ".bin" else self._read_python
        images, labels = read(path)
        part: Floats = self.cut(images).astype(np.float32)
        part /= 255.0
        return part, labels

    @staticmethod
    def _read_binary(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        size = 1 + 3 * 32 * 32
        content = np.fromfile(path, dtype=np.uint8)
        if content.size == 0 or content.size % size:
            raise DataFileError(
                f"{path} has {content.size} bytes, which are not records of {size}: it was not"
                " copied whole"
            )
        records = content.reshape(-1, size)
        return records[:, 1:], records[:, 0].astype(np.int64)

    @staticmethod
    def _read_python(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        try:
            batch = HarmlessUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
            images, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
            if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != 3 * 32 * 32:
                raise ValueError(f"images of {images.dtype}, shape {images.shape}")
        except DataFileError as error:
            raise DataFileError(f"{path}: {error}") from None
        except Exception as error:
            raise DataFileError(f"{path} is no batch of CIFAR-10: {error}") from error
        return images, labels.astype(np.int64)


class HarmlessUnpickler(pickle.Unpickler):
    """An unpickler that makes arrays, numbers and texts, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few things that arrays are made of.

        Raises:
            DataFileError: the pickle asks for anything else.
        """
        if (module, name) not in HARMLESS:
            raise DataFileError(
                f"the pickle asks for {module}.{name}, which no batch of CIFAR-10 has; it was not"
                " run"
            )
        return super().find_class(module, name)
