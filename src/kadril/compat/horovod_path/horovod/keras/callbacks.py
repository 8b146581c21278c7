"""Callbacks for `fit`."""

from .._forward import forward

__getattr__ = forward("kadril.keras.callbacks")
