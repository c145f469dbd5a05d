"""An expected loss along a line in score space: with the active set's atoms it jumps, with pulled ones it does not.

Scores of matchings move along a line. The mean of SparseMAP is the same for both solvers, but the atoms that carry it are
not, and neither is the expected loss. Run it with ``python -m examples.pulling``; it draws docs/figures/pulling.svg, for
which matplotlib is needed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

import sparsum as sp
from sparsum.solvers import AbstractSolver, ActiveSet, Pulled

N = 5
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "pulling.svg"


def line(n_points: int) -> tuple[Tensor, Tensor]:
    """Places from 0 to 1, and scores at them: (n_points, N, N)."""
    generator = torch.Generator().manual_seed(4)
    start, end = torch.randn(2, N, N, dtype=torch.float64, generator=generator)
    place = torch.linspace(0, 1, n_points, dtype=torch.float64)
    return place, start + place[:, None, None] * (end - start)


def expected(scores: Tensor, solver: AbstractSolver) -> Tensor:
    """The expected loss of a matching z, sin(<z, w>) for some w."""
    w = torch.linspace(0.3, 2.1, N, dtype=torch.float64)
    loss: Tensor = sp.sparsemap(scores, sp.Matching(N), solver=solver).expect(lambda z: torch.sin(z.double() @ w))
    return loss


def main(n_points: int = 2001, file: Path | None = None) -> tuple[float, float]:
    """Draw the figure if there is a file; returns the largest changes from point to point of both solvers."""
    place, scores = line(n_points)
    losses = {"active set": expected(scores, ActiveSet()), "pulled": expected(scores, Pulled())}
    if file is not None:
        draw(place, losses, file)
    changes = {name: float(loss.diff().abs().max()) for name, loss in losses.items()}
    print(", ".join(f"{name}: at most {change:.1e} from point to point" for name, change in changes.items()))
    return changes["active set"], changes["pulled"]


def draw(place: Tensor, losses: dict[str, Tensor], file: Path) -> None:
    """Draw the expected losses; a jump is a gap in the line."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "pulling"  # the same file at every run
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    axes = figure.subplots()
    for (name, loss), colour in zip(losses.items(), ("tab:orange", "tab:blue"), strict=True):
        is_jump = loss.diff().abs() > 0.01
        shown = loss.clone()
        shown[1:][is_jump] = torch.nan
        axes.plot(place.tolist(), shown.tolist(), color=colour, label=name, linewidth=1.6)
    axes.set_xlabel("place on a line in score space")
    axes.set_ylabel("expected loss")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main(file=FIGURE)
