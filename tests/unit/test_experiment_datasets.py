"""Datasets: files as they are and as they should not be; nothing is destroyed, no code is run."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import kadril.experiment as ke


def write_mnist(folder: Path, packed: bool, count: int = 20) -> np.ndarray:
    """MNIST's four files, with images in which each pixel is known."""
    folder.mkdir(parents=True, exist_ok=True)
    images = np.arange(count * 784, dtype=np.int64).reshape(count, 28, 28) % 256
    for name, number in (("train", count), ("t10k", count // 2)):
        contents = {
            f"{name}-images-idx3-ubyte": struct.pack(">iiii", 2051, number, 28, 28)
            + images[:number].astype(np.uint8).tobytes(),
            f"{name}-labels-idx1-ubyte": struct.pack(">ii", 2049, number)
            + (np.arange(number) % 10).astype(np.uint8).tobytes(),
        }
        for file, content in contents.items():
            if packed:
                (folder / f"{file}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / file).write_bytes(content)
    return images


def write_cifar(folder: Path, binary: bool, count: int = 12) -> np.ndarray:
    """CIFAR-10's batches: two to train, one to test."""
    folder.mkdir(parents=True, exist_ok=True)
    images = (np.arange(count * 3072, dtype=np.int64).reshape(count, 3072) % 251).astype(np.uint8)
    labels = np.arange(count) % 10
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        if binary:
            records = np.concatenate([labels[:, None].astype(np.uint8), images], 1)
            (folder / f"{name}.bin").write_bytes(records.tobytes())
        else:
            batch = {b"data": images, b"labels": labels.tolist(), b"batch_label": b"one"}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return images


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("below", ["", "MNIST", "mnist"])
def test_mnist_from_its_files(tmp_path: Path, packed: bool, below: str) -> None:
    images = write_mnist(tmp_path / below, packed)
    data = ke.MNIST(repo_path=str(tmp_path))
    inputs = data.get_inputs(train=True, test=True, validation=True)
    assert list(inputs) == ["train", "test"]
    assert inputs["train"].shape == (20, 784)
    assert torch.equal(inputs["train"], torch.from_numpy(images.reshape(20, -1)).float() / 255)
    targets = data.get_targets(test=True)["test"]
    assert torch.equal(targets.argmax(1), torch.arange(10))
    assert torch.equal(targets.sum(1), torch.ones(10))


@pytest.mark.parametrize("binary", [False, True])
def test_cifar_from_its_batches(tmp_path: Path, binary: bool) -> None:
    folder = "cifar-10-batches-bin" if binary else "cifar-10-batches-py"
    images = write_cifar(tmp_path / folder, binary)
    data = ke.CIFAR10(repo_path=str(tmp_path))
    inputs = data.get_inputs(train=True, test=True)
    assert inputs["train"].shape == (24, 3072)
    assert torch.equal(inputs["test"], torch.from_numpy(images).float() / 255)


def test_data_that_needs_no_files() -> None:
    digits = ke.Digits()
    assert digits.get_inputs(train=True)["train"].shape == (1500, 64)
    assert 0.99 < float(digits.get_inputs(test=True)["test"].max()) <= 1
    mnist = ke.MNIST()
    inputs = mnist.get_inputs(train=True, test=True)
    assert [len(inputs[name]) for name in ("train", "test")] == [4000, 1000]
    counts = mnist.get_targets(test=True)["test"].sum(0)
    assert torch.equal(counts, torch.full((10,), 100.0))


def test_samples_are_those_of_the_seed(tmp_path: Path) -> None:
    """Amounts from 1 on are in percent, fractions below; numbers are the backend's next."""
    write_mnist(tmp_path, packed=False, count=200)
    order = list(range(200))
    np.random.RandomState(5).shuffle(order)
    for amount, number in ((10, 20), (0.1, 20), (100, 200), (1, 2)):
        data = ke.MNIST(ke.Backend(5), repo_path=str(tmp_path), sample_pct=amount)
        labels = data.get_targets(train=True)["train"].argmax(1)
        expected = list(range(200)) if amount == 100 else order[:number]
        assert labels.tolist() == [each % 10 for each in expected]
    with pytest.raises(ValueError, match="sample_pct"):
        ke.MNIST(sample_pct=0)


class Harm:
    """Removes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.remove, (str(self.path),)


def test_pickles_run_no_code(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.touch()
    write_cifar(tmp_path, binary=False)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps({b"data": Harm(victim)}))
    with pytest.raises(ke.DataFileError, match=r"data_batch_2.*asks for .*remove.*not run"):
        ke.CIFAR10(repo_path=str(tmp_path)).load()
    kept = tmp_path / "kept.pkl"
    kept.write_bytes(pickle.dumps(Harm(victim)))
    content = kept.read_bytes()
    with pytest.raises(ke.DataFileError, match="Pickles are not read"):
        ke.Digits(serialized_path=str(kept)).load()
    assert victim.exists()
    assert kept.read_bytes() == content


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ke.DataFileError, match=r"no file train-images-idx3-ubyte.*--data"):
        ke.MNIST(repo_path=str(tmp_path)).load()
    with pytest.raises(ke.DataFileError, match="no batches data_batch_"):
        ke.CIFAR10(repo_path=str(tmp_path)).load()
    with pytest.raises(ke.DataFileError, match="CIFAR10 needs a repo_path"):
        ke.CIFAR10().load()
    write_mnist(tmp_path, packed=False)
    images = tmp_path / "train-images-idx3-ubyte"
    whole = images.read_bytes()
    images.write_bytes(whole[:-5])
    with pytest.raises(ke.DataFileError, match="was not copied whole"):
        ke.MNIST(repo_path=str(tmp_path)).load()
    images.write_bytes(b"\x1f\x8b\x08 no gzip")
    with pytest.raises(ke.DataFileError, match="cannot be read"):
        ke.MNIST(repo_path=str(tmp_path)).load()
    images.write_bytes((tmp_path / "train-labels-idx1-ubyte").read_bytes())
    with pytest.raises(ke.DataFileError, match="is no idx file of 3 dims"):
        ke.MNIST(repo_path=str(tmp_path)).load()
    write_cifar(tmp_path / "bin", binary=True)
    (tmp_path / "bin" / "test_batch.bin").write_bytes(b"half")
    with pytest.raises(ke.DataFileError, match="not records of 3073"):
        ke.CIFAR10(repo_path=str(tmp_path / "bin")).load()


def test_what_was_read_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "digits_{rank}_{size}.npz"
    first = ke.Digits(ke.Backend(1), sample_pct=10, serialized_path=str(path))
    first.load()
    file = tmp_path / "deep" / "digits_0_1.npz"
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    content = file.read_bytes()
    again = ke.Digits(ke.Backend(1), sample_pct=10, serialized_path=str(path))
    again.read_set = None  # type: ignore[assignment,method-assign]  # it has no need to
    again.load()
    assert torch.equal(first.inputs["train"], again.inputs["train"])
    assert torch.equal(first.targets["test"], again.targets["test"])
    for other, words in (
        (
            ke.Digits(ke.Backend(1), sample_pct=20, serialized_path=str(file)),
            "sample_pct 10 there, 20",
        ),
        (ke.Digits(ke.Backend(2), sample_pct=10, serialized_path=str(file)), "sampling"),
        (
            ke.MNIST(ke.Backend(1), sample_pct=10, serialized_path=str(file)),
            "dataset 'Digits' there",
        ),
    ):
        with pytest.raises(ke.DataFileError, match=f"made for another run: .*{words}"):
            other.load()
        assert file.read_bytes() == content
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(ke.DataFileError, match="is no dataset that kadril has kept"):
        ke.Digits(ke.Backend(1), sample_pct=10, serialized_path=str(file)).load()


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ke.DataFileError, match="cannot be written"):
        ke.Digits(serialized_path=str(tmp_path / "file" / "below.npz")).load()
