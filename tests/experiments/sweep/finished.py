"""Finished runs without training, as `sparsum train` would write them."""

from __future__ import annotations

from collections.abc import Sequence

from sparsum_experiments.files import write_json
from sparsum_experiments.runs import Config, RunArgs, RunFolder
from sparsum_experiments.sweep import PlannedRun


def write_finished(
    run: PlannedRun, elbos: Sequence[float], *, test: dict[str, float] | None = None, **others: float
) -> None:
    """Write a run with the criterion at each epoch, other validation metrics, and the metrics of an evaluation."""
    folder = RunFolder(run.folder)
    folder.create(Config(experiment=run.experiment, args=RunArgs(**run.args.model_dump())))
    for epoch, elbo in enumerate(elbos):
        validation = {"elbo": elbo, **others}
        folder.add_metrics({"epoch": epoch, "validation": validation, "calls": {"mean": 2.0}, "seconds": 3.0})
    folder.save("last", {"place": {"epoch": len(elbos)}})
    if test is not None:
        write_json(folder.evaluation_file(), test)
