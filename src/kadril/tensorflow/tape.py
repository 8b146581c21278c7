"""`DistributedGradientTape`: a tape whose `gradient` gives the gradients of all ranks."""

from __future__ import annotations

from typing import Any

from kadril.tensorflow.basics import Average, ProcessSet, global_process_set
from kadril.tensorflow.compression import Compression
from kadril.tensorflow.distributed_optimizer import local_variables
from kadril.tensorflow.framework import tf
from kadril.tensorflow.gradient_reduction import GradientReducer, ReductionOptions, choose_groups

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


class DistributedTape(tf.GradientTape):  # type: ignore[misc]
    """A tape with the recording of another one."""

    def __init__(self, tape: Any, options: ReductionOptions) -> None:
        super().__init__(tape._persistent, tape._watch_accessed_variables)
        self._tape = tape._tape
        # Under the name of all tapes: loops make one for each step.
        self._kadril_reducer = GradientReducer("DistributedGradientTape", options, is_shared=True)

    def register_local_source(self, source: Any) -> None:
        """Leave the gradient of a source to this rank."""
        self._kadril_reducer.register_local(source)

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        **kwargs: Any,
    ) -> Any:
        """The gradients of all ranks; `sources` may be nested, as for any tape."""
        del use_generic_names  # names are always generic here
        gradients = super().gradient(target, sources, output_gradients, **kwargs)
        flat = tf.nest.flatten(gradients)
        variables = tf.nest.flatten(sources)
        reduced = self._kadril_reducer.reduce(flat, variables)
        if isinstance(sources, list | tuple) and all(
            not isinstance(each, list | tuple | dict) for each in sources
        ):
            return reduced
        return tf.nest.pack_sequence_as(gradients, reduced)


def DistributedGradientTape(  # noqa: N802 - a function that scripts take for a class
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A tape with what this one has recorded, whose `gradient` reduces over all ranks.

    Args are those of `DistributedOptimizer`.

    Raises:
        ValueError: arguments that do not go together.
    """
    options = ReductionOptions(
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=choose_groups(num_groups, groups),
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    return DistributedTape(gradtape, options)


def PartialDistributedGradientTape(  # noqa: N802 - likewise
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """A `DistributedGradientTape` that leaves the gradients of some layers to their rank.

    Raises:
        ValueError: something that is not a layer.
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for variable in local_variables(local_layers):
        tape.register_local_source(variable)
    return tape
