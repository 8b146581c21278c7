"""Rules for attention: `F.scaled_dot_product_attention` and `nn.MultiheadAttention`.

    tokens of queries may be split:     y_r = softmax(q_r k^T) v      k, v whole on each worker

Batch and heads may be split too. For self-attention over split tokens every worker gathers the
tokens that its queries look at; their gradients are summed over the workers, each of which gets
that of its own tokens back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional

from kadril import ops
from kadril.nn.distribution.layout import Layout, Subgrids, axes_of, without
from kadril.nn.distribution.replicas import WholeGatherer
from kadril.nn.distribution.rules.call import Call, Decision, Refused
from kadril.nn.distribution.rules.functions.pointwise import as_it_is, common_layout, share_of
from kadril.nn.distribution.rules.layers.seeded_dropout import make_dropout
from kadril.nn.distribution.rules.whole_operands import ask_to_gather
from kadril.nn.dropout.layers import DistributedDropout
from kadril.nn.sharing import spread_together

__all__ = ["attention", "attention_layer"]


def attention(call: Call) -> Decision:
    """Decide on `F.scaled_dot_product_attention`.

    Raises:
        Refused: it drops weights, replicas different ones.
    """
    if call.argument(4, "dropout_p", 0.0):
        raise Refused(
            "it draws random numbers to drop weights, each worker its own; set dropout_p to 0"
        )
    names = ["query", "key", "value", "attn_mask"]
    given: dict[str, Any] = {**dict(zip(names, call.node.args, strict=False)), **call.node.kwargs}
    query, key, value = (given[name] for name in names[:3])
    mask = given.get("attn_mask")
    batch = tuple(call.result.shape)[:-2]
    layout = common_layout(
        batch, [(call.shape(each)[:-2], call.layout(each)[:-2]) for each in (query, key, value)]
    )
    if call.argument(7, "enable_gqa", False):
        layout = without(layout, [len(layout) - 1])
    tokens = call.layout(query)[-2]
    # A causal mask follows from places in the whole; a tensor that is also the key is needed whole.
    if call.argument(5, "is_causal", False) or query in (key, value) or tokens in layout:
        tokens = None
    wants: dict[fx.Node, Layout] = {
        each: (*share_of(layout, batch, call.shape(each)[:-2]), None, None) for each in (key, value)
    }
    wants[query] = (*share_of(layout, batch, call.shape(query)[:-2]), tokens, None)
    if isinstance(mask, fx.Node):
        sizes = (*batch, call.shape(query)[-2], call.shape(key)[-2])
        wants[mask] = share_of((*layout, tokens, None), sizes, call.shape(mask))
    return as_it_is(call, wants, (*layout, tokens, None))


class Arrangement(NamedTuple):
    """Arrangement of the operands of a `MultiheadAttention`.

    Attributes:
        batch: dim of the batch; None where there is none.
        tokens: dim of the tokens.
        batch_axis: that splits the batch.
        token_axis: that splits the queries' tokens.
        is_self: whether keys are the queries themselves, which have then to be gathered.
        is_shared: whether values are the keys.
    """

    batch: int | None
    tokens: int
    batch_axis: int | None
    token_axis: int | None
    is_self: bool
    is_shared: bool

    def layout(self, token_axis: int | None) -> Layout:
        """Return the layout of tokens, with the axis that splits them."""
        found: list[int | None] = [None] * (2 if self.batch is None else 3)
        if self.batch is not None:
            found[self.batch] = self.batch_axis
        found[self.tokens] = token_axis
        return tuple(found)


ARGUMENTS = ["query", "key", "value", "key_padding_mask", "need_weights", "attn_mask"]
ARGUMENTS += ["average_attn_weights", "is_causal"]


def attention_layer(call: Call) -> Decision:
    """Decide on `nn.MultiheadAttention`.

    Raises:
        Refused: keys would have to be gathered, which is not allowed; or it adds keys of its own.
    """
    module: Any = call.module
    if module.bias_k is not None or module.add_zero_attn:
        raise Refused("add_bias_kv and add_zero_attn are not supported")
    given: dict[str, Any] = dict(zip(ARGUMENTS, call.node.args, strict=False))
    given.update(call.node.kwargs)
    query, key, value = (given[name] for name in ARGUMENTS[:3])
    is_batched = len(call.shape(query)) == 3
    batch = (0 if module.batch_first else 1) if is_batched else None
    tokens = 1 if is_batched and module.batch_first else 0
    batch_axis = None if batch is None else call.layout(query)[batch]
    token_axis = call.layout(query)[tokens]
    if query in (key, value) and not (query is key is value) and token_axis is not None:
        raise Refused(
            "its queries are split, and are either its keys or its values but not both; clone them"
        )
    places = Arrangement(batch, tokens, batch_axis, token_axis, query is key, key is value)
    whole = places.layout(None)
    ask_to_gather(call, {key: whole, value: whole}, "its keys and values are split over tokens")
    wants = {key: whole, value: whole, query: places.layout(token_axis)}
    wants.update(mask_layouts(call, given, places))
    gives: list[Layout | None] = [places.layout(token_axis), None]
    if isinstance(call.result[1], torch.Tensor):
        lead = () if batch is None else (batch_axis,)
        heads = () if given.get("average_attn_weights", True) else (None,)
        gives[1] = (*lead, *heads, token_axis, None)
    make = partial(MultiheadTwin, module, places, call.name)
    return Decision(wants, gives, make)


def mask_layouts(call: Call, given: dict[str, Any], places: Arrangement) -> dict[fx.Node, Layout]:
    """Return the layouts in which masks are needed: with the rows of this worker's queries.

    Raises:
        Refused: a mask for each sample, with a batch that is split.
    """
    wants: dict[fx.Node, Layout] = {}
    mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
    if isinstance(padding, fx.Node):
        wants[padding] = (None,) if places.batch is None else (places.batch_axis, None)
    if isinstance(mask, fx.Node):
        lead = (None,) * (len(call.shape(mask)) - 2)
        if lead and places.batch_axis is not None:
            raise Refused("its mask is for each head of each sample, and the batch is split")
        wants[mask] = (*lead, places.token_axis, None)
    return wants


class MultiheadTwin(nn.Module):
    """`nn.MultiheadAttention` on the blocks of a partition.

    Args:
        layer: the ordinary one, whose parameters are taken over.
        places: of its operands.
        what: name of the layer in errors.
        subgrids: of the partition.
    """

    out_proj: nn.Linear

    def __init__(self, layer: Any, places: Arrangement, what: str, subgrids: Subgrids) -> None:
        super().__init__()
        self._parameters = dict(layer._parameters)
        self._modules = dict(layer._modules)
        self.num_heads: int = layer.num_heads
        self.places = places
        self.what = what
        own = places.layout(places.token_axis)
        self.P_x = subgrids.partition(own)
        alone = tuple(
            places.token_axis if dim == places.tokens else None for dim in range(len(own))
        )
        self._gather = WholeGatherer(subgrids.partition(alone), f"keys of {what}")
        is_gathered = bool(axes_of(alone)) and subgrids.P.active
        self._along_tokens = subgrids.group(axes_of(alone)) if is_gathered else None
        of_weights = (places.batch_axis, None, places.token_axis, None)
        make = partial(make_weights_dropout, layer.dropout, of_weights, what)
        # Hidden, since the ordinary layer has no such child.
        object.__setattr__(
            self, "_dropout", make_dropout(make, subgrids) if layer.dropout else None
        )
        self.train(layer.training)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,  # a hint: the mask says it too
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend; collective over the partition."""
        if not self.P_x.active:
            return query.clone(), query.clone() if need_weights else None
        if self.places.is_self and self._along_tokens is not None:
            key = value = ops.spread(self._gather(key), self._along_tokens, what=self.what)
        weights, biases, out = self._spread_parameters()
        heads = [
            self._by_heads(functional.linear(self._batch_first(x), weight, bias))
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        ]
        mask = self._mask(attn_mask, key_padding_mask, heads[0])
        y, found = self._attend(heads, mask, need_weights)
        y = functional.linear(y.transpose(1, 2).flatten(2), *out)
        if found is not None:
            found = found.mean(1) if average_attn_weights else found
            found = found.squeeze(0) if self.places.batch is None else found
        if self.places.batch is None:
            return y.squeeze(0), found
        return y.transpose(0, 1) if self.places.batch == 1 else y, found

    def train(self, mode: bool = True) -> MultiheadTwin:
        """Set the mode, also of the dropout of weights."""
        super().train(mode)
        if self._dropout is not None:
            self._dropout.train(mode)
        return self

    # ---- details --------------------------------------------------------------------------------

    _dropout: Any

    def _spread_parameters(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Return weights and biases of queries, keys and values; and those of the output."""
        own = self._parameters
        names = ["q_proj_weight", "k_proj_weight", "v_proj_weight"]
        packed = own["in_proj_weight"] is not None
        given = [own["in_proj_weight"]] if packed else [own[name] for name in names]
        tensors = [*given, own["in_proj_bias"], self.out_proj.weight, self.out_proj.bias]
        *used, bias, out_weight, out_bias = spread_together(
            tensors, self.P_x.group, what=f"parameters of {self.what}"
        )
        weights = list(used[0].chunk(3)) if packed and used[0] is not None else used
        biases = [None] * 3 if bias is None else list(bias.chunk(3))
        return weights, biases, [out_weight, out_bias]

    def _batch_first(self, x: torch.Tensor) -> torch.Tensor:
        if self.places.batch is None:
            return x.unsqueeze(0)
        return x.transpose(0, 1) if self.places.batch == 1 else x

    def _by_heads(self, x: torch.Tensor) -> torch.Tensor:
        """Reshape (N, L, E) to (N, heads, L, E / heads)."""
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

    def _mask(
        self, mask: torch.Tensor | None, padding: torch.Tensor | None, queries: torch.Tensor
    ) -> torch.Tensor | None:
        """Return the mask to add to the scores, of shape (N, heads, L, S) or broadcast to it."""
        found = None
        if mask is not None:
            found = as_added(mask, queries)
            if mask.dim() == 3:
                found = found.view(-1, self.num_heads, *mask.shape[1:])
        if padding is not None:
            padded = as_added(padding, queries)
            padded = padded.view(-1, 1, 1, padded.shape[-1])
            found = padded if found is None else found + padded
        return found

    def _attend(
        self, heads: Sequence[torch.Tensor], mask: torch.Tensor | None, need_weights: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the result for each head, and the weights where they are needed."""
        q, k, v = heads
        drops = self._dropout is not None and self.training
        if not need_weights and not drops:
            return functional.scaled_dot_product_attention(q, k, v, mask), None
        scores = q / math.sqrt(q.shape[-1]) @ k.mT
        weights = (scores if mask is None else scores + mask).softmax(-1)
        if drops:
            weights = self._dropout(weights)
        return weights @ v, weights if need_weights else None


def as_added(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a mask as numbers that are added to scores; True is -inf."""
    if mask.dtype != torch.bool:
        return mask
    return like.new_zeros(mask.shape).masked_fill(mask, -torch.inf)


def make_weights_dropout(
    p: float, layout: Layout, what: str, subgrids: Subgrids
) -> DistributedDropout:
    """Make the dropout of the weights of attention."""
    return DistributedDropout(subgrids.partition(layout), p, what=f"dropout of {what}")
