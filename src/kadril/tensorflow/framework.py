"""TensorFlow 2, also where `--compat tf1` has put TF1's names in its place."""

from __future__ import annotations

from typing import Any

try:
    import tensorflow as _imported
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise ModuleNotFoundError(
        "kadril.tensorflow needs TensorFlow, which is not installed: pip install"
        " 'kadril[tensorflow]'",
        name="tensorflow",
    ) from None

__all__ = ["tf"]

tf: Any = getattr(_imported, "__kadril_tensorflow__", _imported)
