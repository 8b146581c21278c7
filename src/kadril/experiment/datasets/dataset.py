"""The base of all datasets: sampling, this rank's part of each image, and a file of it.

A new dataset derives from `Dataset`, says `image_shape` and `num_classes`, and reads images:

    class Faces(Dataset):
        image_shape = (1, 64, 64)                                channels, rows, columns
        num_classes = 40

        def read_set(self, name):                                "train" or "test"
            images, labels = ...                                 any number of images
            return self.cut(images), labels                      only this rank's part is kept

With `dist_flag` each rank keeps only its part (n-rant) of every image; targets are whole.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from kadril.experiment.backend import Backend
from kadril.experiment.datasets.dataset_file import DatasetFile
from kadril.experiment.errors import DataFileError
from kadril.experiment.towers import Towers, choose_grid
from kadril.partition.partition import world_partition

__all__ = ["Dataset", "Floats"]

Floats = npt.NDArray[np.float32]


class Dataset:
    """Base of the datasets.

    Args:
        backend: draws the samples; the experiment gives its own where None.
        dist_flag: whether each rank keeps only its part of every image.
        repo_path: folder of the files; what a dataset does without it, it says itself.
        sample_pct: how much of the training data to use: from 1 on in percent, below as a fraction.
        serialized_path: where to keep what was read; with `{rank}` and `{size}` in its name for
            `dist_flag`.
        grid: ranks along rows and columns of the image, where the model does not say it.

    Attributes:
        image_shape: channels, rows and columns of the whole image.
        num_classes: number of classes of the targets.
        local_shape: channels, rows and columns of this rank's part.
        inputs: for each set, examples x pixels of this rank's part.
        targets: for each set, examples x classes.
    """

    image_shape: ClassVar[tuple[int, int, int]]
    num_classes: ClassVar[int] = 10
    set_names: ClassVar[tuple[str, ...]] = ("train", "test")

    def __init__(
        self,
        backend: Backend | None = None,
        dist_flag: bool = False,
        repo_path: str | None = None,
        sample_pct: float = 100,
        serialized_path: str | None = None,
        grid: Sequence[int] | None = None,
    ) -> None:
        if not 0 < sample_pct <= 100:
            raise ValueError(f"sample_pct is from above 0 to 100, not {sample_pct}")
        self.backend = backend
        self.dist_flag = dist_flag
        self.repo_path = repo_path
        self.sample_pct = sample_pct
        self.serialized_path = serialized_path
        self.grid = grid
        self.towers: Towers | None = None
        self.part = tuple(slice(0, size) for size in self.image_shape[1:])
        self.local_shape = self.image_shape
        self.inputs: dict[str, torch.Tensor] = {}
        self.targets: dict[str, torch.Tensor] = {}

    # ---- for a new dataset ----------------------------------------------------------------------

    def read_set(self, name: str) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Return this rank's part of the images of a set, as `cut` gives it, and their labels.

        Raises:
            DataFileError: a file is missing or damaged.
        """
        raise NotImplementedError

    def source(self) -> str:
        """Return where the images come from, for the file that they are kept in."""
        return self.repo_path or "built in"

    def cut(self, images: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return this rank's part of whole images, one row each.

        Args:
            images: examples x channels x rows x columns, or anything that can be seen so.
        """
        whole = np.reshape(images, (len(images), *self.image_shape))
        rows, columns = self.part
        return np.ascontiguousarray(whole[:, :, rows, columns]).reshape(len(images), -1)

    # ---- loading --------------------------------------------------------------------------------

    def adjust_for_dist(self, towers: Towers | None = None) -> None:
        """Find out which part of the images is this rank's; collective over the world.

        Args:
            towers: the ranks; the squarest grid that fits the image where None.

        Raises:
            GridError: there are more ranks along a dim than pixels; names the grids that fit.
        """
        channels, *shape = self.image_shape
        if towers is None:
            name = type(self).__name__
            grid = choose_grid(world_partition().size, shape, name, self.grid)
            towers = Towers(grid)
        self.towers = towers
        along = towers.part_of(shape)
        self.part = tuple(slice(each.start, each.stop) for each in along)
        self.local_shape = (channels, along[0].size, along[1].size)

    def load(self, towers: Towers | None = None) -> None:
        """Read the data, or what was kept of it before; collective with `dist_flag`.

        Args:
            towers: the ranks, where the model has arranged them.

        Raises:
            DataFileError: a file is missing, damaged, or made for another size or sampling; the
                file stays as it is.
        """
        if self.inputs:
            return
        if self.dist_flag:
            self.adjust_for_dist(towers)
        kept = self._file()
        if kept is not None and kept.path.exists():
            arrays = kept.read()
        else:
            arrays = self._read()
            if kept is not None:
                kept.write(arrays)
        dtype = torch.float32 if self.backend is None else self.backend.dtype
        for name in self.set_names:
            self.inputs[name] = torch.from_numpy(arrays[f"{name}_inputs"]).to(dtype)
            labels = torch.from_numpy(arrays[f"{name}_labels"])
            self.targets[name] = torch.nn.functional.one_hot(labels, self.num_classes).to(dtype)

    def _read(self) -> dict[str, npt.NDArray[Any]]:
        arrays = {}
        for name in self.set_names:
            images, labels = self.read_set(name)
            size = math.prod(self.local_shape)
            if images.ndim != 2 or images.shape[1] != size or len(images) != len(labels):
                raise DataFileError(
                    f"{type(self).__name__}: the {name} set has images of shape"
                    f" {list(images.shape)} and {len(labels)} labels; this rank's part has {size}"
                    " pixels: return self.cut(images)"
                )
            if len(labels) and not 0 <= labels.min() <= labels.max() < self.num_classes:
                raise DataFileError(
                    f"{type(self).__name__}: labels of the {name} set go from {labels.min()} to"
                    f" {labels.max()}, for {self.num_classes} classes"
                )
            arrays[f"{name}_inputs"], arrays[f"{name}_labels"] = images, labels.astype(np.int64)
        chosen = self._sample(len(arrays["train_labels"]))
        if chosen is not None:
            for name in ("train_inputs", "train_labels"):
                arrays[name] = arrays[name][chosen]
        return arrays

    @property
    def fraction(self) -> float:
        """The share of the training data that is used, from 0 to 1."""
        return self.sample_pct / 100.0 if self.sample_pct >= 1.0 else self.sample_pct

    def _sample(self, count: int) -> list[int] | None:
        if self.fraction >= 1.0:
            return None
        stream = self.backend or Backend()
        return stream.shuffled(count)[: int(count * self.fraction)]

    def _file(self) -> DatasetFile | None:
        if self.serialized_path is None:
            return None
        rank, size = (0, 1) if self.towers is None else (self.towers.rank, self.towers.size)
        path = self.serialized_path
        if size > 1 and "{rank}" not in path:
            raise DataFileError(
                f"serialized_path {path!r} is the same on all {size} ranks, and each has another"
                " part of the images: put {rank} and {size} into the name"
            )
        state = "" if self.backend is None else repr(self.backend.rng.get_state())
        about = {
            "dataset": type(self).__name__,
            "rank": rank,
            "size": size,
            "grid": [1, 1] if self.towers is None else list(self.towers.grid),
            "sample_pct": self.sample_pct,
            "source": self.source(),
            "sampling": ""
            if self.fraction >= 1.0
            else hashlib.sha256(state.encode()).hexdigest()[:16],
        }
        try:
            named = path.format(rank=rank, size=size)
        except (KeyError, IndexError, ValueError) as error:
            raise DataFileError(
                f"serialized_path {path!r}: only {{rank}} and {{size}} stand in braces"
            ) from error
        return DatasetFile(named, about)

    # ---- what is in it --------------------------------------------------------------------------

    def get_inputs(
        self, train: bool = False, test: bool = False, validation: bool = False
    ) -> dict[str, torch.Tensor]:
        """Return the inputs of the sets that are asked for, and are there."""
        return self._sets(self.inputs, train, test, validation)

    def get_targets(
        self, train: bool = False, test: bool = False, validation: bool = False
    ) -> dict[str, torch.Tensor]:
        """Return the targets of the sets that are asked for, and are there."""
        return self._sets(self.targets, train, test, validation)

    def _sets(
        self, values: dict[str, torch.Tensor], train: bool, test: bool, validation: bool
    ) -> dict[str, torch.Tensor]:
        self.load(self.towers)
        asked = {"train": train, "test": test, "validation": validation}
        return {
            name: values[name] for name, is_asked in asked.items() if is_asked and name in values
        }
