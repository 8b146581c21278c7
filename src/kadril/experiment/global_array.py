"""Global arrays: the activations between two layers, of which each rank holds its part.

    block      | . . . . . . . | . . . . . . |          what this rank holds: `local_array`
    chunk      | . . . . . . . . . |                    what its outputs are made of: fprop view
                         [ . . . . . . . . . |

Activations lie as neon has them: one row per image, channel by channel, each row by row. What moves
is the halo exchange of `kadril.ops`: any grid, also of volumes, blocks of any sizes, halos that
reach over several ranks, and no barrier. Both views have gradients, each being the other's adjoint:

    get_fprop_view     chunk_r[i] = x[i]      for i in the chunk of rank r
    get_bprop_view     x*[i] = sum_r chunk*_r[i]

Outputs are balanced: of T outputs along a dim the first ranks have one more, as of T pixels. Which
inputs those are made of follows from filter, stride and padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kadril.experiment.errors import GridError
from kadril.experiment.towers import choose_grid, fitting_grids
from kadril.nn.conv.conv_window import ConvWindow
from kadril.ops.halo import HaloExchanger, Needed
from kadril.partition import Interval, Partition, balanced_intervals, intervals_of
from kadril.partition.pairing import text
from kadril.partition.partition import world_partition

__all__ = [
    "CENTER",
    "EAST",
    "NORTH",
    "NORTHEAST",
    "NORTHWEST",
    "SINGLE",
    "SOUTH",
    "SOUTHEAST",
    "SOUTHWEST",
    "WEST",
    "GlobalArray",
    "LocalArray",
]

# Where a rank lies in a grid of rows and columns.
SINGLE, NORTH, EAST, SOUTH, WEST = -1, 0, 1, 2, 3
NORTHEAST, SOUTHEAST, SOUTHWEST, NORTHWEST, CENTER = 4, 5, 6, 7, 8

# (touches the first row, the last row, the first column, the last column): corners first
BORDERS = (
    ((True, True, True, True), SINGLE),
    ((True, False, False, True), NORTHEAST),
    ((False, True, False, True), SOUTHEAST),
    ((False, True, True, False), SOUTHWEST),
    ((True, False, True, False), NORTHWEST),
    ((False, False, False, False), CENTER),
)


class LocalArray:
    """This rank's part of a global array.

    Attributes:
        shape: of the block, along each dim of the image.
        ifmshape: of the chunk: the block with its halos, without padding.
        halos: along each dim, inputs that come from ranks before and after the block; negative
            where not all of the block is needed.
        padding: along each dim, zeros that the layer adds before and after the chunk, at the edge
            of the image.
        top_left: of the block, in the image.
        top_left_output: of this rank's outputs, in the global output.
        output_shape: of this rank's outputs.
        global_output_shape: of all outputs.
        chunk: what `get_fprop_view` gave last; None where it is part of a graph.
        local_image: what it was given; the same.
        defiltering_local_image: what `get_bprop_view` gave last.
        border_id: NORTH, EAST, ... for grids of rows and columns: at which border of the grid
            the rank is; SINGLE where it is alone; NORTH or WEST in a single row or column that has
            both.
    """

    def __init__(
        self, blocks: Sequence[Interval], boxes: Sequence[Interval], outputs: Sequence[Interval]
    ) -> None:
        self.shape = tuple(each.size for each in blocks)
        self.top_left = tuple(each.start for each in blocks)
        self.top_left_output = tuple(each.start for each in outputs)
        self.output_shape = tuple(each.size for each in outputs)
        self.boxes = tuple(boxes)
        self.ifmshape: tuple[int, ...] = ()
        self.halos: list[tuple[int, int]] = []
        self.padding: list[tuple[int, int]] = []
        self.global_output_shape: tuple[int, ...] = ()
        self.border_id = CENTER
        self.chunk: torch.Tensor | None = None
        self.local_image: torch.Tensor | None = None
        self.defiltering_local_image: torch.Tensor | None = None

    # ---- neon's names, of rows and columns ------------------------------------------------------

    @property
    def height(self) -> int:
        """Rows of the block."""
        return self.shape[0]

    @property
    def width(self) -> int:
        """Columns of the block."""
        return self.shape[1]

    @property
    def height_with_halos(self) -> int:
        """Rows of the chunk."""
        return self.ifmshape[0]

    @property
    def width_with_halos(self) -> int:
        """Columns of the chunk."""
        return self.ifmshape[1]

    @property
    def hsr_north(self) -> int:
        """Halo rows before the block."""
        return self.halos[0][0]

    @property
    def hsr_south(self) -> int:
        """Halo rows after the block."""
        return self.halos[0][1]

    @property
    def hsc_west(self) -> int:
        """Halo columns before the block."""
        return self.halos[1][0]

    @property
    def hsc_east(self) -> int:
        """Halo columns after the block."""
        return self.halos[1][1]

    @property
    def top_left_row(self) -> int:
        """First row of the block, in the image."""
        return self.top_left[0]

    @property
    def top_left_col(self) -> int:
        """First column of the block, in the image."""
        return self.top_left[1]

    @property
    def top_left_row_output(self) -> int:
        """First row of this rank's outputs, in the global output."""
        return self.top_left_output[0]

    @property
    def top_left_col_output(self) -> int:
        """First column of this rank's outputs, in the global output."""
        return self.top_left_output[1]


class GlobalArray:
    """The input of a layer, of which each rank holds a block, with both views of it.

    | tensor | shape on each rank |
    |---|---|
    | x, given to `get_fprop_view` | batch x (channels * block), or batch x channels x block |
    | its result, the chunk | batch x (channels * chunk), or batch x channels x chunk |
    | e, given to `get_bprop_view` | as the chunk |
    | its result | as x |

    Making one is collective over the partition where `h` and `w`, or `shape`, are given: then ranks
    tell each other the sizes of their blocks.

    Args:
        cur_layer: has the global sizes: `ifmshape`, `nifm`, `stride`, and `fshape` or `fwidth`;
            also `padding` where the layer pads its input.
        h: rows of this rank's block; balanced where -1.
        w: columns of this rank's block; balanced where -1.
        lcn_layer_flag: whether the layer pads, so that there are as many outputs as inputs.
        tensor_name: name of the tensor in errors.
        partition: ranks on the grid, with or without two axes of length 1 before it; where None,
            that of the layer's `towers`, or all ranks on the squarest grid that fits.
        shape: of this rank's block, for any number of dims, instead of `h` and `w`.

    Attributes:
        is_local: whether every rank has all that its outputs are made of, and nothing more: chunks
            are blocks, and views move nothing.

    Raises:
        GridError: a rank would have no outputs; names the grids that fit.
        ValueError: padding with a stride, or as large as the filter; a grid of another number of
            dims.
    """

    def __init__(
        self,
        cur_layer: Any,
        h: int = -1,
        w: int = -1,
        lcn_layer_flag: bool = False,
        tensor_name: str = "output",
        *,
        partition: Partition | None = None,
        shape: Sequence[int] | None = None,
    ) -> None:
        self.global_shape = tuple(int(size) for size in cur_layer.ifmshape)
        self.num_channels = int(cur_layer.nifm)
        self.what = f"GlobalArray({getattr(cur_layer, 'name', 'layer')}, {tensor_name})"
        num_dims = len(self.global_shape)
        self.windows = [
            ConvWindow(size, stride, 1, before, after)
            for size, stride, (before, after) in zip(
                filter_shape(cur_layer, num_dims),
                per_image_dim(cur_layer.stride, num_dims),
                self._padding(cur_layer, lcn_layer_flag, num_dims),
                strict=True,
            )
        ]
        if any(max(each.before, each.after) >= each.kernel for each in self.windows):
            raise ValueError(
                f"{self.what}: padding has to be smaller than the filter, or some outputs would be"
                " made of zeros alone"
            )
        sizes = zip(self.windows, self.global_shape, strict=True)
        self.output_shape = tuple(window.output_size(size) for window, size in sizes)
        self.partition = self._grid(cur_layer, partition)
        given = shape if shape is not None else (h, w) if (h, w) != (-1, -1) else None
        self.blocks = self._agree_on_blocks(given)
        self.outputs = [
            balanced_intervals(size, length)
            for size, length in zip(self.output_shape, self.grid, strict=True)
        ]
        needs = [self._need(dim) for dim in range(num_dims)]
        self.is_local = all(
            need(blocks) == blocks for need, blocks in zip(needs, self.blocks, strict=True)
        )
        self._shapes: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        self.exchange = HaloExchanger(
            self.partition,
            [None, None, *needs],
            what=self.what,
        )
        self.local_array = self._local_array()
        self._version = 0

    @property
    def grid(self) -> tuple[int, ...]:
        """Ranks along each dim of the image."""
        return self.partition.shape[2:]

    # ---- the views ------------------------------------------------------------------------------

    def get_fprop_view(self, x: torch.Tensor) -> torch.Tensor:
        """Return the chunk that this rank's outputs are made of.

        Collective over the partition, unless `is_local`: then it is the block that was given.

        Args:
            x: this rank's block: batch x (channels * block), or with a dim for each.

        Raises:
            ValueError: the block has another size.
        """
        local = self.local_array
        image = self._as_image(x, local.shape, "block")
        if self.is_local:
            chunk = x
        else:
            chunk = self.exchange(image)
            if x.dim() == 2:
                chunk = chunk.flatten(1)
        if chunk.requires_grad:  # the graph keeps what it needs; this is to keep nothing more alive
            local.local_image = local.chunk = None
        else:
            local.local_image, local.chunk = x, chunk
        self._version = x._version
        return chunk

    def get_bprop_view(self, e: torch.Tensor) -> torch.Tensor:
        """Return the error of this rank's block: halos are added to the blocks they are of.

        Collective over the partition, unless `is_local`.

        Args:
            e: of the shape of the chunk.

        Raises:
            ValueError: it has another size.
        """
        local = self.local_array
        image = self._as_image(e, local.ifmshape, "chunk")
        if self.is_local:
            error = e
        else:
            error = self.exchange.adjoint(image, self._block_shapes(*image.shape[:2]))
            if e.dim() == 2:
                error = error.flatten(1)
        local.defiltering_local_image = None if error.requires_grad else error
        return error

    make_fprop_view = get_fprop_view
    make_bprop_view = get_bprop_view

    def get_local_acts(self) -> torch.Tensor | None:
        """Return what `get_fprop_view` was given last; None before that, and within a graph."""
        return self.local_array.local_image

    def chunk_of(self, x: torch.Tensor) -> torch.Tensor:
        """Return the chunk of a block; that of the last exchange where it was of the same tensor.

        Every rank is to call this with what corresponds: it is collective or not on all.
        """
        local = self.local_array
        is_same = (
            local.chunk is not None
            and local.local_image is not None
            and local.local_image.data_ptr() == x.data_ptr()
            and local.local_image.shape == x.shape
            and self._version == x._version  # it was not written to since
        )
        return local.chunk if is_same and local.chunk is not None else self.get_fprop_view(x)

    # ---- details --------------------------------------------------------------------------------

    @property
    def _dims(self) -> range:
        return range(len(self.global_shape))

    def _padding(self, layer: Any, lcn_layer_flag: bool, num_dims: int) -> list[tuple[int, int]]:
        if not lcn_layer_flag:
            padding = per_image_dim(getattr(layer, "padding", 0), num_dims)
            return [(each, each) for each in padding]
        if any(stride != 1 for stride in per_image_dim(layer.stride, num_dims)):
            raise ValueError(f"{self.what}: a layer that keeps the size of its input has stride 1")
        filters = filter_shape(layer, num_dims)
        return [((size - 1) - (size - 1) // 2, (size - 1) // 2) for size in filters]

    def _grid(self, layer: Any, partition: Partition | None) -> Partition:
        if partition is None and getattr(layer, "towers", None) is not None:
            partition = layer.towers.partition
        smallest = [min(pair) for pair in zip(self.global_shape, self.output_shape, strict=True)]
        if partition is None:
            ranks = world_partition()
            grid = choose_grid(ranks.size, smallest, self.what)
            return ranks.create_cartesian_topology_partition([1, 1, *grid])
        num_dims = len(self.global_shape)
        if partition.dim == num_dims:
            partition = partition.create_cartesian_topology_partition([1, 1, *partition.shape])
        if partition.dim != num_dims + 2 or partition.shape[:2] != (1, 1):
            raise ValueError(
                f"{self.what}: a grid of {text(partition.shape)} for images of {num_dims} dims"
                f" ({text(self.global_shape)}); it needs {num_dims} axes, or 1 x 1 before them"
            )
        if any(n > size for n, size in zip(partition.shape[2:], smallest, strict=True)):
            fitting = [text(grid) for grid in fitting_grids(partition.size, smallest)]
            raise GridError(
                f"{self.what}: on a grid of {text(partition.shape[2:])} a rank would have no part"
                f" of {text(self.global_shape)} inputs and {text(self.output_shape)} outputs;"
                f" grids of {partition.size} ranks that fit: {', '.join(fitting) or 'none'}"
            )
        return partition

    def _agree_on_blocks(self, given: Sequence[int] | None) -> list[list[Interval]]:
        """Return, along each dim, the block of each position of the grid."""
        if given is None:
            along = zip(self.global_shape, self.grid, strict=True)
            return [balanced_intervals(size, length) for size, length in along]
        told = self.partition.allgather_data([int(size) for size in given])
        rows = told.reshape(self.partition.size, -1).tolist()
        blocks = []
        for dim, length in enumerate(self.grid):
            sizes: list[int | None] = [None] * length
            for index, row in zip(self.partition.indices(), rows, strict=True):
                place = index[2 + dim]
                if sizes[place] not in (None, row[dim]):
                    raise ValueError(
                        f"{self.what}: ranks at position {place} along axis {dim} of the grid have"
                        f" blocks of {sizes[place]} and of {row[dim]}; they must be the same"
                    )
                sizes[place] = row[dim]
            known = [size or 0 for size in sizes]
            if sum(known) != self.global_shape[dim]:
                raise ValueError(
                    f"{self.what}: blocks of {known} along dim {dim} are {sum(known)} together,"
                    f" and the image has {self.global_shape[dim]}"
                )
            blocks.append(intervals_of(known))
        return blocks

    def _block(self, index: Sequence[int], dim: int) -> Interval:
        return self.blocks[dim][index[2 + dim]]

    def _block_shapes(self, *batch_and_channels: int) -> list[tuple[int, ...]]:
        """Return the shapes of all ranks' blocks."""
        if batch_and_channels not in self._shapes:
            self._shapes[batch_and_channels] = [
                (*batch_and_channels, *(self._block(index, dim).size for dim in self._dims))
                for index in self.partition.indices()
            ]
        return self._shapes[batch_and_channels]

    def _need(self, dim: int) -> Needed:
        """Return, of blocks along a dim, what each position needs: without the padding."""
        window, outputs = self.windows[dim], self.outputs[dim]
        inside = Interval(0, self.global_shape[dim])
        return lambda _: [window.span(each) & inside for each in outputs]

    def _local_array(self) -> LocalArray:
        index = self.partition.index
        if index is None:
            raise ValueError(f"{self.what}: this rank is not in {self.partition!r}")
        blocks = [self._block(index, dim) for dim in self._dims]
        outputs = [self.outputs[dim][index[2 + dim]] for dim in self._dims]
        spans = [window.span(each) for window, each in zip(self.windows, outputs, strict=True)]
        boxes = [span & Interval(0, n) for span, n in zip(spans, self.global_shape, strict=True)]
        local = LocalArray(blocks, boxes, outputs)
        local.ifmshape = tuple(each.size for each in boxes)
        local.global_output_shape = self.output_shape
        for block, box, span in zip(blocks, boxes, spans, strict=True):
            local.halos.append((block.start - box.start, box.stop - block.stop))
            local.padding.append((box.start - span.start, span.stop - box.stop))
        if len(self.grid) == 2:
            local.border_id = border_of(index[2:], self.grid)
        return local

    def _as_image(self, x: torch.Tensor, shape: tuple[int, ...], kind: str) -> torch.Tensor:
        wanted = (self.num_channels, *shape)
        size = self.num_channels
        for each in shape:
            size *= each
        if x.dim() == 2 and x.shape[1] == size:
            return x.reshape(len(x), *wanted)
        if x.dim() == 2 + len(shape) and tuple(x.shape[2:]) == shape:
            return x  # of any number of channels
        raise ValueError(
            f"{self.what}: a {kind} here is batch x {size} (or batch x {text(wanted)}), and a"
            f" tensor of shape {list(x.shape)} was given"
        )

    def __repr__(self) -> str:
        return f"{self.what}: {text(self.global_shape)} on a grid of {text(self.grid)}"


def per_image_dim(value: int | Sequence[int], num_dims: int) -> list[int]:
    """Return a setting for each dim of the image, where one number stands for all."""
    return [value] * num_dims if isinstance(value, int) else [int(each) for each in value]


def filter_shape(layer: Any, num_dims: int) -> list[int]:
    """Return the sizes of a layer's filters; square ones where only their width is known."""
    shape = getattr(layer, "fshape", None)
    return per_image_dim(layer.fwidth if shape is None else shape, num_dims)


def border_of(position: Sequence[int], grid: Sequence[int]) -> int:
    """Return at which border of a grid of rows and columns a position is."""
    (row, column), (rows, columns) = position, grid
    touches = (row == 0, row == rows - 1, column == 0, column == columns - 1)
    for known, name in BORDERS:
        if touches == known:
            return name
    for at_border, name in zip(touches, (NORTH, SOUTH, WEST, EAST), strict=True):
        if at_border:
            return name
    raise AssertionError("a position touches a border, or none")
