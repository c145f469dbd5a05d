"""What a task is: rows to train with the same tuning, and what is measured of each."""

from __future__ import annotations

import pathlib
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

#: What is measured of a trial; a list is a curve, which tables leave out.
Metrics = dict[str, float | list[float]]


@dataclass(frozen=True, order=True)
class Trial:
    """One training run."""

    setting: str
    row: str
    rate: float
    seed: int
    is_tuning: bool = False  # judged on validation data, to choose the rate of the row


@dataclass(frozen=True)
class Column:
    """How tables show a metric: the mean over seeds and their standard deviation."""

    title: str
    form: str = ".2f"  # of `format`; ".1%" for shares
    with_spread: bool = True


@dataclass(frozen=True)
class Options:
    """Where and how a task is run."""

    device: torch.device
    data: str = ""  # the name or folder of the data, if not the task's own
    data_dir: str = "data"
    is_quick: bool = False  # a few steps, to see that it works
    kept: pathlib.Path | None = None  # the folder for trainings that are under way; by default nothing is kept


class AbstractTask(ABC):
    """A model, its data, and the methods that are compared on it.

    Trials of a row with different rates are judged on validation data by ``judge``; the best rate is then trained with every
    seed. With a single rate nothing is tuned.
    """

    name: ClassVar[str]  # on the command line, of the record and of the page
    about: ClassVar[str]  # one line
    settings: ClassVar[tuple[str, ...]]
    rows: ClassVar[Mapping[str, str]]  # methods, and what each one is
    rates: ClassVar[tuple[float, ...]]  # of Adam
    judge: ClassVar[str]  # the metric that tuning looks at; larger is better
    columns: ClassVar[Mapping[str, Column]]  # by metric
    #: Rows of settings that are not trained, and why; a row alone, under the setting "", is left out of all.
    left_out: ClassVar[Mapping[tuple[str, str], str]] = {}
    #: Rows that are trained with fewer seeds, by setting and row.
    fewer_seeds: ClassVar[Mapping[tuple[str, str], int]] = {}

    def __init__(self, options: Options) -> None:
        self.options, self.device = options, options.device

    @abstractmethod
    def train(self, trial: Trial, say: Callable[[str], None]) -> Metrics:
        """Train a model and measure it; ``say`` shows progress. The same trial gives the same metrics, times aside."""

    def kept(self, trial: Trial) -> pathlib.Path | None:
        """The file for the state of a trial that takes minutes, from which `train` continues; None if nothing is kept."""
        if self.options.kept is None:
            return None
        return self.options.kept / (re.sub(r"\W+", "-", f"{trial.setting} {trial.row} {trial.rate:g} {trial.seed}") + ".pt")

    @classmethod
    def reason(cls, setting: str, row: str) -> str:
        """Why a row is left out of a setting; empty if it is not."""
        return cls.left_out.get((setting, row)) or cls.left_out.get(("", row), "")

    @classmethod
    def n_seeds(cls, setting: str, row: str, n: int) -> int:
        """The number of seeds of a row, if others have n."""
        return min(n, cls.fewer_seeds.get((setting, row), n))


def clock(device: torch.device) -> float:
    """Seconds: of the process's own CPU time, which other processes do not change, or of a GPU once its work is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
