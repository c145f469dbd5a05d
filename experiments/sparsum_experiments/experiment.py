"""What the training loop, sweeps and reports know of an experiment."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

import sparsum as sp
from sparsum_experiments.models.layers import adam
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


def temperature_of(args: CommonArgs) -> sp.estimators.Anneal:
    """The temperature of a Gumbel method, at its first step."""
    return sp.estimators.Anneal(args.temperature_decay, every=args.temperature_every)


#: The methods for one categorical latent variable, made of an experiment's Args and the size of the input.
CATEGORICAL: dict[str, Callable[[Any, int], sp.estimators.AbstractEstimator]] = {
    "sparse": lambda args, n_inputs: sp.estimators.Sparse(),
    "dense": lambda args, n_inputs: sp.estimators.Dense(),
    "entmax15": lambda args, n_inputs: sp.estimators.Sparse(1.5),
    "sfe": lambda args, n_inputs: sp.estimators.ScoreFunction(),
    "sfe-plus": lambda args, n_inputs: sp.estimators.SelfCritic(),
    "nvil": lambda args, n_inputs: sp.estimators.NVIL(n_inputs),
    "sum-and-sample": lambda args, n_inputs: sp.estimators.SumAndSample(args.k),
    "gumbel": lambda args, n_inputs: sp.estimators.GumbelSoftmax(temperature_of(args)),
    "st-gumbel": lambda args, n_inputs: sp.estimators.StraightThrough(temperature_of(args)),
}


class Step(NamedTuple):
    """The result of a training step."""

    objective: Tensor  # a scalar to minimise
    terms: dict[str, Tensor]  # scalars to log: means over the batch, without gradient
    calls: Tensor  # decoder calls of each example, int64


def means_and_errors(batches: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    """The mean over all examples of each metric, and its standard error under the name with ``_se``.

    A batch holds a value per metric and example, of shape (n,); the sums stay on the device until the end.
    """
    n, sums = 0, dict[str, Tensor]()
    for batch in batches:
        n += len(next(iter(batch.values())))
        for name, value in batch.items():
            value = value.detach().double()
            both = torch.stack([value.sum(), value.square().sum()])
            sums[name] = sums[name] + both if name in sums else both
    found: dict[str, float] = {}
    for name, (total, squares) in ((name, both.tolist()) for name, both in sums.items()):
        spread = max(squares / n - (total / n) ** 2, 0.0) / max(n - 1, 1)
        found |= {name: total / n, f"{name}_se": math.sqrt(spread)}
    return found


class AbstractExperiment(ABC):
    """A model, its data and its loss.

    For each epoch, the loop calls `start_epoch`, then the model on `batch(order, i)` for i below `n_steps`. All randomness
    comes from the generator that the loop passes, a different one for every epoch.
    """

    name: ClassVar[str]  # on the command line
    args_class: ClassVar[type[CommonArgs]]
    methods: ClassVar[tuple[str, ...]]
    criterion: ClassVar[str]  # the validation metric by which methods are compared; larger is better
    #: For methods with another objective, the validation metric by which their models and settings are chosen.
    own_criteria: ClassVar[Mapping[str, str]] = {}
    #: Other metrics, of `evaluate`, by which settings can be chosen: 1 if larger is better, -1 if smaller is.
    judges: ClassVar[Mapping[str, int]]
    #: What else may help if all examples have a single assignment with mass, besides a smaller learning rate.
    remedy: ClassVar[str] = ""

    args: CommonArgs
    #: Called as ``model(batch, generator)`` with the result of `batch`; returns a `Step`. It holds the estimator.
    model: torch.nn.Module
    n_steps: int  # per epoch
    n_calls_per_step: int  # examples of a step that count their calls
    data_files: Mapping[str, str]  # the digest of each data file

    @classmethod
    def criterion_of(cls, method: str) -> str:
        """The validation metric by which models and settings of a method are chosen; larger is better."""
        return cls.own_criteria.get(method, cls.criterion)

    @property
    def estimator(self) -> Any:
        """The model's estimator, which has a flag ``validate_args``."""
        return self.model.estimator

    @property
    def is_sparse_sum(self) -> bool:
        """Whether the calls of an example are the assignments with mass: with a single one, its scores get no gradient."""
        return isinstance(self.estimator, sp.estimators.Sparse | sp.estimators.TopK | sp.estimators.SparseMAP)

    @property
    def is_capturable(self) -> bool:
        """Whether all steps do the same work except for the sizes of supports, so that a GPU can capture them."""
        return True

    @property
    def is_divisible(self) -> bool:
        """Whether the loss of a batch is the mean over its examples, so that it can be split over devices."""
        return True

    def optimiser(self) -> torch.optim.Optimizer:
        """A new optimiser of the model's parameters."""
        return adam(self.model, self.args.lr, getattr(self.args, "weight_decay", 0.0))

    def start(self, say: Callable[[str], None]) -> None:  # noqa: B027  (most have nothing to do)
        """Run what comes before the first epoch, such as a warm start; ``say`` prints progress."""

    @abstractmethod
    def start_epoch(self, generator: torch.Generator) -> Tensor:
        """The order of the epoch's examples, an int64 tensor on the device."""

    @abstractmethod
    def batch(self, order: Tensor, i: int, generator: torch.Generator) -> Mapping[str, Tensor]:
        """The tensors of step i."""

    @abstractmethod
    def measures(self, generator: torch.Generator, split: str, limit: int | None) -> Iterator[Mapping[str, Tensor]]:
        """Metrics of each example of a split, or of its first ``limit`` examples, in batches: (n,) each."""

    @abstractmethod
    def usage(self, generator: torch.Generator, split: str, limit: int | None) -> dict[str, float]:
        """How many bits, classes or symbols the best assignments of a split use: a metric of all examples together."""

    @torch.no_grad()
    def validate(
        self, generator: torch.Generator, *, split: str = "validation", limit: int | None = None
    ) -> dict[str, float]:
        """Mean metrics of the model on validation or test data, in evaluation mode, and its `usage`."""
        self.model.eval()
        metrics = means_and_errors(self.measures(generator, split, limit))
        means = {name: value for name, value in metrics.items() if not name.endswith("_se")}
        return means | self.usage(generator, split, limit)

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
        """Metrics of a trained model, with standard errors; samples are of importance sampling, where that is used.

        ``n_annealed`` examples are estimated by annealed importance sampling, too; ``progress`` receives the fraction done.
        """
        self.model.eval()
        return means_and_errors(self.measures(generator, split, limit)) | self.usage(generator, split, limit)
