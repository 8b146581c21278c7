"""Functions on tensors."""

from .zero_volume_corrector import ZeroVolumeCorrectorFunction

__all__ = ["ZeroVolumeCorrectorFunction"]
