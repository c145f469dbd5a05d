"""What the training loop, sweeps and reports know of an experiment."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from sparsum.estimators import Anneal
from sparsum_experiments.options import CommonArgs

#: How each method computes the sum over the latent variable, for ``--help``.
METHODS = {
    "sparse": "exact sum over the assignments that sparsemax keeps",
    "dense": "exact sum over all assignments, under softmax",
    "entmax15": "exact sum over the assignments that 1.5-entmax keeps",
    "topk": "exact sum over the k best assignments, under sparsemax",
    "topk-bound": "bound on the log-likelihood from the k best assignments",
    "sparsemap": "exact sum over the assignments of SparseMAP",
    "sparsemap-budget": "SparseMAP with a limit on the bits that are 1",
    "sfe": "score function (REINFORCE) with a running mean as baseline",
    "sfe-plus": "score function with a second sample as baseline",
    "nvil": "score function with a network as baseline",
    "sum-and-sample": "exact sum over the k best assignments and a sample of the rest",
    "wake-wake": "bound on the log-likelihood from k weighted samples",
    "distinct-bound": "bound on the log-likelihood from up to k different samples",
    "gumbel": "Gumbel-softmax relaxation",
    "st-gumbel": "straight-through Gumbel-softmax",
    "st-gumbel-mode": "straight-through Gumbel-softmax of the mode, as in the paper's code",
    "sfe-01": "score function with the 0/1 loss of a sampled answer",
    "sfe-plus-01": "sfe-01 with a second sample as baseline",
}


def temperature_of(args: CommonArgs) -> Anneal:
    """The temperature of a Gumbel method, at its first step."""
    return Anneal(args.temperature_decay, every=args.temperature_every)


class Step(NamedTuple):
    """The result of a training step, or of a batch of validation data.

    Args:
        objective: what is minimised, a scalar.
        terms: scalars to log: means over the batch, without gradient.
        calls: decoder calls of each example, an int64 vector.
    """

    objective: Tensor
    terms: dict[str, Tensor]
    calls: Tensor


class Totals:
    """Running sums of per-example metrics and of their squares, kept on the device until they are read."""

    def __init__(self) -> None:
        self.n = 0
        self._sums: dict[str, Tensor] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Add a batch: one value per metric and example, all of shape (n,)."""
        self.n += len(next(iter(values.values())))
        for name, value in values.items():
            value = value.detach().double()
            both = torch.stack([value.sum(), value.square().sum()])
            self._sums[name] = self._sums[name] + both if name in self._sums else both

    def means(self) -> dict[str, float]:
        """The mean of each metric."""
        return {name: sums[0].item() / self.n for name, sums in self._sums.items()}

    def means_and_errors(self) -> dict[str, float]:
        """The mean of each metric, and its standard error under the name with ``_se``."""
        found: dict[str, float] = {}
        for name, sums in self._sums.items():
            total, squares = sums.tolist()
            mean = total / self.n
            spread = max(squares / self.n - mean**2, 0.0) / max(self.n - 1, 1)
            found |= {name: mean, f"{name}_se": math.sqrt(spread)}
        return found


class AbstractExperiment(ABC):
    """A model, its data and its loss.

    For each epoch, the loop calls `start_epoch`, then the model on `batch(order, i)` for i below `n_steps`. All randomness
    comes from the generator that the loop passes, a different one for every epoch.
    """

    #: Its name on the command line.
    name: ClassVar[str]
    #: The class of its options.
    args_class: ClassVar[type[CommonArgs]]
    #: The methods it can be trained with.
    methods: ClassVar[tuple[str, ...]]
    #: The validation metric by which methods are compared; larger is better.
    criterion: ClassVar[str]
    #: For methods with another objective, the validation metric by which their models and settings are chosen.
    own_criteria: ClassVar[Mapping[str, str]] = {}
    #: Other metrics, of `evaluate`, by which settings can be chosen: 1 if larger is better, -1 if smaller is.
    judges: ClassVar[Mapping[str, int]]

    args: CommonArgs
    #: Called as ``model(batch, generator)`` with the result of `batch`; returns a `Step`. It holds the estimator.
    model: torch.nn.Module
    #: Steps per epoch.
    n_steps: int
    #: How many examples of a step count their calls.
    n_calls_per_step: int
    #: The digest of each data file.
    data_files: Mapping[str, str]

    @classmethod
    def criterion_of(cls, method: str) -> str:
        """The validation metric by which models and settings of a method are chosen; larger is better."""
        return cls.own_criteria.get(method, cls.criterion)

    @property
    def estimator(self) -> Any:
        """The model's estimator, which has a flag ``validate_args``."""
        return self.model.estimator

    @property
    def is_capturable(self) -> bool:
        """Whether all steps do the same work except for the sizes of supports, so that a GPU can capture them."""
        return True

    @abstractmethod
    def optimiser(self) -> torch.optim.Optimizer:
        """A new optimiser of the model's parameters."""

    def start(self, say: Callable[[str], None]) -> None:  # noqa: B027  (most have nothing to do)
        """Run what comes before the first epoch, such as a warm start; ``say`` prints progress."""

    @abstractmethod
    def start_epoch(self, generator: torch.Generator) -> Tensor:
        """The order of the epoch's examples, an int64 tensor on the device."""

    @abstractmethod
    def batch(self, order: Tensor, i: int, generator: torch.Generator) -> Mapping[str, Tensor]:
        """The tensors of step i."""

    @abstractmethod
    def measure(self, generator: torch.Generator, split: str, limit: int | None) -> Totals:
        """Metrics of each example of a split, or of its first ``limit`` examples."""

    @torch.no_grad()
    def validate(
        self, generator: torch.Generator, *, split: str = "validation", limit: int | None = None
    ) -> dict[str, float]:
        """Mean metrics of the model on validation or test data, in evaluation mode."""
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
        """Metrics of a trained model, with standard errors under names that end in ``_se``.

        Args:
            generator: the source of all noise.
            split: the part of the data.
            limit: use at most this many examples.
            n_samples: samples of importance sampling, where that is used.
            n_annealed: how many examples to estimate by annealed importance sampling, too.
            progress: called with the fraction that is done, from 0 to 1.
        """
        self.model.eval()
        return self.measure(generator, split, limit).means_and_errors()
