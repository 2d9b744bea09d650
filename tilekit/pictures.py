"""Figures of tiles, memory accesses and rooflines, drawn with matplotlib as static pictures with a text for each.

The palette is Okabe and Ito's, which the colour-blind can tell apart; no figure relies on colour alone.
Source: M. Okabe, K. Ito, "Color Universal Design", 2008.
"""

import io
from collections.abc import Mapping

BLUE, ORANGE, GREEN, YELLOW = "#0072B2", "#E69F00", "#009E73", "#F0E442"
SKY, VERMILION, PURPLE, GREY = "#56B4E9", "#D55E00", "#CC79A7", "#999999"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, GREY)


class Picture:
    """A PNG with its alternative text: what a notebook displays, and what a screen reader says."""

    def __init__(self, png: bytes, alt: str):
        self.png, self.alt = png, alt

    def __repr__(self):
        return f"[picture: {self.alt}]"

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"image/png": self.png, "text/plain": repr(self)}, {"image/png": {"alt": self.alt}}


def show(figure, alt: str) -> Picture:
    """Turn a matplotlib figure into a :class:`Picture` and close it.

    Args:
        figure: a ``matplotlib.figure.Figure``.
        alt: what the figure shows, in a sentence or two, for those who cannot see it.

    Raises:
        ValueError: `alt` is empty.
    """
    if not alt.strip():
        raise ValueError("show: alt must say in words what the figure shows; got an empty text")
    buffer = io.BytesIO()
    # Without the software's version and date, the same figure gives the same bytes.
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight", metadata={"Software": None})
    return Picture(buffer.getvalue(), alt)


def canvas(width: float = 7.0, height: float = 3.0, columns: int = 1, rows: int = 1):
    """A new figure and its axes, without the global state of pyplot, so that nothing is shown twice."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"pictures need matplotlib, which does not import ({error}): pip install matplotlib"
        ) from error

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns)


def tile_map(
    axes,
    shape: tuple[int, int],
    tile: tuple[int, int],
    *,
    colours: Mapping | None = None,
    labels: Mapping | None = None,
):
    """Draw a matrix of `shape` cut into tiles, row 0 on top; ragged tiles keep their full outline, dashed.

    `colours` and `labels` map a tile's index ``(i, j)`` to a colour and to a text.
    """
    from matplotlib.patches import Rectangle

    rows, columns = shape
    for i in range(-(-rows // tile[0])):
        for j in range(-(-columns // tile[1])):
            y, x = i * tile[0], j * tile[1]
            height, width = min(tile[0], rows - y), min(tile[1], columns - x)
            colour = (colours or {}).get((i, j), "white")
            if (height, width) != tile:
                axes.add_patch(Rectangle((x, y), tile[1], tile[0], fill=False, ls="--", ec=GREY, lw=1))
            axes.add_patch(Rectangle((x, y), width, height, fc=colour, ec="black", lw=1.2))
            axes.text(
                x + width / 2, y + height / 2, (labels or {}).get((i, j), ""), ha="center", va="center", fontsize=8
            )
    tall, wide = -(-rows // tile[0]) * tile[0], -(-columns // tile[1]) * tile[1]
    axes.set(xlim=(-0.2, wide + 0.2), ylim=(tall + 0.2, -0.2), aspect="equal")
    axes.axis("off")


def bars(values: Mapping[str, float], unit: str, *, roof: tuple[str, float] | None = None, title: str = "") -> Picture:
    """Horizontal bars, one a name, with an optional roof as a dashed line, and the values written out."""
    figure, axes = canvas(7, 0.9 + 0.42 * len(values))
    names = list(values)
    hatches = ("", "//", "..", "xx", "\\\\", "oo")
    top = max(*values.values(), roof[1] if roof else 0.0)
    for position, name in enumerate(names):
        colour, hatch = PALETTE[position % len(PALETTE)], hatches[position % len(hatches)]
        axes.barh(position, values[name], color=colour, hatch=hatch, edgecolor="black", height=0.62)
        # Inside the bar where the roof's line would run through the number.
        inside = roof is not None and values[name] <= roof[1] < values[name] + 0.12 * top
        axes.annotate(
            f"{values[name]:,.0f}", (values[name], position), (-6 if inside else 4, 0), textcoords="offset points",
            ha="right" if inside else "left", va="center", fontsize=9, bbox={"fc": "white", "ec": "none", "pad": 1.5},
        )  # fmt: skip
    words = "; ".join(f"{name} {value:,.0f} {unit}" for name, value in values.items())
    if roof:
        axes.axvline(roof[1], ls="--", color="black", lw=1.2)
        axes.set_title(f"{title}   (dashed: {roof[0]}, {roof[1]:,.0f} {unit})", fontsize=10)
        words += f". Roof: {roof[0]}, {roof[1]:,.0f} {unit}"
    else:
        axes.set_title(title, fontsize=10)
    axes.set(yticks=range(len(names)), yticklabels=names, xlabel=unit, xlim=(0, top * 1.15))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    return show(figure, f"Bar chart. {title}: {words}.")


def roofline(points: Mapping[str, tuple[float, float]], *, bandwidth: float, peak: float, title: str = "") -> Picture:
    """Where kernels stand under a device's roofs.

    Args:
        points: name -> (FLOP a byte, TFLOP/s reached).
        bandwidth: GB/s of device memory. peak: TFLOP/s of the arithmetic in use.

    Source: S. Williams, A. Waterman, D. Patterson, "Roofline", Communications of the ACM 52(4), 2009.
    """
    figure, axes = canvas(7, 3.6)
    low = min(0.05, *(intensity / 2 for intensity, _ in points.values()))
    high = max(10_000.0, *(intensity * 2 for intensity, _ in points.values()))
    knee = peak * 1000 / bandwidth
    axes.plot([low, knee, high], [low * bandwidth / 1000, peak, peak], color="black", lw=1.8)
    axes.axvline(knee, ls=":", color=GREY, lw=1)
    for (name, (intensity, rate)), colour, marker in zip(points.items(), PALETTE * 4, "os^Dv*Pp" * 4, strict=False):
        axes.plot(intensity, rate, marker, color=colour, ms=9, mec="black", label=f"{name}: {rate:,.1f} TFLOP/s")
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte of device memory", ylabel="TFLOP/s", title=title)
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(alpha=0.3, which="both")
    words = "; ".join(f"{n} at {i:,.2g} FLOP/byte reaches {r:,.1f} TFLOP/s" for n, (i, r) in points.items())
    return show(
        figure,
        f"Roofline on log axes, {title}: a slope of {bandwidth:,.0f} GB/s up to {knee:,.0f} FLOP/byte, then flat at {peak:,.0f} TFLOP/s. {words}.",
    )


def overview() -> Picture:
    """The README's picture: a matrix cut into tiles, and which spelling of a kernel runs where."""
    from matplotlib.patches import FancyBboxPatch

    figure, (left, right) = canvas(9.5, 3.4, columns=2)
    labels = {(i, j): f"block {4 * i + j}" for i in range(3) for j in range(4)}
    tile_map(left, (6, 8), (2, 2), colours=dict.fromkeys(labels, SKY), labels=labels)
    left.set_title("a matrix in tiles, one block for each", fontsize=11)
    machines = ("laptop, CI", "T4", "A100 ... B200, RTX")
    spellings = {
        "cuTile": ("interpreted", "interpreted", "compiled"),
        "Triton": ("interpreted", "compiled", "compiled"),
        "CUDA C++": ("compiled,\nnot run", "compiled", "compiled"),
        "torch": ("runs", "runs", "runs"),
    }
    for column, machine in enumerate(machines):
        right.text(column + 0.5, -0.25, machine, ha="center", fontsize=10)
    for row, (spelling, modes) in enumerate(spellings.items()):
        right.text(-0.1, row + 0.5, spelling, ha="right", va="center", fontsize=11, weight="bold")
        for column, mode in enumerate(modes):
            face = {"compiled": GREEN, "interpreted": YELLOW, "runs": SKY}.get(mode, "white")
            box = FancyBboxPatch(
                (column + 0.1, row + 0.15),
                0.8,
                0.7,
                boxstyle="round,pad=0,rounding_size=0.08",
                fc=face,
                ec="black",
                alpha=0.85 if mode else 0.3,
            )
            right.add_patch(box)
            right.text(column + 0.5, row + 0.5, mode or "-", ha="center", va="center", fontsize=9)
    right.set(xlim=(-0.9, 3.05), ylim=(4.1, -0.6))
    right.axis("off")
    right.set_title("the same kernel, several spellings", fontsize=11)
    return show(
        figure,
        "Left: a matrix cut into tiles, one block of the grid for each. Right: torch runs everywhere, Triton is "
        "interpreted on a laptop and compiled from a T4 on, cuTile is interpreted on both and compiled on an A100 and "
        "newer GPUs, CUDA C++ is compiled everywhere and runs from a T4 on.",
    )


def simt_and_tiles() -> Picture:
    """A thread for each element against a block for each tile."""
    figure, (left, right) = canvas(9, 2.8, columns=2)
    from matplotlib.patches import Rectangle

    for i in range(16):
        left.add_patch(Rectangle((i, 0), 1, 1, fc=SKY if i < 8 else YELLOW, ec="black"))
        left.annotate("", (i + 0.5, 1.05), (i + 0.5, 2.0), arrowprops={"arrowstyle": "->", "color": "black"})
        left.text(i + 0.5, 2.15, str(i), ha="center", fontsize=8)
        right.add_patch(Rectangle((i, 0), 1, 1, fc=SKY if i < 8 else YELLOW, ec="black"))
    for block in range(2):
        right.add_patch(Rectangle((8 * block + 0.1, 1.9), 7.8, 0.8, fc=(SKY, YELLOW)[block], ec="black"))
        right.text(8 * block + 4, 2.3, f"block {block}: one tile of 8", ha="center", va="center", fontsize=9)
        right.annotate("", (8 * block + 4, 1.05), (8 * block + 4, 1.9), arrowprops={"arrowstyle": "->", "lw": 2})
    left.set_title("SIMT: you write what one thread does", fontsize=11)
    right.set_title("tiles: you write what one block does", fontsize=11)
    for axes in (left, right):
        axes.set(xlim=(-0.2, 16.2), ylim=(-0.2, 3.0))
        axes.axis("off")
    return show(
        figure,
        "Sixteen elements, twice. Left, SIMT: sixteen threads, numbered, an arrow from each to its own element. Right, the "
        "tile model: two blocks, an arrow from each to its own tile of eight elements.",
    )


def ragged_row(n: int = 20, block: int = 8) -> Picture:
    """A row of n elements under tiles of `block`: the last one reaches past the end."""
    from matplotlib.patches import Rectangle

    figure, axes = canvas(8, 1.6)
    tiles = -(-n // block)
    for i in range(tiles * block):
        inside = i < n
        axes.add_patch(
            Rectangle(
                (i, 0),
                1,
                1,
                fc=(SKY, YELLOW, GREEN)[i // block % 3] if inside else "white",
                ec="black",
                hatch="" if inside else "///",
            )
        )
        axes.text(
            i + 0.5,
            0.5,
            str(i),
            ha="center",
            va="center",
            fontsize=8,
            bbox=None if inside else {"fc": "white", "ec": "none", "pad": 1},
        )
    for t in range(tiles):
        axes.text(t * block + block / 2, 1.25, f"block {t}", ha="center", fontsize=10)
    axes.set(xlim=(-0.1, tiles * block + 0.1), ylim=(-0.1, 1.7))
    axes.axis("off")
    return show(
        figure,
        f"{n} elements in tiles of {block}: {tiles} blocks; the last {tiles * block - n} positions of the last tile, hatched, lie past the end.",
    )


def block_order(tiles: int = 8, group: int = 4, together: int = 16) -> Picture:
    """Which tiles of the result the first blocks compute, row by row and in groups, and what they load."""
    figure, axes = canvas(8, 3.4, columns=2)
    texts = []
    for ax, size, title in ((axes[0], 1, "row by row"), (axes[1], group, f"in groups of {group} rows")):
        order = []
        for pid in range(tiles * tiles):
            band, inside = pid // (size * tiles), pid % (size * tiles)
            rows = min(tiles - band * size, size)
            order.append((band * size + inside % rows, inside // rows))
        first = order[:together]
        labels = {tile: str(number) for number, tile in enumerate(order)}
        tile_map(ax, (tiles, tiles), (1, 1), colours=dict.fromkeys(first, ORANGE), labels=labels)
        loads = len({i for i, _ in first}) + len({j for _, j in first})
        ax.set_title(f"{title}: the first {together} blocks\nneed {loads} rows and columns of tiles", fontsize=10)
        texts.append(f"{title}, the first {together} blocks need {loads} rows and columns of tiles")
    return show(
        figure,
        f"Two maps of {tiles} by {tiles} tiles, numbered in the order of their blocks; " + "; ".join(texts) + ".",
    )


def softmax_row() -> Picture:
    """One row of numbers, and what subtracting the maximum and normalising make of it."""
    import math

    row = [2.0, 1.0, 4.0, 3.0]
    exponentials = [math.exp(x - max(row)) for x in row]
    figure, axes = canvas(9, 2.4, columns=3)
    panels = (
        ("x", row),
        ("exp(x - max)", exponentials),
        ("divided by the sum", [e / sum(exponentials) for e in exponentials]),
    )
    for ax, (title, values) in zip(axes, panels, strict=True):
        ax.bar(range(4), values, color=[SKY, YELLOW, ORANGE, GREEN], edgecolor="black")
        for i, value in enumerate(values):
            ax.text(i, value, f"{value:.2f}", ha="center", va="bottom", fontsize=9)
        ax.set(title=title, xticks=range(4), ylim=(0, max(values) * 1.2))
        ax.spines[["top", "right"]].set_visible(False)
    return show(
        figure,
        "Three bar charts of one row: x = 2, 1, 4, 3; its exponentials after subtracting 4, of which the largest is 1; the same divided by their sum, adding up to 1.",
    )


def causal_tiles(length: int = 8, tile: int = 2) -> Picture:
    """Which tiles of the logits a causal kernel computes, masks and skips."""
    figure, axes = canvas(4.6, 3.6)
    count = length // tile
    colours, labels = {}, {}
    for i in range(count):
        for j in range(count):
            word, colour = ("whole", SKY) if j < i else ("masked", YELLOW) if j == i else ("skipped", "white")
            colours[i, j], labels[i, j] = colour, word
    tile_map(axes, (length, length), (tile, tile), colours=colours, labels=labels)
    axes.set_title("queries down, keys across", fontsize=10)
    return show(
        figure,
        f"A map of {count} by {count} tiles of logits: below the diagonal computed whole, on it masked, above it skipped.",
    )


def matmul_walk(tiles: int = 4, step: int = 1) -> Picture:
    """One block's tile of the result, and the tiles of a and b that it has read, reads now and will read."""
    figure, axes = canvas(9, 3.2, columns=3)
    row, column = 1, 2
    words = {-1: ("read", SKY), 0: ("now", ORANGE), 1: ("later", "white")}
    for ax, name in zip(axes, ("a", "b", "out"), strict=True):
        colours, labels = {}, {}
        for k in range(tiles):
            tile = (row, k) if name == "a" else (k, column)
            labels[tile], colours[tile] = words[(k > step) - (k < step)]
        if name == "out":
            colours, labels = {(row, column): YELLOW}, {(row, column): "acc"}
        tile_map(ax, (tiles, tiles), (1, 1), colours=colours, labels=labels)
        ax.set_title({"a": "a: K runs to the right", "b": "b: K runs down", "out": "out"}[name], fontsize=10)
    return show(
        figure,
        f"Three matrices of {tiles} by {tiles} tiles. For the tile of out in row {row} and column {column}, called acc, "
        f"the block walks along row {row} of a and down column {column} of b, one tile of each in a step: "
        f"{step} read already, one now, {tiles - step - 1} later.",
    )


def attention_walk(tiles: int = 4, step: int = 1) -> Picture:
    """One block's rows of query, the key and value tiles it walks along, and what it keeps meanwhile."""
    figure, (left, right) = canvas(9, 3.4, columns=2)
    row = 1
    words = {-1: ("done", SKY), 0: ("now", ORANGE), 1: ("later", "white")}
    marks = {(row, j): words[(j > step) - (j < step)] for j in range(tiles)}
    colours, labels = {t: m[1] for t, m in marks.items()}, {t: m[0] for t, m in marks.items()}
    tile_map(left, (tiles, tiles), (1, 1), colours=colours, labels=labels)
    left.set_title("logits: queries down, keys across\none tile exists at a time", fontsize=10)
    from matplotlib.patches import Rectangle

    parts = (("q", 3.0, SKY), ("m_i", 0.9, YELLOW), ("l_i", 0.9, YELLOW), ("acc", 3.0, YELLOW))
    x = 0.0
    for name, width, colour in parts:
        right.add_patch(Rectangle((x, 0), width, 2, fc=colour, ec="black", lw=1.2))
        right.text(x + width / 2, 1, name, ha="center", va="center", fontsize=10)
        x += width + 0.4
    right.set(xlim=(-0.9, x), ylim=(3.4, -1.4), aspect="equal")
    right.text(-0.25, 1, "BLOCK_M rows", rotation=90, ha="center", va="center", fontsize=9)
    right.set_title("what the block keeps from tile to tile", fontsize=10)
    right.axis("off")
    return show(
        figure,
        f"Left: a map of {tiles} by {tiles} tiles of logits; the block of row {row} goes along it, and only the tile it works "
        "on exists. Right: what the block keeps: its rows of query, and for each row the maximum m_i, the sum l_i and "
        "the weighted sum of values acc.",
    )


def online_softmax(logits: tuple[float, ...] = (1.0, 3.0, 2.0, 2.0, 5.0, 1.0, 4.0, 6.0), tile: int = 2) -> Picture:
    """A row of logits, tile by tile: the running maximum, and by how much each new maximum shrinks the sums."""
    import math

    figure, axes = canvas(8, 3.0)
    axes.bar(range(len(logits)), logits, color=SKY, edgecolor="black", width=0.7)
    largest, texts = -math.inf, []
    top = max(logits)
    for start in range(0, len(logits), tile):
        new = max(largest, *logits[start : start + tile])
        alpha = math.exp(largest - new)
        axes.plot([start - 0.5, start + tile - 0.5], [new, new], color=VERMILION, lw=2.5)
        axes.text(start + tile / 2 - 0.5, top + 0.9, f"m_i = {new:g}\nalpha = {alpha:.3f}", ha="center", fontsize=9)
        if start:
            axes.axvline(start - 0.5, ls=":", color="black", lw=1)
        texts.append(f"m_i {new:g}, alpha {alpha:.3f}")
        largest = new
    axes.set(
        xlim=(-0.5, len(logits) - 0.5), ylim=(0, top + 2.6), xticks=range(len(logits)), ylabel="logit", xlabel="key"
    )
    axes.spines[["top", "right"]].set_visible(False)
    return show(
        figure,
        f"Bars of {len(logits)} logits in tiles of {tile}, the running maximum as a line above them, and the factor alpha by "
        "which the sums shrink at each tile: " + "; ".join(texts) + ".",
    )


def accesses(recorded, parameter: str, shape: tuple[int, ...], kind: str = "store", *, title: str = "") -> Picture:
    """Which block touches which element of one array, from what the sanitizer recorded.

    Args:
        recorded: accesses, as ``tilekit.cutile_interpreter.sanitizer.trace`` gives them.
        parameter: the array's name in the kernel.
        shape: the array's shape, of one or two dimensions.
        kind: ``"load"``, ``"store"`` or ``"atomic"``.

    An element has the colour and the number of its block. Where several blocks meet, it is hatched and has all their
    numbers; where none comes, it is white.

    Raises:
        ValueError: `shape` has more than two dimensions.
    """
    if len(shape) not in (1, 2):
        raise ValueError(f"accesses: shape must have one or two dimensions; got {tuple(shape)}")
    from matplotlib.patches import Rectangle

    rows, columns = (1, *shape)[-2:]
    blocks: dict[tuple[int, int], dict] = {(i, j): {} for i in range(rows) for j in range(columns)}
    chosen = [access for access in recorded if (access.kind, access.parameter) == (kind, parameter)]
    rank = max((axis + 1 for access in chosen for axis, n in enumerate(access.block) if n), default=1)
    names = {access.block: ",".join(map(str, access.block[:rank])) for access in chosen}
    for access in chosen:
        for index in access.indices.tolist():
            blocks[tuple((0, *index)[-2:])][access.block] = names[access.block]
    colours = dict(zip(sorted(names), (SKY, YELLOW, GREEN, PURPLE, ORANGE, GREY) * len(names), strict=False))
    figure, axes = canvas(min(10, 1 + 0.45 * columns), 0.8 + 0.45 * rows)
    for (i, j), here in blocks.items():
        face = colours[min(here)] if here else "white"
        axes.add_patch(Rectangle((j, i), 1, 1, fc=face, ec="black", hatch="///" if len(here) > 1 else ""))
        box = {"fc": "white", "ec": "none", "pad": 1} if len(here) > 1 else None
        axes.text(j + 0.5, i + 0.5, "\n".join(here.values()), ha="center", va="center", fontsize=8, bbox=box)
    axes.set(xlim=(-0.1, columns + 0.1), ylim=(rows + 0.1, -0.1), aspect="equal", xticks=[], yticks=[])
    axes.axis("off")
    verb = {"load": "reads", "store": "writes", "atomic": "updates"}[kind]
    axes.set_title(title or f"which block {verb} each element of {parameter}", fontsize=10)
    shared, none = (
        [index for index, here in blocks.items() if test(here)] for test in (lambda h: len(h) > 1, lambda h: not h)
    )

    def said(found, words):
        first = ", ".join(map(str, found[0][-len(shape) :])) if found else ""
        return f"{len(found)} {words}, the first at [{first}]" if found else f"none {words}"

    return show(
        figure,
        f"{title + ': t' if title else 'T'}he {rows * columns} elements of {parameter}, each with the number of the block that "
        f"{verb} it, of {len(names)}: {said(shared, 'shared by several blocks')}; {said(none, 'with no block')}.",
    )


def strides(rows: int = 2, columns: int = 3) -> Picture:
    """One piece of memory, the matrix it holds, and its transpose, which reads the same memory in another order."""
    from matplotlib.patches import Rectangle

    count = rows * columns
    figure, (left, middle, right) = canvas(9, 2.8, columns=3)
    for k in range(count):
        left.add_patch(Rectangle((k, 0), 1, 1, fc=(SKY, YELLOW, GREEN)[k // columns % 3], ec="black"))
        left.text(k + 0.5, 0.5, str(k), ha="center", va="center", fontsize=11)
    left.set(xlim=(-0.1, count + 0.1), ylim=(2, -1), aspect="equal")
    left.set_title("memory, from front to back", fontsize=10)
    views = (
        (middle, (rows, columns), (columns, 1), "x"),
        (right, (columns, rows), (1, columns), "x.t()"),
    )
    for axes, shape, stride, name in views:
        places = {(i, j): i * stride[0] + j * stride[1] for i in range(shape[0]) for j in range(shape[1])}
        colours = {index: (SKY, YELLOW, GREEN)[k // columns % 3] for index, k in places.items()}
        tile_map(axes, shape, (1, 1), colours=colours, labels={index: str(k) for index, k in places.items()})
        axes.set_title(f"{name}: shape {shape}, strides {stride}", fontsize=10)
    left.axis("off")
    return show(
        figure,
        f"Left, {count} numbers in memory, numbered from front to back. Middle, the {rows} by {columns} matrix x that they "
        f"form: its rows follow one another in memory. Right, x.t(), {columns} by {rows}: the same places in memory, so "
        f"that a step along a row jumps by {columns} and a step down goes to the next number.",
    )


def fusion() -> Picture:
    """The traffic of x * w + b and GELU between memory and registers: as three kernels, and as one."""
    from matplotlib.patches import Rectangle

    figure, (left, right) = canvas(9.5, 2.9, columns=2)
    chains = (
        (left, ("x * w", "+ b", "gelu"), "three kernels: six crossings"),
        (right, ("x * w + b, gelu",), "one kernel: two crossings"),
    )
    for axes, kernels, title in chains:
        width = 12 / len(kernels)
        axes.add_patch(Rectangle((0, 0), 12, 0.8, fc=SKY, ec="black"))
        axes.text(6, 0.4, "device memory", ha="center", va="center", fontsize=10)
        for number, name in enumerate(kernels):
            middle, half = (number + 0.5) * width, 2.6 if len(kernels) == 1 else 1.6
            axes.add_patch(Rectangle((middle - half, 2.4), 2 * half, 0.9, fc=YELLOW, ec="black"))
            axes.text(middle, 2.85, name, ha="center", va="center", fontsize=10)
            for x, start, end, word, side in (
                (middle - half * 0.6, 0.85, 2.35, "read", "right"),
                (middle + half * 0.6, 2.35, 0.85, "write", "left"),
            ):
                axes.annotate("", (x, end), (x, start), arrowprops={"arrowstyle": "-|>", "color": "black", "lw": 1.5})
                axes.text(x + (-0.12 if side == "right" else 0.12), 1.6, word, ha=side, va="center", fontsize=8)
        axes.set(xlim=(-0.1, 12.1), ylim=(-0.1, 3.6))
        axes.axis("off")
        axes.set_title(title, fontsize=11)
    return show(
        figure,
        "Kernels as boxes above device memory. Left, three kernels, x * w, + b and gelu: each reads the array from memory "
        "and writes its result back, six crossings. Right, one kernel: it reads x once and writes the result once.",
    )


def repeated_row(rows: int = 6, columns: int = 10, tile: tuple[int, int] = (2, 4)) -> Picture:
    """A matrix in tiles, and a vector that repeats for each of its rows: which piece of it a block reads."""
    from matplotlib.patches import Rectangle

    figure, axes = canvas(7, 4)
    palette = (SKY, YELLOW, GREEN)
    down, across = -(-rows // tile[0]), -(-columns // tile[1])
    colours = {(i, j): palette[j % 3] for i in range(down) for j in range(across)}
    tile_map(axes, (rows, columns), tile, colours=colours, labels={(i, j): f"block {i}, {j}" for i, j in colours})
    below, end = rows + 1, across * tile[1]
    for j in range(across):
        left, width = j * tile[1], min(tile[1], columns - j * tile[1])
        axes.add_patch(Rectangle((left, below), tile[1], 1, fill=False, ls="--", ec=GREY, lw=1))
        axes.add_patch(Rectangle((left, below), width, 1, fc=palette[j % 3], ec="black", lw=1.2))
        axes.text(left + width / 2, below + 0.5, f"w[{left}:{left + width}]", ha="center", va="center", fontsize=8)
    axes.text(-0.4, rows / 2, "x", ha="right", va="center", fontsize=12)
    axes.text(-0.4, below + 0.5, "w", ha="right", va="center", fontsize=12)
    axes.set(xlim=(-1, end + 0.2), ylim=(below + 1.2, -0.2))
    return show(
        figure,
        f"A matrix x of {rows} by {columns} in tiles of {tile[0]} by {tile[1]}, above a single row w cut into {across} "
        "pieces. All blocks of one column of tiles have the colour of the one piece of w that they read. The last "
        "column of tiles and the last piece reach past the end, dashed.",
    )


def gelu_forms() -> Picture:
    """GELU's exact and tanh forms, and their difference."""
    import math

    z = [i / 100 for i in range(-500, 501)]
    exact = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in z]
    tanh = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in z]
    figure, (left, right) = canvas(9, 2.8, columns=2)
    left.plot(z, exact, color=BLUE, lw=4, alpha=0.6, label="exact")
    left.plot(z, tanh, color="black", ls="--", lw=1.2, label="tanh form")
    left.set(title="GELU", xlabel="z")
    left.legend(fontsize=9)
    right.plot(z, [1000 * (t - e) for t, e in zip(tanh, exact, strict=True)], color=VERMILION, lw=1.8)
    right.set(title="tanh form minus exact, in thousandths", xlabel="z")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return show(
        figure,
        "Left: GELU from -5 to 5; it is near 0 for negative z, near z for positive z, and the two forms lie on each "
        "other. Right: the tanh form minus the exact one, a wave that stays within half a thousandth.",
    )


def padded_rows(rows: int = 4, columns: int = 5, block: int = 8) -> Picture:
    """Softmax's rows: one block each, and padding of -inf up to the tile's width."""
    from matplotlib.patches import Rectangle

    figure, axes = canvas(7, 2.6)
    for i in range(rows):
        for j in range(block):
            inside = j < columns
            face = (SKY, YELLOW)[i % 2] if inside else "white"
            axes.add_patch(Rectangle((j, i), 1, 0.86, fc=face, ec="black", ls="-" if inside else "--"))
            axes.text(j + 0.5, i + 0.43, f"x[{i}, {j}]" if inside else "-inf", ha="center", va="center", fontsize=8)
        axes.text(-0.15, i + 0.43, f"block {i}", ha="right", va="center", fontsize=10)
    axes.set(xlim=(-1.4, block + 0.1), ylim=(rows, -0.1))
    axes.axis("off")
    return show(
        figure,
        f"A matrix of {rows} rows and {columns} columns. Each row belongs to one block, whose tile is {block} wide; the "
        f"{block - columns} positions past the end of a row, dashed, hold -inf.",
    )


def running_softmax() -> Picture:
    """The walk along a row in tiles, with the maximum so far and the sum relative to it."""
    import math

    row, width = [2.0, 1.0, 4.0, 3.0, 0.0, 4.0], 2
    figure, axes = canvas(8.5, 2.7)
    from matplotlib.patches import Rectangle

    largest, total, words = -math.inf, 0.0, []
    for step in range(len(row) // width):
        tile = row[step * width : (step + 1) * width]
        new = max(largest, *tile)
        factor = math.exp(largest - new)
        total = total * factor + sum(math.exp(x - new) for x in tile)
        for k, value in enumerate(tile):
            x = step * 4 + k * 1.6 + 0.4
            axes.add_patch(Rectangle((x, 0), 1.6, 0.8, fc=(SKY, YELLOW, GREEN)[step], ec="black"))
            axes.text(x + 0.8, 0.4, f"{value:.0f}", ha="center", va="center", fontsize=11)
        axes.text(step * 4 + 2, -0.3, f"tile {step}", ha="center", fontsize=10)
        axes.text(step * 4 + 2, 1.5, f"largest {new:.0f}\nsum {total:.3f}", ha="center", va="center", fontsize=10)
        if step:
            axes.annotate(
                "", (step * 4 + 0.85, 1.5), (step * 4 - 0.85, 1.5), arrowprops={"arrowstyle": "-|>", "lw": 1.5}
            )
            axes.text(step * 4, 1.4, f"sum times\n{factor:.3f}", ha="center", va="bottom", fontsize=8)
        rescaled = f"the old sum times {factor:.3f}, " if step else ""
        words.append(f"Tile {step}, {tile[0]:.0f} and {tile[1]:.0f}: {rescaled}largest {new:.0f}, sum {total:.3f}")
        largest = new
    axes.set(xlim=(0, 12), ylim=(2.1, -0.6))
    axes.axis("off")
    return show(
        figure, "A row of six numbers in three tiles of two, and what is kept after each. " + ". ".join(words) + "."
    )


def executors() -> Picture:
    """How Thunder hands the operations of a trace to executors: each in turn is asked, and the first that can takes it."""
    from matplotlib.patches import Rectangle

    figure, axes = canvas(9.5, 2.9)
    boxes = (
        (0.0, "your function", "linear\nattention\ngelu", SKY),
        (4.2, "executor 1", "takes attention,\nif it has no mask", ORANGE),
        (8.4, "executor 2", "takes anything,\nwith torch's own", YELLOW),
        (12.6, "final trace", "torch.linear\nmy_attention\ntorch.gelu", SKY),
    )
    for x, title, text, colour in boxes:
        axes.add_patch(Rectangle((x, 0.6), 3.0, 1.9, fc=colour, ec="black"))
        axes.text(x + 1.5, 2.2, title, ha="center", va="center", fontsize=10, weight="bold")
        axes.text(x + 1.5, 1.3, text, ha="center", va="center", fontsize=9)
    for start, end, word in ((3.0, 4.2, "asks"), (7.2, 8.4, "no"), (11.4, 12.6, "yes")):
        axes.annotate("", (end, 1.55), (start, 1.55), arrowprops={"arrowstyle": "-|>", "color": "black", "lw": 1.5})
        axes.text((start + end) / 2, 1.75, word, ha="center", fontsize=9)
    axes.plot((5.7, 5.7, 14.1), (0.6, 0.2, 0.2), color="black", lw=1.5)
    axes.annotate("", (14.1, 0.6), (14.1, 0.2), arrowprops={"arrowstyle": "-|>", "color": "black", "lw": 1.5})
    axes.text(9.9, -0.15, "yes: its own operator takes the operation's place", ha="center", fontsize=9)
    axes.set(xlim=(-0.1, 15.7), ylim=(-0.3, 2.6))
    axes.axis("off")
    return show(
        figure,
        "Four boxes from left to right. Your function's operations, linear, attention and gelu, go to executor 1, which takes "
        "attention if it has no mask: its operator my_attention stands in the final trace. What it answers no to goes to "
        "executor 2, which takes anything, with torch's own: torch.linear and torch.gelu.",
    )


def gpt(shares: Mapping[str, float]) -> Picture:
    """A GPT and one of its blocks, with the kernel that computes each part, and each kernel's share of the FLOPs.

    `shares` maps the five kernels' names to their parts of 1.
    """
    from matplotlib.patches import FancyBboxPatch

    colours = dict(
        zip(("matmul", "flash_attention", "fused_gelu", "vadd", "softmax"), (SKY, ORANGE, GREEN, YELLOW, PURPLE))
    )
    figure, (left, right) = canvas(11.5, 3.3, columns=2)
    left.get_gridspec().set_width_ratios((3.2, 1))
    model = (
        ("tokens", ""), ("embedding\n+ position", "vadd"), ("blocks", "as below"), ("norm", ""), ("logits", "matmul"),
        ("probabilities", "softmax"), ("loss", ""),
    )  # fmt: skip
    block = (
        ("norm", ""), ("q, k, v", "matmul"), ("attention", "flash_attention"), ("out", "matmul"), ("+ x", "vadd"),
        ("norm", ""), ("up", "matmul"), ("gelu", "fused_gelu"), ("down", "matmul"), ("+ x", "vadd"),
    )  # fmt: skip
    for y, boxes, width in ((3.0, model, 10 / 7), (0.5, block, 1.0)):
        for i, (text, kernel) in enumerate(boxes):
            x, face = i * width, colours.get(kernel, "white")
            box = FancyBboxPatch(
                (x + 0.08, y), width - 0.16, 1.0, boxstyle="round,pad=0,rounding_size=0.08", fc=face, ec="black"
            )
            left.add_patch(box)
            left.text(x + width / 2, y + 0.5, text, ha="center", va="center", fontsize=9)
            kernel = kernel.replace("_", "_\n") if width == 1 else kernel
            left.text(x + width / 2, y - 0.08, kernel, ha="center", va="top", fontsize=8, style="italic")
            if i:
                arrow = {"arrowstyle": "-|>", "color": "black", "lw": 1}
                left.annotate("", (x + 0.09, y + 0.5), (x - 0.09, y + 0.5), arrowprops=arrow)
    # What a block adds to comes from before its norm.
    for start, end in ((0.0, 4.5), (4.95, 9.5)):
        left.plot((start, start, end), (1.0, 1.75, 1.75), color="black", lw=1)
        left.annotate(
            "", (end, 1.5), (end, 1.75), arrowprops={"arrowstyle": "-|>", "color": "black", "lw": 1, "shrinkA": 0}
        )
    left.text(-0.15, 4.2, "the model", fontsize=10, weight="bold")
    left.text(-0.15, 1.95, "a block", fontsize=10, weight="bold")
    left.set(xlim=(-0.2, 10.1), ylim=(-0.15, 4.5))
    left.axis("off")
    order = sorted(shares, key=shares.get, reverse=True)
    for position, name in enumerate(order):
        right.barh(position, shares[name], color=colours[name], edgecolor="black", height=0.62)
        right.annotate(
            f"{shares[name]:.1%}", (shares[name], position), (4, 0), textcoords="offset points", va="center", fontsize=9
        )
    right.set(yticks=range(len(order)), yticklabels=order, xticks=(), xlim=(0, 1.25))
    right.set_title("share of the FLOPs", fontsize=10)
    right.invert_yaxis()
    right.spines[["top", "right", "bottom"]].set_visible(False)
    return show(
        figure,
        "The model, from left to right: tokens; embedding plus position by vadd; blocks; norm; logits by matmul; "
        "probabilities by softmax; loss. A block: norm, q, k, v by matmul, attention by flash_attention, out by matmul, plus x by vadd; then "
        "norm, up by matmul, gelu by fused_gelu, down by matmul, plus x by vadd. Shares of the FLOPs: "
        + ", ".join(f"{name} {shares[name]:.1%}" for name in order)
        + ".",
    )
