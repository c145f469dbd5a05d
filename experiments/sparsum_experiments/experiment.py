"""What the training loop knows of an experiment."""

from __future__ import annotations

import math
import pathlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from sparsum.estimators import Anneal
from sparsum_experiments.checked import check_kinds, check_ranges
from sparsum_experiments.models.totals import Totals

# More than any run has, and no more than a tensor can count.
_MOST_STEPS = 2**60


@dataclass(frozen=True, kw_only=True)
class CommonArgs:
    """What all experiments can be told; each adds its own.

    Args:
        method: how the sum over the latent variable is made.
        data: the name of the data set.
        data_dir: where its files are.
        epochs: how many passes over the data.
        seed: of the weights and of all noise.
        lr: the learning rate of Adam.
        batch_size: how many examples a step takes.
        temperature_decay: r in the temperature max(0.5, exp(-r t)) of the Gumbel methods.
        temperature_every: how many steps one temperature is kept.
        device: cpu, cuda or auto.
        precision: 32 or bf16-mixed.
    """

    method: str
    data: str = "digits"
    data_dir: str = "data"
    epochs: int = 100
    seed: int = 0
    lr: float = 1e-3
    batch_size: int = 64
    temperature_decay: float = 1e-5
    temperature_every: int = 1000
    device: str = "auto"
    precision: str = "32"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_ranges(
            self,
            {
                "epochs": (0, math.inf),
                "lr": (0, math.inf),
                "batch_size": (1, math.inf),
                "temperature_decay": (0, math.inf),
                "temperature_every": (1, _MOST_STEPS),
            },
        )

    def temperature(self) -> Anneal:
        """The temperature of a Gumbel method, at its first step."""
        return Anneal(self.temperature_decay, every=self.temperature_every)

    @property
    def data_name(self) -> str:
        """The data set without the folders above it."""
        return pathlib.Path(self.data).name


#: The options of `CommonArgs` that few methods heed, and which these are.
GUMBEL_OPTIONS = dict.fromkeys(("temperature_decay", "temperature_every"), ("gumbel", "st-gumbel"))


class Step(NamedTuple):
    """What a training step, or a batch of a validation, returns.

    Args:
        objective: what is minimised, a single number.
        terms: what is logged, each a single number: the mean over the batch, without a gradient.
        calls: how often the decoder was called for each example, an int64 vector.
    """

    objective: Tensor
    terms: dict[str, Tensor]
    calls: Tensor


class AbstractExperiment(ABC):
    """A model, its data and its loss.

    The loop calls, for each epoch, `start_epoch` and then the model on `batch(order, i)` for i below `n_steps`; everything
    random comes from the generator that it passes, which is another one for every epoch.
    """

    #: Its name on the command line.
    name: ClassVar[str]
    #: The methods it can be trained with.
    methods: ClassVar[tuple[str, ...]]
    #: The term of the validation data by which methods are compared, the larger the better.
    criterion: ClassVar[str]
    #: For methods that are trained for something else, the term by which models and settings of them are chosen.
    own_criteria: ClassVar[Mapping[str, str]] = {}
    #: Options that few methods heed, and which these are; to others all their values are the same.
    used_by: ClassVar[Mapping[str, tuple[str, ...]]] = GUMBEL_OPTIONS
    #: What else it can be chosen by, of what `evaluate` measures: 1 if the larger is the better, -1 if the smaller is.
    judges: ClassVar[Mapping[str, int]]

    args: CommonArgs
    #: Called as ``model(batch, generator)``, where batch is what `batch` returns; gives a `Step`. Its estimator is in it.
    model: torch.nn.Module
    #: How many steps an epoch has.
    n_steps: int
    #: How many examples of a step count their calls.
    n_calls_per_step: int

    @classmethod
    def criterion_of(cls, method: str) -> str:
        """The term by which models and settings of a method are chosen on the validation data, the larger the better."""
        return cls.own_criteria.get(method, cls.criterion)

    @classmethod
    def uses(cls, method: str, option: str) -> bool:
        """Whether a run of a method depends on an option."""
        return method in cls.used_by.get(option, cls.methods)

    @property
    def estimator(self) -> Any:
        """The model's estimator, which has a flag ``validate_args``."""
        return self.model.estimator

    @property
    def is_repeatable(self) -> bool:
        """Whether all steps do the same work but for the sizes of supports, so that a GPU can record and repeat them."""
        return True

    @abstractmethod
    def optimiser(self) -> torch.optim.Optimizer:
        """A new optimiser of the model's parameters."""

    def start(self, say: Callable[[str], None]) -> None:  # noqa: B027  (most have nothing to do)
        """What comes before the first epoch, as a warm start does; ``say`` tells how it goes on."""

    @abstractmethod
    def start_epoch(self, generator: torch.Generator) -> Tensor:
        """The order of the epoch's examples, an int64 tensor on the device."""

    @abstractmethod
    def batch(self, order: Tensor, i: int, generator: torch.Generator) -> Mapping[str, Tensor]:
        """The tensors of step i."""

    @abstractmethod
    def measure(self, generator: torch.Generator, split: str, limit: int | None) -> Totals:
        """The metrics of each example of a part of the data, or of the first so many of them."""

    @torch.no_grad()
    def validate(
        self, generator: torch.Generator, *, split: str = "validation", limit: int | None = None
    ) -> dict[str, float]:
        """The mean metrics of the model on validation or test data, in evaluation mode."""
        self.model.eval()
        return self.measure(generator, split, limit).means()

    @torch.no_grad()
    def evaluate(
        self,
        generator: torch.Generator,
        *,
        split: str = "test",
        limit: int | None = None,
        n_samples: int = 1024,
        n_annealed: int = 0,
        progress: Callable[[float], None] | None = None,
    ) -> dict[str, float]:
        """The metrics of a trained model, and their standard errors under names with ``_se`` at the end.

        Args:
            generator: the source of all noise.
            split: the part of the data.
            limit: at most this many examples.
            n_samples: for what is estimated by importance sampling.
            n_annealed: for how many examples to estimate it by annealed importance sampling, too.
            progress: told which part is done, from 0 to 1.
        """
        self.model.eval()
        return self.measure(generator, split, limit).means_and_errors()
