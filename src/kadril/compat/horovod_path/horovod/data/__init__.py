"""Data loaders that read ahead."""

from .data_loader_base import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]
