"""What a record of the VAE with 200 bits says after equal seconds: ``python -m benchmarks.tasks.binary_vae_curves``.

Prints the bounds on validation images, and draws docs/figures/binary-vae.svg, for which matplotlib is needed.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.tasks.binary_vae import FULL, LONG, METHODS, SHORT, BinaryVAE, interpolated
from benchmarks.tasks.records import FOLDER, Records
from benchmarks.tasks.task import Trial

#: Seconds of a GPU at which methods are compared.
EQUAL_SECONDS = {LONG: 20.0, FULL: 400.0}
FIGURE = pathlib.Path(__file__).parents[2] / "docs" / "figures" / "binary-vae.svg"
#: The rows with solid lines.
MAIN = tuple(METHODS)[:4]


def curves_of(record: Mapping[Trial, Mapping[str, Any]], setting: str) -> dict[str, dict[str, list[float]]]:
    """Means over seeds of the curves of each row of a setting, with seconds as they are if nothing else runs."""
    found = {}
    for row in METHODS:
        alone = [values["metrics"]["ms"] for trial, values in record.items() if (trial.setting, trial.row) == (SHORT, row)]
        trials = [values["metrics"] for trial, values in record.items() if (trial.setting, trial.row) == (setting, row)]
        if alone and trials:
            means = {
                name: torch.tensor([each[f"curve_{name}"] for each in trials]).mean(0).tolist()
                for name in ("steps", "calls", "bound")
            }
            found[row] = means | {"seconds": [alone[0] * steps / 1000 for steps in means["steps"]]}
    return found


def at_equal_seconds(curves: Mapping[str, Mapping[str, list[float]]], seconds: float) -> str:
    """Markdown: the bound on validation images after the same time of a GPU."""
    lines = [f"| row | bound after {seconds:g} s | steps |", "| --- | ---: | ---: |"]
    for row, curve in curves.items():
        value = interpolated(curve["seconds"], curve["bound"], seconds)
        steps = seconds / curve["seconds"][-1] * curve["steps"][-1]
        lines.append(f"| {row} |  |  |" if value is None else f"| {row} | {value:.2f} | {steps:,.0f} |")
    return "\n".join(lines)


def draw(curves: Mapping[str, Mapping[str, list[float]]], file: pathlib.Path) -> None:
    """Draw the bound on validation images against seconds of a GPU and decoder calls."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "binary-vae"  # the same file at every run
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for i, row in enumerate(METHODS):
        if row in curves:
            curve, style = curves[row], {"color": f"C{i}", "linestyle": "-" if row in MAIN else "--", "linewidth": 1.4}
            left.plot(curve["seconds"], curve["bound"], label=row, **style)
            right.plot(curve["calls"], curve["bound"], **style)
    left.set(xscale="log", ylim=(-150, None), xlabel="seconds of a GPU", ylabel="100-sample bound, validation images")
    right.set(xscale="log", xlabel="decoder calls, millions")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, fontsize="small")
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Print the tables and draw the figure."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = Records(FOLDER / f"{BinaryVAE.name}.jsonl").read()
    for setting, seconds in EQUAL_SECONDS.items():
        print(f"{setting}\n\n{at_equal_seconds(curves_of(found, setting), seconds)}\n")
    draw(curves_of(found, LONG), FIGURE)


if __name__ == "__main__":
    main()
