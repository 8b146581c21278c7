"""The family of Keras 3 on the backend that was chosen."""

from __future__ import annotations

from types import ModuleType

from kadril.keras.framework import BACKEND, keras
from kadril.shared_keras.family import KerasFamily

__all__ = ["BASICS", "FAMILY"]

FAMILY: KerasFamily
BASICS: ModuleType

if BACKEND == "tensorflow":
    from kadril.tensorflow import basics as tensorflow_basics
    from kadril.tensorflow.compression import Compression as TensorFlowCompression
    from kadril.tensorflow.keras.family import TensorFlowFamily

    FAMILY = TensorFlowFamily(keras, TensorFlowCompression)
    BASICS = tensorflow_basics
else:
    from kadril.keras.torch_family import TorchFamily
    from kadril.shared_engine import basics as torch_basics
    from kadril.torch.compression import Compression as TorchCompression

    FAMILY = TorchFamily(keras, TorchCompression)
    BASICS = torch_basics
