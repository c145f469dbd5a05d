"""The idea in one picture: softmax maps into the simplex, sparsemax onto its edges and corners.

The same scores of three categories, mapped by both. The colour tells how many categories have mass, which is how often an
exact sum calls the loss. Run it with ``python -m examples.simplex``; it draws docs/figures/simplex.svg, for which matplotlib
is needed.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sparsum as sp

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "simplex.svg"
CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]])
COLOURS = {1: "#2a9d8f", 2: "#3a86d4", 3: "#d1603d"}
GREY = "#808890"  # readable on white and on black


def scores(n: int = 250) -> Tensor:
    """Random scores of three categories: (n, 3)."""
    return 0.9 * torch.randn(n, 3, generator=torch.Generator().manual_seed(3))


def calls(probs: Tensor) -> Tensor:
    """The number of categories with mass: (n,)."""
    return (probs > 0).sum(-1)


def main(file: Path | None = None) -> tuple[float, float]:
    """Draw the figure if there is a file; returns the mean number of calls for softmax and sparsemax."""
    x = scores()
    points = {"softmax": torch.softmax(x, -1), "sparsemax": sp.sparsemax(x)}
    if file is not None:
        draw(points, file)
    softmax, sparsemax = (float(calls(p).float().mean()) for p in points.values())
    print(f"calls of the loss per example: softmax {softmax:.2f}, sparsemax {sparsemax:.2f}")
    return softmax, sparsemax


def draw(points: dict[str, Tensor], file: Path) -> None:
    """Draw the triangle once for each mapping."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    style: Any = {"svg.hashsalt": "simplex", "svg.fonttype": "none", "font.family": "sans-serif", "text.color": GREY}
    with mpl.rc_context(style):  # the salt makes the same file at every run
        figure = Figure(figsize=(7.2, 3.3))
        for place, (name, probs) in enumerate(points.items()):
            axes = figure.add_axes((0.03 + 0.5 * place, 0.12, 0.44, 0.75))
            axes.set(aspect="equal", xlim=(-0.08, 1.08), ylim=(-0.06, 0.93))
            axes.axis("off")
            axes.fill(*CORNERS.T.tolist(), facecolor="none", edgecolor=GREY, linewidth=1, zorder=0)
            for n, colour in COLOURS.items():
                left, up = (probs[calls(probs) == n] @ CORNERS).T.tolist()
                axes.scatter(left, up, s=40 if n == 1 else 11, color=colour, linewidths=0, alpha=0.75, clip_on=False)
            mean = float(calls(probs).float().mean())
            axes.set_title(f"{name}: {mean:.1f} calls of the loss on average", color=GREY, fontsize=11)
        marks = [Line2D([], [], marker="o", linestyle="", color=colour, markersize=5) for colour in COLOURS.values()]
        labels = ["one category has mass", "two", "all three"]
        figure.legend(marks, labels, loc="lower center", ncols=3, frameon=False, labelcolor=GREY, fontsize=10)
        figure.savefig(file, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FIGURE, help="where to draw (default: docs/figures/simplex.svg)")
    main(parser.parse_args().out)
