"""Imports that the ranks of these tests need: see `quiet_tensorflow` in conftest.py."""

import keras
import pytest  # noqa: F401
import tensorflow  # noqa: F401

import kadril.tensorflow.keras  # noqa: F401

keras.layers  # noqa: B018 - loads the rest of it
