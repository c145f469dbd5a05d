"""Draws each structure from the result of `sparsemap`: the mean, and the assignments that it is the mean of.

`docs/conf.py` calls `write`. To look at the drawings alone, run ``python docs/drawings.py FOLDER``.
"""

from __future__ import annotations

import argparse
import math
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Polygon, Rectangle
from matplotlib.path import Path
from torch import Tensor

import sparsum as sp

#: Readable on white and on nearly black.
GREY, ACCENT = "#7d8590", "#3f86d2"
#: The largest size of a unit and of a drawing, in inches.
_UNIT, _WIDEST = 0.33, 7.3
#: The width between panels in units, and the sizes of text in points.
_BETWEEN, _FONT, _SMALL = 2.4, 9.0, 8.0
#: The widths of the lines of parts with probabilities of 0 and 1, in points.
_THIN, _THICK = 0.9, 3.6


@dataclass(frozen=True)
class Canvas:
    """A place on the axes; all sizes are in units of a cell."""

    axes: Axes
    x: float = 0.0
    y: float = 0.0

    def at(self, x: float, y: float = 0.0) -> Canvas:
        """A canvas whose origin is at this place."""
        return Canvas(self.axes, self.x + x, self.y + y)

    def text(self, x: float, y: float, what: str, *, size: float = _FONT, **options: Any) -> None:
        """Text in the middle of a place."""
        options = {"ha": "center", "va": "center", "color": GREY, **options}
        self.axes.text(self.x + x, self.y + y, what, size=size, **options)

    def cell(self, x: float, y: float, value: float, *, width: float = 1.0) -> None:
        """A cell that is filled from the bottom to the value."""
        place, gap = (self.x + x + 0.06, self.y + y + 0.06), 0.12
        self.axes.add_patch(Rectangle(place, width - gap, (1 - gap) * value, facecolor=ACCENT, linewidth=0))
        self.axes.add_patch(Rectangle(place, width - gap, 1 - gap, fill=False, edgecolor=GREY, linewidth=0.9))

    def node(self, x: float, y: float, value: float = 0.0, *, radius: float = 0.2) -> None:
        """A node whose area is filled in proportion to the value."""
        place = (self.x + x, self.y + y)
        if value > 0:
            self.axes.add_patch(Circle(place, radius * math.sqrt(value), facecolor=ACCENT, linewidth=0, zorder=3))
        self.axes.add_patch(Circle(place, radius, fill=False, edgecolor=GREY, linewidth=0.9, zorder=3))

    def edge(
        self,
        points: Sequence[tuple[float, float]],  # of a line, or of a Bezier curve
        value: float,
        *,
        arrow: bool = False,
        dashed: bool = False,
        hidden: bool = False,
    ) -> None:
        """A line as wide as the value; thin and grey, or not drawn if hidden, for 0."""
        if value <= 0 and hidden:
            return
        codes = [Path.MOVETO, *{2: [Path.LINETO], 4: [Path.CURVE4] * 3}[len(points)]]
        path = Path([(self.x + x, self.y + y) for x, y in points], codes)
        width = _THIN + (_THICK - _THIN) * value if value > 0 else 0.6
        tip = 3.5 + 0.6 * width
        self.axes.add_patch(
            FancyArrowPatch(
                path=path,
                arrowstyle=f"-|>,head_length={tip / 10:.3f},head_width={tip / 20:.3f}" if arrow and value > 0 else "-",
                mutation_scale=10,
                color=ACCENT if value > 0 else GREY,
                alpha=1.0 if value > 0 else 0.45,
                linewidth=width,
                linestyle=(0, (1.6, 0.9)) if dashed else "-",
                capstyle="butt",
                joinstyle="miter",
                shrinkA=0,
                shrinkB=0,
                zorder=2 if value > 0 else 1,
            )
        )


@dataclass(frozen=True)
class Part:
    """What a panel shows: a distribution over assignments, or one of them."""

    vector: Any  # the mean vector, in the shape of scores
    atoms: Tensor  # shape: (n_atoms, *event_shape)
    weights: Tensor  # shape: (n_atoms,)
    scores: Any = None  # for the mean alone


Draw = Callable[[Canvas, Part], None]


@dataclass(frozen=True)
class Drawing:
    """The mean of `sparsemap`, and the atoms whose weighted sum it is."""

    structure: sp.AbstractStructure
    scores: Any
    draw: Draw
    size: tuple[float, float]  # of a panel
    named: Callable[[Tensor], str]  # what to write below an atom
    margin: float = 0.3  # to the left of the mean
    middle: float | None = None  # the height of what stands between panels; by default half of theirs

    def distribution(self) -> sp.SparseDistribution:
        """What is drawn."""
        return sp.sparsemap(self.scores, self.structure)

    def figure(self) -> Figure:
        """The figure; atoms from the most to the least probable."""
        q = self.distribution()
        structure = q.structure  # knows whether the scores have transitions
        assert structure is not None
        order = q.probs.argsort(descending=True, stable=True)
        atoms, probs = q.atoms[order], q.probs[order]
        width, height = self.size
        total = (len(atoms) + 1) * width + len(atoms) * _BETWEEN
        middle = height / 2 if self.middle is None else self.middle
        unit = min(_UNIT, _WIDEST / (self.margin + total + 0.3))
        figure = Figure(figsize=((self.margin + total + 0.3) * unit, (height + 1.1) * unit))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-self.margin, total + 0.3), ylim=(-1.0, height + 0.1))
        axes.set_axis_off()
        canvas = Canvas(axes)
        self.draw(canvas, Part(q.mean, atoms, probs, self.scores))
        canvas.text(width / 2, -0.5, "mean")
        for place in range(len(atoms)):
            atom = atoms[place : place + 1]
            panel = canvas.at((place + 1) * (width + _BETWEEN))
            self.draw(panel, Part(_first(structure.vectors(atom)), atom, torch.ones(1)))
            panel.text(-_BETWEEN / 2, middle, f"{'+' if place else '='} {probs[place]:.2f} \N{MULTIPLICATION SIGN}")
            panel.text(width / 2, -0.5, self.named(atom[0]))
        return figure


def _first(vectors: Any) -> Any:
    return tuple(each[0] for each in vectors) if isinstance(vectors, tuple) else vectors[0]


def _as_list(atom: Tensor) -> str:
    return "[" + ", ".join(f"{value:g}" for value in atom.tolist()) + "]" if atom.ndim else f"{atom:g}"


def _cells(labels: Sequence[str] = (), widths: Sequence[float] = ()) -> Draw:
    """A row of cells for each row of parts, the first one on top, with their scores above those of a single row."""

    def draw(canvas: Canvas, part: Part) -> None:
        rows = part.vector.reshape(-1, part.vector.shape[-1])
        sizes = list(widths) or [1.0] * rows.shape[1]
        for i, row in enumerate(rows.tolist()):
            for j, value in enumerate(row):
                canvas.cell(sum(sizes[:j]), len(rows) - 1 - i, value, width=sizes[j])
        if part.scores is not None and len(rows) == 1:
            for j, score in enumerate(part.scores.tolist()):
                canvas.text(sum(sizes[:j]) + sizes[j] / 2, 1.35, f"{score:g}".replace("-", "\N{MINUS SIGN}"), size=_SMALL)
        for j, label in enumerate(labels):
            canvas.text(sum(sizes[:j]) + sizes[j] / 2, 0.5, label, size=_SMALL, zorder=4)

    return draw


def _chain(tags: Sequence[str], words: Sequence[str], step: float = 1.6) -> Draw:
    """A trellis: tags above each other, transitions between neighbouring positions."""

    def draw(canvas: Canvas, part: Part) -> None:
        unary, transition = part.vector
        for i, j in torch.cartesian_prod(*map(torch.arange, unary.shape)).tolist():
            canvas.node(0.9 + i * step, j + 0.9, float(unary[i, j]))
        for i, a, b in torch.cartesian_prod(*map(torch.arange, transition.shape)).tolist():
            x = 0.9 + i * step
            canvas.edge([(x + 0.2, a + 0.9), (x + step - 0.2, b + 0.9)], float(transition[i, a, b]))
        for i, word in enumerate(words):
            canvas.text(0.9 + i * step, 0.15, word)
        for j, tag in enumerate(tags):
            canvas.text(0.35, j + 0.9, tag, ha="right")

    return draw


def _heads(words: Sequence[str], step: float, height: float) -> Draw:
    """Words with an arrow from each head to its modifier, and from above for the root."""

    def draw(canvas: Canvas, part: Part) -> None:
        n = len(words)
        for i, word in enumerate(words):
            canvas.text(step * (i + 0.5), 0.2, word)
        for modifier, head in torch.cartesian_prod(torch.arange(n), torch.arange(n)).tolist():
            value = float(part.vector[modifier, head])
            x, base = step * (modifier + 0.5), 0.55
            if modifier == head:
                canvas.edge([(x, height), (x, base)], value, arrow=True, hidden=True)
                continue
            side = 1 if head > modifier else -1
            span = abs(head - modifier)
            inwards = 0.74 - 0.18 * span - (0.08 if side > 0 else 0.0)  # so that arcs at a word do not cross
            x0, x1 = step * (head + 0.5) - side * inwards, x + side * inwards
            top = base + (0.45 + 0.68 * span + (0.2 if side > 0 else 0.0)) * 4 / 3
            canvas.edge([(x0, base), (x0, top), (x1, top), (x1, base)], value, arrow=True, hidden=True)

    return draw


def _spans(words: Sequence[str], step: float) -> Draw:
    """The chart of a binary tree: a node for each span, above the middle of its words, and lines to its two parts."""

    def place(first: int, last: int) -> tuple[float, float]:
        return step * ((first + last + 1) / 2), 0.85 + 0.85 * (last - first)

    def draw(canvas: Canvas, part: Part) -> None:
        n = len(words)
        lines: dict[tuple[int, int, int, int], float] = {}
        for atom, weight in zip(part.atoms.tolist(), part.weights.tolist(), strict=True):
            spans = [divmod(node, n) for node in atom]
            for first, last in spans:
                around = [(i, j) for i, j in spans if i <= first and last <= j and (i, j) != (first, last)]
                if around:
                    i, j = min(around, key=lambda span: span[1] - span[0])
                    key = (i, j, first, last)
                    lines[key] = lines.get(key, 0.0) + weight
        for (i, j, first, last), weight in lines.items():
            (x0, y0), (x1, y1) = place(i, j), place(first, last)
            far = math.hypot(x1 - x0, y1 - y0) / 0.2
            dx, dy = (x1 - x0) / far, (y1 - y0) / far
            canvas.edge([(x0 + dx, y0 + dy), (x1 - dx, y1 - dy)], weight)
        for first in range(n):
            for last in range(first, n):
                if part.vector[first, last] > 0:
                    canvas.node(*place(first, last), float(part.vector[first, last]))
        for i, word in enumerate(words):
            canvas.text(step * (i + 0.5), 0.15, word)

    return draw


def _pairs(rows: Sequence[str], columns: Sequence[str], width: float) -> Draw:
    """Rows on the left, columns on the right, a line for each pair."""

    def draw(canvas: Canvas, part: Part) -> None:
        most = max(len(rows), len(columns))

        def y(i: int, n: int) -> float:
            return 0.5 + (most - n) / 2 + (n - 1 - i)

        for i, row in enumerate(rows):
            canvas.node(0.7, y(i, len(rows)), radius=0.1)
            canvas.text(0.25, y(i, len(rows)), row)
            for j in range(len(columns)):
                ends = [(0.8, y(i, len(rows))), (width - 0.8, y(j, len(columns)))]
                canvas.edge(ends, float(part.vector[i, j]))
        for j, column in enumerate(columns):
            canvas.node(width - 0.7, y(j, len(columns)), radius=0.1)
            canvas.text(width - 0.25, y(j, len(columns)), column)

    return draw


def _ranks(items: Sequence[str]) -> Draw:
    """Items side by side, each as high as its rank."""

    def draw(canvas: Canvas, part: Part) -> None:
        n = len(items)
        for rank in range(n):
            canvas.edge([(0.5, 0.8 + 0.8 * rank), (n + 0.5, 0.8 + 0.8 * rank)], 0.0)
            canvas.text(0.2, 0.8 + 0.8 * rank, str(rank))
        for i, (item, rank) in enumerate(zip(items, part.vector.tolist(), strict=True)):
            canvas.text(i + 1.0, 0.1, item)
            canvas.axes.add_patch(
                Circle((canvas.x + i + 1.0, canvas.y + 0.8 + 0.8 * rank), 0.2, facecolor=ACCENT, linewidth=0, zorder=3)
            )

    return draw


def _network(places: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Draw:
    """Vertices, and an arrow for each edge."""

    def draw(canvas: Canvas, part: Part) -> None:
        for (tail, head), value in zip(edges, part.vector.tolist(), strict=True):
            (x0, y0), (x1, y1) = places[tail], places[head]
            far = math.hypot(x1 - x0, y1 - y0)
            dx, dy = 0.24 * (x1 - x0) / far, 0.24 * (y1 - y0) / far
            canvas.edge([(x0 + dx, y0 + dy), (x1 - dx, y1 - dy)], value, arrow=True)
        for vertex, (x, y) in enumerate(places):
            canvas.node(x, y, radius=0.24)
            canvas.text(x, y, str(vertex), size=_SMALL)

    return draw


def _segments(words: Sequence[str], labels: Sequence[str], step: float) -> Draw:
    """Arcs over the segments: those of the first label above the words, those of the second below."""

    def draw(canvas: Canvas, part: Part) -> None:
        middle = 1.75
        for i, word in enumerate(words):
            canvas.text(step * (i + 0.5), middle, word)
        for i in range(len(words) + 1):
            canvas.edge([(step * i, middle - 0.3), (step * i, middle + 0.3)], 0.0)
        length, max_width, n_labels = part.vector.shape
        for start in range(length):
            for width in range(1, min(max_width, length - start) + 1):
                for label in range(n_labels):
                    side = 1 if label == 0 else -1
                    x0, x1 = step * start + 0.08, step * (start + width) - 0.08
                    base, top = middle + side * 0.45, middle + side * (0.45 + (0.35 + 0.3 * width) * 4 / 3)
                    value = float(part.vector[start, width - 1, label])
                    canvas.edge([(x0, base), (x0, top), (x1, top), (x1, base)], value, hidden=True)
        if part.scores is not None:
            canvas.text(-0.25, middle + 0.8, labels[0], ha="right")
            canvas.text(-0.25, middle - 0.8, labels[1], ha="right")

    return draw


def _grid(rows: Sequence[str], columns: Sequence[str] = ()) -> Draw:
    """A matrix of cells with names of its rows and columns."""

    def draw(canvas: Canvas, part: Part) -> None:
        _cells()(canvas.at(0.6, 0.0), part)
        for i, row in enumerate(rows):
            canvas.text(0.25, len(rows) - 0.5 - i, row)
        for j, column in enumerate(columns):
            canvas.text(j + 1.1, len(rows) + 0.35, column, size=_SMALL)

    return draw


def _diagram(structure: sp.DecisionDiagram, names: Sequence[str]) -> Draw:
    """The nodes of a diagram, one level for each bit; lines are solid where the bit is 1, and dashed where it is 0."""
    graph = structure.graph
    assert graph.parts is not None
    edges = list(zip(graph.tails.tolist(), graph.heads.tolist(), graph.parts.tolist(), strict=True))
    depth = {edges[0][0]: 0}
    for tail, head, _ in edges:
        depth[head] = depth[tail] + 1
    levels = [[v for v in depth if depth[v] == level] for level in range(len(names) + 1)]
    places = {
        v: (1.9 + (i - (len(level) - 1) / 2) * 1.5, 0.4 + 1.1 * (len(names) - depth[v]))
        for level in levels
        for i, v in enumerate(level)
    }

    def draw(canvas: Canvas, part: Part) -> None:
        values = [0.0] * len(edges)
        for atom, weight in zip(part.atoms.tolist(), part.weights.tolist(), strict=True):
            vertex = edges[0][0]
            for bit, value in enumerate(atom):
                wanted = bit if value == 1 else len(names)
                number = next(i for i, (tail, _, p) in enumerate(edges) if tail == vertex and p == wanted)
                values[number] += weight
                vertex = edges[number][1]
        for (tail, head, p), value in zip(edges, values, strict=True):
            (x0, y0), (x1, y1) = places[tail], places[head]
            bend = 0.0
            if sum(t == tail and h == head for t, h, _ in edges) > 1:
                bend = 0.3 if p < len(names) else -0.3
            middle = [((2 * x0 + x1) / 3 + bend, (2 * y0 + y1) / 3), ((x0 + 2 * x1) / 3 + bend, (y0 + 2 * y1) / 3)]
            canvas.edge([(x0, y0 - 0.16), *middle, (x1, y1 + 0.16)], value, dashed=p == len(names))
        for x, y in places.values():
            canvas.node(x, y, radius=0.16)
        for level, name in enumerate(names):
            canvas.text(0.2, 0.4 + 1.1 * (len(names) - level), name)

    return draw


def _tensor(*rows: Sequence[float]) -> Tensor:
    return torch.tensor(rows[0] if len(rows) == 1 else rows, dtype=torch.float64)


def _sentence() -> Tensor:
    """The scores of the edges of "who you think came": the head of "who" is open."""
    scores = torch.full((4, 4), -1.0, dtype=torch.float64)
    for modifier, head, score in [(0, 3, 1.0), (0, 2, 0.6), (1, 2, 1.0), (2, 2, 1.5), (2, 3, 0.7), (3, 2, 1.2), (3, 3, 0.0)]:
        scores[modifier, head] = score
    return scores


def drawings() -> dict[str, Drawing]:
    """All drawings by the name of their file."""
    a, b, c = sp.Formula.variables(3)
    rule = sp.DecisionDiagram(3, (a >> b) & (b ^ c))
    words, tags = ["time", "flies", "fast"], ["N", "V", "A"]
    unary = _tensor([1.6, 0.0, -1.0], [0.5, 0.6, -1.0], [-0.5, 0.4, 0.6])
    transition = _tensor([0.0, 0.4, -0.5], [-0.4, -1.0, 0.4], [0.0, 0.0, 0.0]).expand(2, 3, 3)
    tree = _sentence()
    sentence = ["who", "you", "think", "came"]
    spans = torch.full((4, 4), -0.6, dtype=torch.float64)
    spans[0, 1], spans[1, 3], spans[2, 3] = 0.9, 0.6, 0.6
    edges = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (2, 4), (3, 4)]
    places = [(0.3, 1.2), (1.8, 2.2), (1.8, 0.3), (3.4, 2.2), (4.1, 0.3)]
    segments = torch.full((4, 2, 2), -0.5, dtype=torch.float64)
    segments[0, 1, 0], segments[0, 0, 0], segments[1, 0, 0], segments[0, 0, 1] = 1.2, 0.5, 0.5, 0.0
    segments[2, 0, 1], segments[3, 0, 1] = 0.8, 0.7
    frames = _tensor([1.0, 0.4, 0.0, 0.0, 0.0], [0.0, 0.7, 1.0, 0.4, 0.0], [0.0, 0.0, 0.0, 1.6, 1.0])
    return {
        "one-of": Drawing(sp.OneOf(4), _tensor([1.0, -0.4, 0.8, 0.5]), _cells(), (4.0, 1.6), _as_list, middle=0.5),
        "groups": Drawing(
            sp.Groups(2, 3),
            _tensor([1.0, 0.6, -1.0], [-1.0, 1.2, 0.5]),
            _cells(),
            (3.0, 2.0),
            _as_list,
        ),
        "bits": Drawing(sp.Bits(4), _tensor([1.5, 0.6, -0.2, -2.0]), _cells(), (4.0, 1.6), _as_list, middle=0.5),
        "budget": Drawing(sp.Budget(4, 2), _tensor([1.5, 0.8, 0.4, -2.0]), _cells(), (4.0, 1.6), _as_list, middle=0.5),
        "subset": Drawing(sp.Subset(4, 2), _tensor([-0.3, -0.9, -0.7, -2.6]), _cells(), (4.0, 1.6), _as_list, middle=0.5),
        "sequence": Drawing(
            sp.Sequence(3, 3),
            (unary, transition),
            _chain(tags, words),
            (5.0, 3.2),
            lambda z: " ".join(tags[i] for i in z),
            margin=0.5,
        ),
        "tree": Drawing(
            sp.Tree(4),
            tree,
            _heads(sentence, 1.9, 4.2),
            (7.6, 4.2),
            _as_list,
        ),
        "projective-tree": Drawing(
            sp.ProjectiveTree(4),
            tree,
            _heads(sentence, 1.9, 4.2),
            (7.6, 4.2),
            _as_list,
        ),
        "binary-tree": Drawing(
            sp.BinaryTree(4),
            spans,
            _spans(["old", "men", "and", "women"], 1.5),
            (6.0, 3.7),
            lambda _: "",
        ),
        "matching": Drawing(
            sp.Matching(3, 4),
            _tensor([1.0, 0.7, 0.0, 0.1], [0.9, 1.0, 0.2, 0.0], [0.0, 0.1, 0.6, 0.5]),
            _pairs(["0", "1", "2"], ["0", "1", "2", "3"], 3.6),
            (3.6, 4.0),
            _as_list,
        ),
        "permutation": Drawing(
            sp.Permutation(4), _tensor([0.3, 3.5, 0.8, 2.6]), _ranks(["a", "b", "c", "d"]), (4.6, 3.5), _as_list
        ),
        "paths": Drawing(
            sp.Paths(edges),
            _tensor([0.5, 0.4, 0.1, 0.6, -0.5, 0.6, 0.3]),
            _network(places, edges),
            (4.4, 2.5),
            _as_list,
        ),
        "alignment": Drawing(
            sp.Alignment(3, 5), frames, _grid(["c", "a", "t"]), (5.6, 3.0), lambda z: " ".join("cat"[i] for i in z)
        ),
        "segmentation": Drawing(
            sp.Segmentation(4, 2, 2),
            segments,
            _segments(["New", "York", "is", "big"], ["name", "other"], 1.3),
            (5.2, 3.5),
            _as_list,
            margin=1.8,
        ),
        "knapsack": Drawing(
            sp.Knapsack((3, 4, 2), 6), _tensor([1.0, 1.2, 0.5]), _cells(widths=(1.5, 2, 1)), (4.5, 1.6), _as_list, middle=0.5
        ),
        "decision-diagram": Drawing(rule, _tensor([0.2, 0.3, 0.4]), _diagram(rule, ["a", "b", "c"]), (3.6, 4.0), _as_list),
    }


def polygon() -> Figure:
    """SparseMAP over vectors in the plane: the mean is the point of their hull that is closest to the scores."""
    corners = _tensor([0.0, 0.0], [2.0, -0.4], [3.4, 0.8], [2.8, 2.2], [1.0, 2.4], [-0.4, 1.3])
    scores = _tensor([3.9, 2.1])
    q = sp.sparsemap(scores, sp.Enumerated(corners))
    figure = Figure(figsize=(3.6, 2.5))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.9, 4.7), ylim=(-0.9, 3.0), aspect="equal")
    axes.set_axis_off()
    axes.add_patch(Polygon(corners.tolist(), closed=True, facecolor=GREY, edgecolor="none", alpha=0.15))
    axes.add_patch(Polygon(corners.tolist(), closed=True, fill=False, edgecolor=GREY, linewidth=0.9))
    canvas, mean = Canvas(axes), q.mean.tolist()
    axes.plot([scores[0], mean[0]], [scores[1], mean[1]], color=GREY, linewidth=0.9, linestyle=(0, (3, 2)))
    probs = dict(zip(q.atoms.tolist(), q.probs.tolist(), strict=True))
    middle = corners.mean(0)
    for i, (x, y) in enumerate(corners.tolist()):
        canvas.node(x, y, probs.get(i, 0.0), radius=0.15)
        outward = (corners[i] - middle) / (corners[i] - middle).norm()
        name = f"{i}: {probs[i]:.2f}" if i in probs else str(i)
        canvas.text(x + 0.38 * float(outward[0]) * (1.4 if i in probs else 1), y + 0.36 * float(outward[1]), name)
    axes.plot(*mean, marker="D", color=ACCENT, markersize=5, zorder=4)
    axes.plot(*scores.tolist(), marker="x", color=GREY, markersize=6, markeredgewidth=1.6)
    canvas.text(scores[0].item() + 0.12, scores[1].item() + 0.22, "scores", ha="left")
    canvas.text(mean[0] - 0.2, mean[1] - 0.05, "mean", ha="right")
    return figure


def write(folder: pathlib.Path) -> None:
    """Write all drawings to a folder, as SVG files that are the same at every run."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "structures", "font.family": "sans-serif"}):
        figures = {name: drawing.figure() for name, drawing in drawings().items()} | {"enumerated": polygon()}
        for name, figure in figures.items():
            figure.savefig(folder / f"{name}.svg", transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    write(parser.parse_args().folder)
