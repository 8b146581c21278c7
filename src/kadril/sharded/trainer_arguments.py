"""Arguments of a trainer, checked before anything is sent."""

from __future__ import annotations

__all__ = ["check_batch_size", "check_predivision", "choose_stage"]


def choose_stage(stage: int | None, partition_gradients: bool | None) -> int:
    """Return the stage, which two arguments may give."""
    said = None if partition_gradients is None else 1 + partition_gradients
    if stage not in (None, 1, 2):
        raise ValueError(f"stage is {stage}; 1 keeps gradients, 2 gives them back")
    if stage is not None and said is not None and stage != said:
        raise ValueError(
            f"stage is {stage} and partition_gradients is {partition_gradients}, which is stage"
            f" {said}; give one of them"
        )
    return stage or said or 2


def check_predivision(factor: float) -> None:
    """Refuse a `gradient_predivide_factor` by which nothing can be divided."""
    if not factor > 0:
        raise ValueError(f"gradient_predivide_factor is {factor}; it has to be positive")


def check_batch_size(batch_size: float, operation: str) -> None:
    """Refuse what is no batch size.

    Args:
        batch_size: what the user gave.
        operation: that it was given to, for errors.
    """
    if callable(batch_size):
        raise TypeError(
            f"{operation}() takes a batch size; closures are taken by ShardedOptimizer.step()"
        )
    if not batch_size > 0:
        raise ValueError(f"batch_size is {batch_size}; it has to be positive")
