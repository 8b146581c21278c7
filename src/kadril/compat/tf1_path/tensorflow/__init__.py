"""TF1's names under the name `tensorflow`, for scripts that were written before TensorFlow 2.

What the script imports is `tensorflow.compat.v1` of the TensorFlow that is installed, with the
behaviour of version 2 turned off. This package is gone as soon as that is in its place.
"""

import importlib
import sys
from pathlib import Path

HERE = str(Path(__file__).resolve().parents[1])
sys.path = [entry for entry in sys.path if entry == "" or str(Path(entry).resolve()) != HERE]
del sys.modules["tensorflow"]
_installed = importlib.import_module("tensorflow")
_v1 = _installed.compat.v1
_v1.disable_v2_behavior()
_v1.__kadril_tensorflow__ = _installed
sys.modules["tensorflow"] = _v1
