"""Objects that are made of the bytes of a collective, with and without `allow_pickle`."""

from __future__ import annotations

import argparse
import collections
import datetime
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kadril.shared_engine.object_codec import PickleRefusedError, decode, encode

PLAIN = [
    None,
    [1, 2.5, 3 + 4j, True, "text", b"bytes", bytearray(b"more"), (), {"a": {1, 2}}],
    [range(3), slice(1, 2), frozenset({1})],
    collections.OrderedDict(b=1, a=2),
    collections.deque([1, 2], maxlen=2),
    [datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc), datetime.timedelta(1)],
    Path("/somewhere"),
    argparse.Namespace(lr=0.1),
    [np.float32(1.5), np.dtype("f4")],
    [torch.float16, torch.Size([2, 3]), torch.device("cpu")],
    torch.optim.SGD([torch.ones(2)], lr=0.5, momentum=0.5).state_dict(),
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_plain_data_needs_no_word(value: Any) -> None:
    assert decode(encode(value), allow_pickle=False) == value


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_tensors_need_no_word(protocol: int) -> None:
    array = np.arange(6.0).reshape(2, 3)
    tensors = [torch.arange(4), torch.ones(2, dtype=torch.bfloat16), torch.ones(3, 2).T]
    weight = torch.nn.Parameter(torch.ones(2))
    data = pickle.dumps((array, tensors, weight), protocol)
    found, others, parameter = decode(data, allow_pickle=False)
    assert np.array_equal(found, array)
    assert [each.tolist() for each in others] == [each.tolist() for each in tensors]
    assert isinstance(parameter, torch.nn.Parameter)


class Runs:
    """An object that a hostile peer would send: a function and its arguments."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("function", [os.mkdir, exec, eval, getattr, __import__, open])
def test_functions_are_not_called(tmp_path: Path, function: Any) -> None:
    made = tmp_path / "made"
    data = pickle.dumps([Runs(function, str(made))])
    with pytest.raises(PickleRefusedError, match=f"{function.__name__}.*allow_pickle=True"):
        decode(data, allow_pickle=False)
    assert not made.exists()


def test_a_pickle_inside_the_memory_of_a_tensor_is_not_run(tmp_path: Path) -> None:
    """Torch reads the memory of a pickled tensor as any pickle: a second way in."""
    made, file = tmp_path / "made", tmp_path / "file"
    torch.save(Runs(os.mkdir, str(made)), file, _use_new_zipfile_serialization=False)
    hidden = Runs(torch.storage._load_from_bytes, file.read_bytes())
    with pytest.raises(pickle.UnpicklingError):
        decode(pickle.dumps(hidden), allow_pickle=False)
    assert not made.exists()


class Mine:
    """A class of the program."""


def test_a_class_of_the_program_needs_the_word() -> None:
    data = encode([Mine()])
    with pytest.raises(PickleRefusedError) as caught:
        decode(data, allow_pickle=False)
    assert caught.value.asked_for == f"{__name__}.Mine"
    assert isinstance(decode(data, allow_pickle=True)[0], Mine)
