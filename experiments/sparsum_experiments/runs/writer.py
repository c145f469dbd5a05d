"""A run of one's own training loop, written so that `sparsum report` can show it."""

from __future__ import annotations

import pathlib
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal

from sparsum_experiments.files import write_json
from sparsum_experiments.runs.folder import RunFolder
from sparsum_experiments.runs.schema import Config, EpochMetrics, RunArgs


class RunWriter:
    """Writes the config and the metrics of a run into a folder, for `sparsum report`.

    Args:
        folder: of the run, one for each seed and setting.
        experiment: runs of the same experiment and data are compared on the page.
        method: what is compared.
        epochs: how many there will be.
        seed: runs that differ only in their seed are averaged.
        data: the name of the data set.
        criterion: the validation metric by which settings are compared; by default the first.
        better: whether larger or smaller values of it are better.
        options: whatever else sets runs apart, such as ``lr=1e-3``.
    """

    def __init__(
        self,
        folder: str | pathlib.Path,
        experiment: str,
        method: str,
        *,
        epochs: int,
        seed: int = 0,
        data: str = "own",
        criterion: str | None = None,
        better: Literal["larger", "smaller"] = "larger",
        **options: Any,
    ) -> None:
        self.folder = RunFolder(pathlib.Path(folder))
        if self.folder.exists():
            raise FileExistsError(f"{folder} holds a run already: delete it, or give another folder")
        args = RunArgs(method=method, data=data, seed=seed, epochs=epochs, **options)
        self.folder.create(Config(experiment=experiment, args=args, criterion=criterion, better=better, command=sys.argv))
        self._n_epochs, self._begin = 0, time.monotonic()

    def epoch(
        self,
        validation: Mapping[str, float],
        *,
        train: Mapping[str, float] | None = None,
        calls: float | None = None,
        seconds: float | None = None,
    ) -> None:
        """Write the metrics of the next epoch; its seconds are those since the last one, unless they are given."""
        now = time.monotonic()
        line = EpochMetrics(
            epoch=self._n_epochs,
            validation=dict(validation),
            train=dict(train or {}),
            calls={} if calls is None else {"mean": calls},
            seconds=now - self._begin if seconds is None else seconds,
        )
        self.folder.add_metrics(line.model_dump())
        self._n_epochs, self._begin = self._n_epochs + 1, now

    def test(self, metrics: Mapping[str, float]) -> None:
        """Write the metrics of the final model on test data."""
        write_json(self.folder.evaluation_file(), {"epochs": self._n_epochs, **metrics})
