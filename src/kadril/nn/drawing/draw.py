"""`draw`: a picture of a layer on its partition, made from the plan that the code runs.

+--------+--------+        blocks, in the colour of their owner
| rank 0 : rank 1 |        dashed: what a worker gets, its halo included
+--------+--------+        arrows: messages, with their number of elements
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kadril.nn.conv.conv_layer import ConvLayer
from kadril.nn.conv.split_form import SplitForm
from kadril.nn.drawing.channel_picture import ChannelPicture, look_at_channels
from kadril.nn.drawing.picture import Picture, WorkerView, look_at
from kadril.partition import Interval
from kadril.partition.pairing import text

__all__ = ["draw"]

WIDTH, HEIGHT = 420, 300  # of the picture of one tensor, in pixels
MARGIN, LINE = 48, 18
COLOURS = ["#7fb2e5", "#f2b879", "#8fd19e", "#e59ab5", "#b6a3e0", "#e0d27f", "#82d0cf", "#c9b29b"]
STYLE = (
    "text{font:12px sans-serif;fill:#222}.title{font-size:15px}"
    ".block{stroke:#222}.halo{fill:none;stroke:#b00;stroke-dasharray:5 3}"
    ".message{stroke:#444;fill:none;marker-end:url(#tip)}.count{font-size:10px;fill:#444}"
)
ARROW = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    ' orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#444"/></marker>'
)


def draw(layer: object, shape: Sequence[int]) -> str:
    """Draw who owns which block, how wide halos are, and which messages are sent.

    Two dims of a tensor are shown, the split ones before others; of workers that differ along
    further axes, the first ones. The numbers below the picture are for all dims. Nothing is sent,
    and one process can draw any partition.

    Args:
        layer: that exchanges halos (a convolution, a transposed one, a pool, an upsampling,
            `HaloExchange`), or `Repartition`. Of a convolution with split channels, weight and
            output are shown beside the input.
        shape: of the global input; its blocks are balanced.

    Returns:
        SVG text.

    Raises:
        TypeError: another kind of layer.
        ValueError: the tensor does not match the layer.
    """
    if isinstance(layer, ConvLayer) and isinstance(layer.form, SplitForm):
        return draw_channels(look_at_channels(layer, shape))
    picture = look_at(layer, shape)
    first = Panel(picture.shape, picture.before, MARGIN)
    parts = first.blocks([(view.rank, view.block) for view in picture.views])
    if picture.is_halo:
        parts += first.halos(picture.views)
        parts += first.messages(picture.views, first)
        return document(title_of(picture), parts, 1, caption(picture))
    second = Panel(picture.shape, picture.after, left_edge(1))
    parts += second.blocks([(view.rank, view.result) for view in picture.views])
    parts += first.messages(picture.views, second)
    return document(title_of(picture), parts, 2, caption(picture))


def draw_channels(picture: ChannelPicture) -> str:
    """Draw input, weight and output of a layer with split channels, side by side."""
    views = picture.halo.views
    P_x, P_w, P_y = picture.shapes
    weight_shape = [blocks.stop for blocks in picture.weights[-1][1]]
    inputs = Panel(picture.halo.shape, P_x, MARGIN)
    weights = Panel(weight_shape, (P_y[1], P_x[1]), left_edge(1))
    outputs = Panel(picture.output_shape, P_y, left_edge(2))
    parts = inputs.blocks([(view.rank, view.block) for view in views])
    parts += inputs.halos(views) + inputs.messages(views, inputs)
    parts += weights.blocks(picture.weights, "weight, down: output channels; to the right: input")
    parts += outputs.blocks(picture.outputs)
    blocks = {view.rank: view.block for view in views if inputs.is_shown(view.block)}
    holders = dict(picture.weights)
    takers = {rank: box for rank, box in picture.outputs if outputs.is_shown(box)}
    for source, target, count in picture.broadcasts:
        if source in blocks and target in holders:
            start, end = inputs.centre(blocks[source] or []), weights.centre(holders[target])
            parts.append(arrow(start, end, count))
    for source, target, count in picture.sums:
        if source in holders and target in takers:
            start, end = weights.centre(holders[source]), outputs.centre(takers[target])
            parts.append(arrow(start, end, count))
    title = (
        f"{picture.halo.what}: {text(picture.halo.shape)} on {text(P_x)}, weight on {text(P_w)},"
        f" {text(picture.output_shape)} on {text(P_y)}"
    )
    lines = ["halos: " + caption(picture.halo)[0]]
    for name, sent in (("inputs to weights", picture.broadcasts), ("sums", picture.sums)):
        total = sum(passage.num_elements for passage in sent)
        lines.append(f"{name}: {len(sent)} messages with {total} elements in all")
    return document(title, parts, 3, [*lines, *caption(picture.halo)[1:]])


def left_edge(place: int) -> int:
    """Return the left edge of the picture of a tensor."""
    return MARGIN + place * (WIDTH + 2 * MARGIN)


def document(heading: str, parts: Sequence[str], num_panels: int, lines: Sequence[str]) -> str:
    """Return the whole picture, with its title and its caption."""
    top = MARGIN + HEIGHT + MARGIN
    words = "".join(
        f'<text x="{MARGIN}" y="{top + LINE * place}">{escape(line)}</text>'
        for place, line in enumerate(lines)
    )
    width, height = num_panels * (WIDTH + 2 * MARGIN), top + LINE * len(lines)
    title = f'<text class="title" x="{MARGIN}" y="24">{escape(heading)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}"><style>{STYLE}</style><defs>{ARROW}</defs>'
        f'<rect width="100%" height="100%" fill="white"/>{title}{"".join(parts)}{words}</svg>'
    )


class Panel:
    """The picture of one tensor: two of its dims, to scale.

    Args:
        shape: of the tensor.
        lengths: of the axes that it is split along.
        left: where it begins.
    """

    def __init__(self, shape: Sequence[int], lengths: Sequence[int], left: int) -> None:
        self.shape = shape
        self.left = left
        # Split dims first, and the last ones before others.
        ranked = sorted(range(len(shape)), key=lambda dim: (lengths[dim] == 1, -dim))
        self.rows, self.columns = min(ranked[:2]), max(ranked[:2])

    def box(self, box: Sequence[Interval]) -> tuple[float, float, float, float]:
        """Return x, y, width and height of a box."""
        across, down = box[self.columns], box[self.rows]
        per_column = WIDTH / self.shape[self.columns]
        per_row = HEIGHT / self.shape[self.rows]
        if self.rows == self.columns:
            down = Interval(0, self.shape[self.rows])
        return (
            self.left + across.start * per_column,
            MARGIN + down.start * per_row,
            across.size * per_column,
            down.size * per_row,
        )

    def is_shown(self, box: Sequence[Interval] | None) -> bool:
        """Whether a box is at the beginning of all dims that are not shown."""
        return box is not None and all(
            each.start <= 0 for dim, each in enumerate(box) if dim not in (self.rows, self.columns)
        )

    def blocks(
        self, owned: Sequence[tuple[int, Sequence[Interval] | None]], legend: str = ""
    ) -> list[str]:
        """Draw blocks with the rank of their owner."""
        legend = legend or f"down: dim {self.rows}; to the right: dim {self.columns}"
        parts = [f'<text x="{self.left}" y="{MARGIN + HEIGHT + LINE}">{escape(legend)}</text>']
        for rank, box in owned:
            if box is None or not self.is_shown(box):
                continue
            x, y, width, height = self.box(box)
            colour = COLOURS[rank % len(COLOURS)]
            ends = [f"{box[dim].start}:{box[dim].stop}" for dim in (self.rows, self.columns)]
            parts.append(
                f'<rect class="block" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}"'
                f' height="{height:.1f}" fill="{colour}"/>'
                f'<text x="{x + 6:.1f}" y="{y + 16:.1f}">rank {rank}</text>'
                f'<text class="count" x="{x + 6:.1f}" y="{y + 30:.1f}">[{", ".join(ends)}]</text>'
            )
        return parts

    def halos(self, views: Sequence[WorkerView]) -> list[str]:
        """Draw what workers receive, around their blocks."""
        parts = []
        for view in views:
            if view.result is None or not self.is_shown(view.block):
                continue
            x, y, width, height = self.box(view.result)
            inset = 2 + view.rank % 3  # lines that would lie on each other are told apart
            parts.append(
                f'<rect class="halo" x="{x + inset:.1f}" y="{y + inset:.1f}"'
                f' width="{max(1, width - 2 * inset):.1f}"'
                f' height="{max(1, height - 2 * inset):.1f}"/>'
            )
        return parts

    def messages(self, views: Sequence[WorkerView], target: Panel) -> list[str]:
        """Draw an arrow for each message between workers that are shown."""
        is_halo = target is self
        ends = {view.rank: view.block if is_halo else view.result for view in views}
        parts = []
        for view in views:
            for peer, count in view.messages.items():
                end = ends[peer]
                if view.block is None or end is None:
                    continue
                if not (self.is_shown(view.block) and target.is_shown(end)):
                    continue
                parts.append(arrow(self.centre(view.block), target.centre(end), count))
        return parts

    def centre(self, box: Sequence[Interval]) -> tuple[float, float]:
        """Return the middle of a box."""
        x, y, width, height = self.box(box)
        return x + width / 2, y + height / 2


def arrow(start: tuple[float, float], end: tuple[float, float], count: int) -> str:
    """Draw a message, a little to the right of its way, so that there is room for the answer."""
    across, down = end[0] - start[0], end[1] - start[1]
    length = max(1.0, (across**2 + down**2) ** 0.5)
    right, below = -5 * down / length, 5 * across / length
    x1, y1 = start[0] + 0.25 * across + right, start[1] + 0.25 * down + below
    x2, y2 = start[0] + 0.75 * across + right, start[1] + 0.75 * down + below
    return (
        f'<line class="message" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        f'<text class="count" x="{x1 + 0.3 * (x2 - x1) + 2 * right + 2:.1f}"'
        f' y="{y1 + 0.3 * (y2 - y1) + 2 * below + 3:.1f}">{count}</text>'
    )


def title_of(picture: Picture) -> str:
    """Return the title: layer, tensor and partitions."""
    where = text(picture.before)
    if not picture.is_halo:
        where = f"{where} to {text(picture.after)}"
    return f"{picture.what}: {text(picture.shape)} on {where}"


def caption(picture: Picture) -> list[str]:
    """Return the lines of the caption: what is shown, and one line for each worker."""
    counts = [count for view in picture.views for count in view.messages.values()]
    lines = [f"{len(counts)} messages with {sum(counts)} elements in all"]
    for view in picture.views:
        sends = ", ".join(f"{count} to {peer}" for peer, count in view.messages.items())
        words = [f"sends {sends}" if sends else "sends nothing"]
        if picture.is_halo:
            widths = [view.halo(dim) for dim in range(len(picture.shape))]
            halos = [f"dim {dim}: {w[0]}+{w[1]}" for dim, w in enumerate(widths) if w and any(w)]
            words.append(f"halo {', '.join(halos)}" if halos else "no halo")
        lines.append(f"rank {view.rank}: {'; '.join(words)}")
    return lines
