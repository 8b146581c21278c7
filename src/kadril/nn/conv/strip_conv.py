"""A convolution of a block as it lies, and of the strips at its border (`strips.py`).

    forward                                         backward

    strips of x   ----- exchange ----+              s* of strips   ----- exchange ----+
    y = conv(x, padded with zeros)   | meanwhile    x*, w* of the block               | meanwhile
    y[strip] = conv(strip)       <---+              x*[box] += s* of others       <---+

The convolution is linear in its input. The backward pass of the block alone already counts each of
its own inputs for every output. The strips must add only what neighbours' inputs contribute, so the
block's own inputs are set to zero in the saved strips:

    x*   = conv*(y*, w)      + what comes back from the strips of others
    w*   = conv*(y*, x)      + sum over strips of conv*(y*[strip], s)

The result is that of one convolution of the block with its halo, without a copy of the block.

Messages are packed here, and not by a carrier (`ops/moves/carriers.py`): that fills one tensor from
one other, by one plan. The boxes of all strips, which are tensors of their own, travel in a single
exchange, and only the exchange itself runs in another thread, beside the convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from kadril.nn.autocast import autocast_dtype, cast
from kadril.nn.conv.overlap import run_beside
from kadril.nn.conv.strips import Strip, StripPlan
from kadril.ops.calling import anchor_for, apply_tied, tie, tied
from kadril.ops.composed import differentiate
from kadril.ops.moves.packing import Inbox, pack
from kadril.partition import Partition

__all__ = ["StripConv", "convolve_with_strips"]

Result = TypeVar("Result")


class StripConv(NamedTuple):
    """A convolution of a block and its strips.

    Attributes:
        plan: the strips of this worker.
        convolution: the function of torch.
        stride: for each spatial dim.
        dilation: for each spatial dim.
        groups: number of groups of channels.
        P_x: whose workers have the blocks.
        what: name of the layer in errors.
        overlaps: whether the exchange runs beside the convolution of the block.
        compose: from the block, weight and bias to the same result, by a convolution of a copy.
    """

    plan: StripPlan
    convolution: Callable[..., torch.Tensor]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    P_x: Partition
    what: str
    overlaps: bool
    compose: Callable[..., torch.Tensor]

    def convolve(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        padding: tuple[int, ...] | None = None,
    ) -> torch.Tensor:
        """Compute y = conv(x, w, b)."""
        padding = padding or (0,) * len(self.stride)
        return self.convolution(x, weight, bias, self.stride, padding, self.dilation, self.groups)

    def differentiate(
        self,
        grad: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        wanted: tuple[bool, bool, bool],
        padding: tuple[int, ...] | None = None,
    ) -> list[torch.Tensor | None]:
        """Return x*, w* and b* of one convolution; None for those that are not wanted."""
        if not any(wanted):
            return [None, None, None]
        zeros = (0,) * len(self.stride)
        return list(
            torch.ops.aten.convolution_backward(
                grad,
                x,
                weight,
                [weight.shape[0]] if wanted[2] else None,
                self.stride,
                padding or zeros,
                self.dilation,
                False,
                zeros,
                self.groups,
                wanted,
            )
        )

    def exchange(
        self,
        sends: Iterable[tuple[int, torch.Tensor]],
        inbox: Inbox,
        meanwhile: Callable[[], Result],
        what: str,
    ) -> Result:
        """Exchange, and do something else; return the result of that."""
        messages = pack(sends)

        def run() -> None:
            self.P_x.transport.exchange(messages, inbox.messages(), name=what)

        if self.overlaps:
            return run_beside(run, meanwhile)
        run()
        return meanwhile()


def convolve_with_strips(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    layer: StripConv,
    *,
    requires_grad: bool,
) -> torch.Tensor:
    """Convolve; collective over the partition.

    Args:
        x: this worker's block of the input.
        weight: weight of the layer.
        bias: bias of the layer, if it has one.
        layer: the layer's settings and strips.
        requires_grad: whether any worker's block does. Then all of them are there for the exchange
            of the backward pass.
    """
    kind = x.device.type
    dtype = autocast_dtype(kind)
    if kind != "cpu":
        # Another thread would not be in the stream of this one.
        layer = layer._replace(overlaps=False)
    # As torch's convolution does it; autograd casts their gradients back.
    weight, bias = cast(weight, dtype), None if bias is None else cast(bias, dtype)
    anchor = None if x.requires_grad else anchor_for(requires_grad)
    block = cast(x, dtype)
    return apply_tied(
        StripConvFunction, x, weight, bias, block, anchor, layer, requires_grad, dtype
    )


class StripConvFunction(torch.autograd.Function):
    """A convolution with an exchange in both directions."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        block: torch.Tensor,
        _: torch.Tensor | None,
        layer: StripConv,
        requires_grad: bool,
        dtype: torch.dtype | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """y = conv(halo(x), w, b). Halos are exchanged in the dtype that ranks have agreed on.

        The block, x as it is convolved, is an input to be there for derivatives of the gradient.
        """
        plan = layer.plan
        with torch.autocast(x.device.type, enabled=False):
            inputs = [own_inputs(strip, x) for strip in plan.strips]
            inbox = Inbox([each for strip in plan.strips for each in strip.recvs], x)
            y = layer.exchange(
                [(peer, x[box]) for strip in plan.strips for peer, box in strip.sends],
                inbox,
                lambda: layer.convolve(block, weight, bias, plan.padding),
                layer.what,
            )
            places = [
                each[box]
                for strip, each in zip(plan.strips, inputs, strict=True)
                for _peer, box in strip.recvs
            ]
            for place, received in zip(places, inbox.boxes(), strict=True):
                place.copy_(received)
            strips = [cast(each, dtype) for each in inputs]
            for strip, each in zip(plan.strips, strips, strict=True):
                if not strip.is_empty:
                    y[strip.outputs] = layer.convolve(each, weight, bias)
                    for _block, box in strip.own:
                        each[box] = 0  # for the backward pass: what others have
        ctx.layer, ctx.is_wanted, ctx.dtype = layer, requires_grad, x.dtype
        return tie(ctx, y, block, weight, bias, *strips)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """x* = halo*(conv*(y*, w)), w* and b*."""
        grad = tied(ctx, grads[0])
        with torch.autocast(grad.device.type, enabled=False):
            find = adjoint_with_graph if torch.is_grad_enabled() else adjoint
            return *find(ctx, grad), None, None, None, None, None


def adjoint_with_graph(ctx: Any, grad: torch.Tensor) -> list[torch.Tensor | None]:
    """Return what `adjoint` returns, with gradients that have gradients."""
    _, block, weight, bias, *_strips = ctx.saved_tensors
    wanted = (ctx.is_wanted, *ctx.needs_input_grad[1:3])
    found = differentiate(ctx.layer.compose, (block, weight, bias), grad, wanted)
    return [None if found[0] is None else found[0].to(ctx.dtype), *found[1:]]


def adjoint(ctx: Any, grad: torch.Tensor) -> list[torch.Tensor | None]:
    """Return x*, w* and b*, as far as they are wanted."""
    layer: StripConv = ctx.layer
    _, block, weight, _bias, *strips = ctx.saved_tensors
    needs_x, needs_w, needs_b = ctx.needs_input_grad[:3]
    for_strips, for_block = (ctx.is_wanted, needs_w, False), (needs_x, needs_w, needs_b)
    found = [
        [None, None, None]
        if strip.is_empty
        else layer.differentiate(grad[strip.outputs], inputs, weight, for_strips)
        for strip, inputs in zip(layer.plan.strips, strips, strict=True)
    ]

    def differentiate_block() -> list[torch.Tensor | None]:
        return layer.differentiate(grad, block, weight, for_block, layer.plan.padding)

    if ctx.is_wanted:
        of_inputs = [block if each[0] is None else each[0].to(ctx.dtype) for each in found]
        like = block.new_empty(0, dtype=ctx.dtype)
        result = give_back(layer, of_inputs, like, differentiate_block)
    else:
        result = differentiate_block()
    for each in found:
        if result[1] is not None and each[1] is not None:
            result[1] += each[1]
    return result


def give_back(
    layer: StripConv,
    of_inputs: Sequence[torch.Tensor],
    like: torch.Tensor,
    differentiate_block: Callable[[], list[torch.Tensor | None]],
) -> list[torch.Tensor | None]:
    """Run the adjoint of the exchange: gradients of strips' inputs go to those who have them.

    Args:
        layer: settings and strips of the layer.
        of_inputs: the gradients, for each strip; anything for one that is empty.
        like: has the dtype and the device of the block.
        differentiate_block: gives x*, w* and b* of the block, in which those of others are added.
    """
    strips = layer.plan.strips
    sends = [
        (peer, gradient[box])
        for strip, gradient in zip(strips, of_inputs, strict=True)
        for peer, box in strip.recvs
    ]
    inbox = Inbox([each for strip in strips for each in strip.sends], like)
    result = layer.exchange(sends, inbox, differentiate_block, f"adjoint of {layer.what}")
    if result[0] is not None:
        x = result[0] = result[0].to(like.dtype)
        for strip, gradient in zip(strips, of_inputs, strict=True):
            for source, target in strip.wrapped:
                x[source] += gradient[target]
        inbox.add_to(x)
    return result


def own_inputs(strip: Strip, x: torch.Tensor) -> torch.Tensor:
    """Return the inputs of a strip, filled as far as the worker has them itself."""
    inputs = x.new_empty(strip.shape)
    for edge in strip.edges:
        inputs[edge] = 0
    for source, target in (*strip.own, *strip.wrapped):
        inputs[target] = x[source]
    return inputs
