"""The products of unshared filters with the fields of images, without a graph.

    y[p] = W[p] x[field p]          x* = sum_p W[p]^T y[p] on field p          W*[p] = y[p] x^T

All fields together are as many times larger than the image as a field has pixels, and most of the
time would go into moving them. So they are made for a few rows of positions at a time, which stay
in a core's cache until they were multiplied:

    image   C x H x W x batch       the batch comes last, so that whole rows of it are copied
    fields  positions of some rows x inputs of a filter x batch
    values  rows x columns x filters x batch                        what filters give
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

__all__ = [
    "UnsharedFilters",
    "images_of_rows",
    "rows_of_images",
    "rows_of_values",
    "values_of_rows",
]

# Elements of the fields that are made at a time; with fewer, calls take longer than the products.
FIELD_ELEMENTS = 2**19


class UnsharedFilters:
    """The products of one size of images and filters.

    Args:
        num_channels: of the image.
        num_filters: at each position.
        positions: rows and columns of them.
        field: rows and columns of a filter.
        stride: from one position to the next.
    """

    def __init__(
        self,
        num_channels: int,
        num_filters: int,
        positions: tuple[int, int],
        field: tuple[int, int],
        stride: int,
    ) -> None:
        self.num_channels, self.num_filters = num_channels, num_filters
        self.positions, self.field, self.stride = positions, field, stride
        self.field_size = num_channels * field[0] * field[1]

    def multiply(self, weights: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        """Return the values that all filters give.

        Args:
            weights: a row for each filter, position by position within filter by filter.
            image: see the top of the file.
        """
        values = image.new_empty(*self.positions, self.num_filters, image.shape[3])
        for rows, fields in self._fields(image):
            torch.bmm(self._filters(weights, rows), fields, out=values[rows].flatten(0, 1))
        return values

    def multiply_back(
        self, weights: torch.Tensor, values: torch.Tensor, image_shape: tuple[int, int]
    ) -> torch.Tensor:
        """Return the image of the sum over positions of W[p]^T y[p]: the adjoint of `multiply`.

        Args:
            weights: see `multiply`.
            values: see the top of the file.
            image_shape: its rows and columns.
        """
        batch = values.shape[3]
        image = values.new_zeros(self.num_channels, *image_shape, batch)
        width = self.stride * (self.positions[1] - 1) + 1
        for rows in self._blocks(batch):
            filters = self._filters(weights, rows).transpose(1, 2)
            fields = torch.bmm(filters, values[rows].flatten(0, 1))
            count = rows.stop - rows.start
            parts = fields.view(count, self.positions[1], self.num_channels, *self.field, batch)
            height = self.stride * (count - 1) + 1
            for i, j in itertools.product(*map(range, self.field)):
                top = self.stride * rows.start + i
                target = image[:, top : top + height : self.stride, j : j + width : self.stride]
                target += parts[:, :, :, i, j].permute(2, 0, 1, 3)
        return image

    def gradient(self, values: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        """Return the sum over the batch of y[p] x^T, as the weights lie."""
        found = values.new_empty(self.num_filters, *self.positions, self.field_size)
        for rows, fields in self._fields(image):
            self._add_gradient(found, values, rows, fields)
        return found.view(-1, self.field_size)

    def multiply_with_gradient(
        self, weights: torch.Tensor, image: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `multiply(weights, image)` and `gradient(values, image)`, making fields once."""
        made = torch.empty_like(values)
        found = values.new_empty(self.num_filters, *self.positions, self.field_size)
        for rows, fields in self._fields(image):
            torch.bmm(self._filters(weights, rows), fields, out=made[rows].flatten(0, 1))
            self._add_gradient(found, values, rows, fields)
        return made, found.view(-1, self.field_size)

    # ---- details --------------------------------------------------------------------------------

    def _blocks(self, batch: int) -> Iterator[slice]:
        """Give the rows of positions that are done at a time."""
        num_rows, num_columns = self.positions
        step = max(1, FIELD_ELEMENTS // max(1, num_columns * self.field_size * batch))
        for start in range(0, num_rows, step):
            yield slice(start, min(start + step, num_rows))

    def _fields(self, image: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Give rows of positions, and their fields; the memory is used again for the next."""
        views = image
        for dim, size in zip((1, 2), self.field, strict=True):
            views = views.unfold(dim, size, self.stride)  # channels, rows, columns, batch, field
        views = views.permute(1, 2, 0, 4, 5, 3)
        room: torch.Tensor | None = None
        for rows in self._blocks(image.shape[3]):
            block = views[rows]
            if room is None:
                room = torch.empty(block.shape, dtype=image.dtype)
            fields = room[: len(block)].copy_(block)
            yield rows, fields.view(-1, self.field_size, image.shape[3])

    def _filters(self, weights: torch.Tensor, rows: slice) -> torch.Tensor:
        """Return the filters of some rows of positions: positions x filters x inputs of one."""
        whole = weights.view(self.num_filters, *self.positions, self.field_size)
        return whole[:, rows].flatten(1, 2).transpose(0, 1)

    def _add_gradient(
        self, found: torch.Tensor, values: torch.Tensor, rows: slice, fields: torch.Tensor
    ) -> None:
        products = torch.bmm(values[rows].flatten(0, 1), fields.transpose(1, 2))
        found[:, rows].flatten(1, 2).copy_(products.transpose(0, 1))


def images_of_rows(rows: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
    """Return rows of examples as an image with the batch last.

    Args:
        rows: an example each.
        shape: channels, rows and columns of the image.
    """
    return rows.t().contiguous().view(*shape, len(rows))


def rows_of_images(image: torch.Tensor) -> torch.Tensor:
    """Return an image with the batch last as rows of examples."""
    return image.flatten(0, 2).t().contiguous()


def values_of_rows(
    rows: torch.Tensor, num_filters: int, positions: tuple[int, int]
) -> torch.Tensor:
    """Return rows of outputs, filter by filter, as values; see the top of the file."""
    by_filter = rows.reshape(len(rows), num_filters, *positions)
    return by_filter.permute(2, 3, 1, 0).contiguous()


def rows_of_values(values: torch.Tensor) -> torch.Tensor:
    """Return values as rows of outputs, filter by filter."""
    return values.permute(3, 2, 0, 1).flatten(1)
