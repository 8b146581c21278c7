"""Bytes of the objects that object collectives move, and which classes are made of such bytes.

    object --encode--> bytes ==> every rank --decode--> object
                        |
                        `--> decoded on the sender too, unless pickle is allowed: what others would
                             refuse is found where it comes from, and all ranks hear of it

Bytes of pickle may name any function, which is called when they are read. So by default only plain
data is made of them: Python's containers, numbers, texts and dates, arrays of numpy, tensors of
torch. Anything else needs `allow_pickle=True` at the call, or KADRIL_ALLOW_PICKLE=1.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Mapping
from typing import Any

from kadril.world.session import current

__all__ = ["PickleRefusedError", "check_plain", "decode", "encode", "is_pickle_allowed"]

# Classes and functions whose call with any arguments makes a value, and does nothing else.
PLAIN: Mapping[str, frozenset[str]] = {
    "builtins": frozenset(
        {"bytearray", "complex", "dict", "frozenset", "int", "list", "range", "set", "slice", "str"}
        | {"tuple", "float", "bool", "bytes"}
    ),
    "collections": frozenset({"Counter", "OrderedDict", "deque"}),
    "datetime": frozenset({"date", "datetime", "time", "timedelta", "timezone"}),
    "decimal": frozenset({"Decimal"}),
    "fractions": frozenset({"Fraction"}),
    "pathlib": frozenset({"Path", "PosixPath", "PurePath", "PurePosixPath", "PureWindowsPath"}),
    "uuid": frozenset({"UUID"}),
    "argparse": frozenset({"Namespace"}),
    "types": frozenset({"SimpleNamespace"}),
    "_codecs": frozenset({"encode"}),  # bytes, in old protocols
    "numpy": frozenset({"dtype", "ndarray"}),
    "numpy._core.multiarray": frozenset({"_reconstruct", "scalar"}),
    "numpy._core.numeric": frozenset({"_frombuffer"}),
    "numpy.core.multiarray": frozenset({"_reconstruct", "scalar"}),
    "numpy.core.numeric": frozenset({"_frombuffer"}),
    "torch": frozenset({"Size", "device"}),
    "torch._utils": frozenset({"_rebuild_parameter", "_rebuild_tensor_v2"}),
    "torch.serialization": frozenset({"_get_layout"}),
}


class PickleRefusedError(ValueError):
    """Bytes that ask for more than plain data, where pickle was not allowed.

    Attributes:
        asked_for: the class or function, with its module.
    """

    def __init__(self, asked_for: str) -> None:
        self.asked_for = asked_for
        super().__init__(
            f"the object has {asked_for} in it, which is not plain data, and was not made. Send"
            " what it is made of (numbers, texts, containers, arrays, tensors), or say"
            " allow_pickle=True at the call on all ranks: reading a pickle runs code that its"
            " sender chose"
        )


class PlainUnpickler(pickle.Unpickler):
    """An unpickler that makes plain data, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function of `PLAIN`, or a data type of torch.

        Raises:
            PickleRefusedError: the bytes ask for anything else.
        """
        if module == "torch.storage" and name == "_load_from_bytes":
            return load_storage
        if name in PLAIN.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and "torch" in sys.modules:
            import torch

            found = getattr(torch, name, None)
            if isinstance(found, torch.dtype):
                return found
        raise PickleRefusedError(f"{module}.{name}")


def load_storage(data: bytes) -> Any:
    """Return the memory of a tensor; torch's own function for it reads any pickle."""
    import torch

    return torch.load(io.BytesIO(data), weights_only=True)


def is_pickle_allowed(allow_pickle: bool | None) -> bool:
    """Whether any object may travel: what the call says, or else the option of the world."""
    return current().config.allow_pickle if allow_pickle is None else allow_pickle


def encode(obj: Any) -> bytes:
    """Pickle; with cloudpickle, which knows lambdas and classes of notebooks, where it is there."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    data: bytes = cloudpickle.dumps(obj)
    return data


def decode(data: bytes | memoryview, *, allow_pickle: bool) -> Any:
    """Return the object of these bytes.

    Raises:
        PickleRefusedError: it is not plain data, and pickle is not allowed.
    """
    if allow_pickle:
        return pickle.loads(data)  # noqa: S301 - the caller has said so; see SECURITY.md
    return PlainUnpickler(io.BytesIO(data)).load()


def check_plain(data: bytes | memoryview, *, allow_pickle: bool) -> None:
    """Find out on the sender what the others would refuse.

    Raises:
        PickleRefusedError: they would.
    """
    if not allow_pickle:
        decode(data, allow_pickle=False)
