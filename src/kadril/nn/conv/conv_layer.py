"""Base of all partitioned convolutions: settings, parameters that begin alike, a form.

The settings and the parameters are those of the torch layer of the same name: one is made, which
checks and draws them, and taken over. Drawn parameters are those of the partition's first worker;
parameters of a layer that existed before stay the same objects.

How the layer is spread over workers is its form (`conv_form.py`), which follows from the partitions
that it is given. The forms of ordinary convolutions have classes of their own names, so that users
can ask for them, and see them in errors; these add nothing but the name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.nn.modules.conv import _ConvNd
from typing_extensions import Self

from kadril.nn.conv.conv_form import ConvForm, FormName, Kind, form_for
from kadril.nn.conv.conv_settings import ConvSettings
from kadril.nn.conv.feature_form import FeatureForm
from kadril.nn.conv.split_form import SplitForm
from kadril.nn.sharing import refuse_data, same_on_all
from kadril.nn.split_state import SplitParameters
from kadril.ops.box_gather import BoxGather
from kadril.partition import Partition

__all__ = ["ConvLayer", "Size"]

Size = int | Sequence[int]


class ConvLayer(SplitParameters):
    """Base of the partitioned convolutions, transposed ones included.

    Attributes:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, padding_mode,
        output_padding: those of the torch layer.
        weight: its parameter, or this worker's block of it.
        bias: the same; None where there is none.
        P_x: where the input is.
        form: how it is spread over workers.
        what: the name of the layer in errors.
    """

    num_spatial: ClassVar[int]
    torch_class: ClassVar[type[_ConvNd]]
    kind: ClassVar[type[Kind]]
    form_name: ClassVar[FormName | None] = None

    weight: torch.nn.Parameter | None
    bias: torch.nn.Parameter | None
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str
    output_padding: tuple[int, ...]
    P_x: Partition
    form: ConvForm
    what: str

    def __new__(
        cls,
        P_x: Partition | None = None,
        *_: Any,
        P_y: Partition | None = None,
        P_w: Partition | None = None,
        **__: Any,
    ) -> Self:
        """Make an object of the subclass that names the form, if any, as `pathlib.Path` does.

        What copies and loads objects gives the class alone, which is the right one by then.
        """
        names = {vars(each).get("form_name"): each for each in cls.__subclasses__()}
        if P_x is None or not any(names):
            return super().__new__(cls)
        return super().__new__(names.get(form_for(P_x, P_y, P_w), cls))

    def _draw(
        self,
        arguments: Sequence[Any],
        P_x: Partition,
        P_y: Partition | None,
        P_w: Partition | None,
        overlap: bool | None = None,
    ) -> None:
        """Become the twin of a new torch layer, whose parameters the first worker gives to all."""
        make: Any = self.torch_class  # whose signatures want tuples where sequences do
        layer = make(*arguments)
        same_on_all(P_x if P_w is None else P_w, [layer.weight, layer.bias])
        self._become(layer, P_x, P_y, P_w, None, overlap)

    @classmethod
    def of(
        cls,
        layer: _ConvNd,
        P_x: Partition,
        P_y: Partition | None = None,
        P_w: Partition | None = None,
        *,
        what: str | None = None,
        overlap: bool | None = None,
    ) -> Self:
        """Make the twin of a torch layer.

        In the feature form it takes over the parameters themselves; in the others, copies of this
        worker's blocks. They must be the same on all ranks.

        Args:
            layer: the torch layer.
            P_x: where the input is.
            P_y: where the output is, if channels are split.
            P_w: where the weight is, if channels are split.
            what: its name in errors.
            overlap: see the class; not for transposed convolutions.

        Raises:
            TypeError: not a layer of this kind.
            ValueError: see the class.
        """
        if not isinstance(layer, cls.torch_class):
            raise TypeError(
                f"{cls.__name__}.of takes a torch.nn.{cls.torch_class.__name__}, got"
                f" {type(layer).__name__}"
            )
        twin: Self = cls.__new__(cls, P_x, P_y=P_y, P_w=P_w)
        torch.nn.Module.__init__(twin)
        twin._become(layer, P_x, P_y, P_w, what, overlap)
        return twin.train(layer.training)

    def _become(
        self,
        layer: _ConvNd,
        P_x: Partition,
        P_y: Partition | None,
        P_w: Partition | None,
        what: str | None,
        overlap: bool | None,
    ) -> None:
        """Become the twin of a torch layer, with its parameters, in the form of its partitions."""
        name = self.form_name or form_for(P_x, P_y, P_w)
        settings = ConvSettings.of(layer)
        for setting, value in zip(settings._fields[:-1], settings, strict=False):
            setattr(self, setting, value)
        self.what = f"{what or type(self).__name__}({settings})"
        self.P_x = P_x
        if name == "Feature":
            if P_y is not None or P_w is not None:
                raise ValueError(
                    f"{self.what}: the feature form has the input's partition, P_x, only"
                )
            self._check_overlap(overlap, may=not self.kind.is_transposed)
            self.form = FeatureForm(self.kind, settings, P_x, overlap, self.what)
            for parameter in ("weight", "bias"):
                self.register_parameter(parameter, getattr(layer, parameter))
            return
        self._check_overlap(overlap, may=False)
        shape = tuple(layer.weight.shape)
        self.form = form = SplitForm(
            self.kind, settings, P_x, P_y, P_w, shape, self.what, splits_space=name == "General"
        )
        self.P_y, self.P_w = form.P_y, form.P_w
        self._keep_blocks(form.split, layer)
        if not settings.has_bias:
            self.register_parameter("bias", None)

    def _check_overlap(self, overlap: bool | None, *, may: bool) -> None:
        self.overlap = overlap
        if overlap and not may:
            raise ValueError(
                f"{self.what}: only the feature form of a convolution, with P_x alone, can overlap"
            )

    @property
    def gather(self) -> BoxGather:
        """Gives each worker the box of the input that its outputs are made of."""
        return self.form.gather

    def _convolve(self, x: torch.Tensor, output_size: Sequence[int] | None = None) -> torch.Tensor:
        if not self.form.everyone.active:
            refuse_data(x, self.what)
            return x.clone()
        return self.form(x, self.weight, self.bias, output_size)

    def extra_repr(self) -> str:
        """The settings, as torch shows them, and where the layer is."""
        names = ["kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"]
        if self.kind.is_transposed:
            names.append("output_padding")
        shown = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"{self.in_channels}, {self.out_channels}, {shown}, {self.form}"
