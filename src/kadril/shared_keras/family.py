"""`KerasFamily`: what users call, the same for Keras 3, tf_keras, TensorFlow and torch.

A package has one family and gives its methods out as its functions. What differs is in the
abstract methods. Values are numpy arrays, as callbacks and scripts have them.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from kadril.shared_engine.process_sets import ProcessSet, global_process_set
from kadril.shared_engine.reduce_ops import Average, Sum, choose_op
from kadril.shared_keras.optimizer_access import copy_variables

__all__ = ["KerasFamily"]


class KerasFamily(abc.ABC):
    """A Keras and the collectives of its framework.

    Args:
        keras: the module, Keras 3 or tf_keras.
        compression: `Compression` of the framework.
    """

    def __init__(self, keras: Any, compression: Any) -> None:
        self.keras = keras
        self.compression = compression

    @abc.abstractmethod
    def distribute(self, optimizer: Any, **options: Any) -> Any:
        """An optimizer that steps with the gradients of all ranks."""

    @abc.abstractmethod
    def is_distributed(self, optimizer: Any) -> bool:
        """Whether it does so already, or one inside it."""

    @abc.abstractmethod
    def broadcast_variables(self, variables: Sequence[Any], root_rank: int, device: str) -> None:
        """Assign the root's values to variables, on every rank."""

    @abc.abstractmethod
    def allgather_object(self, obj: Any, process_set: ProcessSet) -> list[Any]:
        """The objects of all ranks."""

    @abc.abstractmethod
    def run(self, kind: str, value: Any, **options: Any) -> Any:
        """Do the collective of this name with a value, and give the resulting array."""

    @abc.abstractmethod
    def broadcast_global_variables(self, root_rank: int) -> None:
        """Broadcast all variables of a TF1 graph, in its default session.

        Raises:
            RuntimeError: in eager mode, where there are no global variables.
        """

    def register_layers(self) -> None:
        """Make the family's own layers known to Keras, for models that have them; none here."""
        return

    def DistributedOptimizer(  # noqa: N802 - a function that scripts take for a class
        self,
        optimizer: Any,
        name: str | None = None,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = None,
        sparse_as_dense: bool = False,
        gradient_predivide_factor: float = 1.0,
        op: int = Average,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        num_groups: int = 0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> Any:
        """An optimizer like this one that steps with the gradients of all ranks.

        Args:
            optimizer: of Keras.
            name: of its operations; by default that of the class after "Distributed".
            device_dense: where ops of dense gradients are placed; on TensorFlow.
            device_sparse: where those of `tf.IndexedSlices` are; on TensorFlow.
            compression: e.g. `Compression.fp16`: gradients travel in another dtype; None for
                `Compression.none`.
            sparse_as_dense: whether sparse gradients are made dense first.
            gradient_predivide_factor: of an average: divided by before the sum, multiplied with
                after it.
            op: Average (default) or Sum.
            backward_passes_per_step: how many gradients are added up before one step.
            average_aggregated_gradients: whether their sum is divided by that.
            num_groups: deprecated, use `groups`.
            groups: how many groups of gradients are reduced as one request, or lists of variables;
                on TensorFlow.
            process_set: the ranks that take part; others step by themselves.
            scale_local_gradients: whether gradients of local variables are divided by the ranks.

        Raises:
            ValueError: another op, arguments that do not go together, or an optimizer of another
                kind.
        """
        if op not in (Average, Sum):
            raise ValueError("op currently only supports Average and Sum")
        return self.distribute(
            optimizer,
            name=name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression or self.compression.none,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            num_groups=num_groups,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )

    def PartialDistributedOptimizer(  # noqa: N802 - likewise
        self, optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any
    ) -> Any:
        """A `DistributedOptimizer` that leaves the gradients of some layers to their rank.

        Args:
            optimizer: see `DistributedOptimizer`.
            args: its further arguments.
            local_layers: a layer, or several; they have to be built.
            kwargs: its further arguments by name.

        Raises:
            ValueError: something that is not a layer.
        """
        layers = [] if local_layers is None else local_layers
        if hasattr(layers, "trainable_weights"):
            layers = [layers]
        if not all(hasattr(layer, "trainable_weights") for layer in layers):
            raise ValueError("All local layers must be of keras.layers.Layer type.")
        made = self.DistributedOptimizer(optimizer, *args, **kwargs)
        for layer in layers:
            for variable in layer.trainable_weights:
                made.register_local_var(variable)
        return made

    def allreduce(
        self,
        value: Any,
        name: str | None = None,
        average: bool | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        op: int | None = None,
        compression: Any = None,
    ) -> Any:
        """Reduce a value over all ranks; gives an array: y = postscale * reduce_r(prescale * x_r).

        Args:
            value: whatever an array can be made of, of the same shape and dtype on all ranks.
            name: what ranks know the operation by.
            average: deprecated, use `op`.
            prescale_factor: applied to every rank's value.
            postscale_factor: applied to the result.
            op: Average (default), Sum, Adasum, Min, Max or Product.
            compression: e.g. `Compression.fp16`; None for `Compression.none`.
        """
        return self.run(
            "allreduce",
            value,
            name=name,
            op=choose_op(op, average),
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            compression=compression or self.compression.none,
        )

    def allgather(self, value: Any, name: str | None = None) -> Any:
        """The values of all ranks, one after the other along the first dim, as an array.

        Args:
            value: of the same shape on all ranks but for the first dim.
            name: what ranks know the operation by.
        """
        return self.run("allgather", value, name=name)

    def broadcast(self, value: Any, root_rank: int, name: str | None = None) -> Any:
        """The root's value, on every rank, as an array.

        Args:
            value: of the same shape and dtype on all ranks.
            root_rank: that gives it.
            name: what ranks know the operation by.
        """
        return self.run("broadcast", value, root_rank=root_rank, name=name)

    def reducescatter(self, value: Any, name: str | None = None, op: int = Average) -> Any:
        """Reduce a value over all ranks; each gets its part of the first dim, as an array.

        Args:
            value: of the same shape and dtype on all ranks.
            name: what ranks know the operation by.
            op: Average (default) or Sum.
        """
        return self.run("reducescatter", value, name=name, op=op)

    def load_model(
        self,
        filepath: Any,
        custom_optimizers: Sequence[type[Any]] | None = None,
        custom_objects: dict[str, Any] | None = None,
        compression: Any = None,
        legacy_opts: bool = False,
    ) -> Any:
        """Load a saved model, and distribute its optimizer, which keeps its state.

        Args:
            filepath: of the model, as Keras' own `load_model` takes it.
            custom_optimizers: classes of optimizers that Keras does not know.
            custom_objects: other things that it does not know, by name.
            compression: see `DistributedOptimizer`.
            legacy_opts: taken for scripts' sake: optimizers of every kind are known.

        Returns:
            The model; without an optimizer if it was saved without.
        """
        del legacy_opts
        self.register_layers()
        known = {each.__name__: each for each in custom_optimizers or ()}
        known.update(custom_objects or {})
        model = self.keras.models.load_model(filepath, custom_objects=known)
        optimizer = getattr(model, "optimizer", None)
        if optimizer is None or self.is_distributed(optimizer):
            return model
        # One that scales the loss stays outside: gradients are reduced before it looks at them.
        holder, attribute, plain = model, "optimizer", optimizer
        while getattr(plain, "inner_optimizer", None) is not None:
            holder, attribute, plain = plain, "inner_optimizer", plain.inner_optimizer
        made = self.DistributedOptimizer(plain, compression=compression)
        copy_variables(plain, made, list(model.trainable_variables))
        set_inside(holder, attribute, made)
        if getattr(model, "jit_compile", False):
            model.jit_compile = False  # XLA knows no collectives
        return model


def set_inside(holder: Any, attribute: str, optimizer: Any) -> None:
    """Replace an optimizer; tf_keras' scaling one has it under another name."""
    is_property = isinstance(getattr(type(holder), attribute, None), property)
    setattr(holder, "_optimizer" if is_property else attribute, optimizer)
