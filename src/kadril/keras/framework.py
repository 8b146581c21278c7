"""Keras 3, and the backend it runs on."""

from __future__ import annotations

from typing import Any

try:
    import keras as _imported
except ModuleNotFoundError as error:
    if error.name != "keras":
        raise
    raise ModuleNotFoundError(
        "kadril.keras needs Keras 3, which is not installed: pip install 'kadril[tensorflow]', or"
        " pip install 'kadril[torch]' keras, and KERAS_BACKEND=torch",
        name="keras",
    ) from None

__all__ = ["BACKEND", "keras"]

keras: Any = _imported
BACKEND: str = keras.backend.backend()

if BACKEND not in ("tensorflow", "torch"):
    raise ImportError(
        f"kadril.keras works on Keras' backends tensorflow and torch, and this is {BACKEND}, which"
        " would not average gradients: set KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch"
    )
