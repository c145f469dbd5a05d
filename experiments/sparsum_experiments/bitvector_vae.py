"""Experiment three: a VAE of greyscale images whose code is a bit vector.

The model is p(z) p(x | z), with z uniform over all vectors of D bits and pixels independent given z. The posterior q(z | x)
is sparse, or dense and sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Literal, Self

import pydantic
import torch
from torch import Tensor
from torch.distributions import Distribution

import sparsum as sp
from sparsum.estimators import AbstractEstimator, Bound, Estimate
from sparsum_experiments.data import Images, load_images
from sparsum_experiments.experiment import CATEGORICAL, AbstractExperiment, Step, temperature_of
from sparsum_experiments.models.bits_per_dim import bits_per_dim
from sparsum_experiments.models.estimators import ModeThrough
from sparsum_experiments.models.importance import LogJoint, Sampling
from sparsum_experiments.models.layers import Centred, perceptron
from sparsum_experiments.models.likelihood import pixel_log_likelihood
from sparsum_experiments.options import MAX_SIZE, CommonArgs, option
from sparsum_experiments.seeds import with_seed

HIDDEN = 128
#: Features per pixel, which a linear map shared by all pixels turns into logits.
RANK = 5
#: The largest number of bits for which all vectors are enumerated.
MAX_LISTED_BITS = 12
# Batches that a GPU evaluates at once.
_GPU_BATCHES = 8
#: A bit is in use if each of its values occurs in at least this fraction of the images.
LEAST_USED = 0.01
#: Validation images on which the sharpness of the proposal is selected.
N_CHOOSING = 256
#: Methods whose objective is a bound other than the ELBO.
BOUNDS = ("topk-bound", "wake-wake", "distinct-bound")
#: Methods that use a solver.
SOLVED = ("sparsemap", "sparsemap-budget")


class Args(CommonArgs):
    """The options of this experiment."""

    bits: int = option(32, "Number of bits D.", ge=1, le=MAX_SIZE)
    k: int = option(10, "Number of atoms or samples.", ge=1, methods=("topk", *BOUNDS), is_main=True)
    budget: int | None = option(
        None, "Largest number of bits that are 1. [default: half of them]", methods=("sparsemap-budget",)
    )
    solver: Literal["", "nested", "systematic", "active-set"] = option(
        "", "SparseMAP's solver. [default: the structure's own]", methods=SOLVED, is_main=True
    )
    # The atoms of the systematic solver depend on the order; metrics always use the fixed one.
    bit_order: Literal["fixed", "random", "sorted"] = option(
        "fixed", "Order of the bits in training: fixed, random for each image and step, or sorted by score.", methods=SOLVED
    )
    # The network can undo it: it changes the optimisation, not what can be learned.
    score_temperature: float = option(1.0, "Divides the scores.", gt=0)
    score_centre: Literal["none", "batch"] = option(
        "none", "batch subtracts each bit's mean score over the batch, which helps to keep all bits in use."
    )
    entropy: float = option(
        1.0,
        "Weight of the posterior's entropy in the objective; 1 is the ELBO.",
        ignored_by=BOUNDS,
        changes_cost=False,
        is_main=True,
    )

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if problem := _problem(self):
            raise ValueError(problem)
        return self

    @property
    def structure(self) -> sp.Bits | sp.Budget:
        """The support of the posterior; the prior is over all bit vectors."""
        if self.method != "sparsemap-budget":
            return sp.Bits(self.bits)
        return sp.Budget(self.bits, self.bits // 2 if self.budget is None else self.budget)


def _problem(args: Args) -> str:
    """Which options are inconsistent; empty if none are."""
    is_systematic = args.method in SOLVED and args.solver in {"", "systematic"}
    if args.method in {"dense", "sparse", "entmax15"} and args.bits > MAX_LISTED_BITS:
        return (
            f"{args.method} enumerates all 2**bits vectors, so --bits must be at most {MAX_LISTED_BITS}, got {args.bits}; "
            "topk and sparsemap support any number"
        )
    if args.method == "sparsemap-budget" and args.budget is not None and not 1 <= args.budget <= args.bits:
        return f"--budget must be from 1 to {args.bits}, the number of bits, got {args.budget}"
    if (args.method, args.solver) == ("sparsemap-budget", "nested"):
        return "--solver nested does not support a budget: use systematic or active-set with sparsemap-budget"
    if args.bit_order != "fixed" and not is_systematic:
        return f"--bit-order {args.bit_order} requires the systematic solver of sparsemap or sparsemap-budget"
    if args.score_centre == "batch" and args.batch_size < 2:
        return f"--score-centre batch needs a --batch-size of at least 2, got {args.batch_size}"
    if args.method in BOUNDS and args.entropy != 1:
        return f"the objective of {args.method} has no entropy term, so --entropy must be 1, got {args.entropy}"
    if args.method in BOUNDS and args.k < 2:
        return f"{args.method} compares codes, so --k must be at least 2, got {args.k}"
    return ""


#: The paper limits the active set to 300 steps; unconverged solutions are used as they are, and counted.
SOLVERS: dict[str, sp.solvers.AbstractSolver | None] = {
    "": None,
    "nested": sp.solvers.Nested(),
    "systematic": sp.solvers.Systematic(),
    "active-set": sp.solvers.ActiveSet(max_steps=300, strict=False),
}

#: The posterior of each method, and the estimator of its expectations.
ESTIMATORS: dict[str, Callable[[Args, int], AbstractEstimator]] = {
    **dict.fromkeys(("topk", "topk-bound"), lambda args, _: sp.estimators.TopK(args.k)),
    **dict.fromkeys(SOLVED, lambda args, _: sp.estimators.SparseMAP(SOLVERS[args.solver])),
    **{method: CATEGORICAL[method] for method in ("sfe", "sfe-plus", "nvil")},
    **dict.fromkeys(("wake-wake", "distinct-bound"), lambda *_: sp.estimators.ScoreFunction(baseline=False)),
    **{method: CATEGORICAL[method] for method in ("gumbel", "st-gumbel")},
    "st-gumbel-mode": lambda args, _: ModeThrough(temperature_of(args)),
    "dense": lambda args, n_pixels: sp.estimators.Dense(chunk_size=_chunk_size(args, n_pixels)),
    "sparse": lambda args, n_pixels: sp.estimators.Sparse(chunk_size=_chunk_size(args, n_pixels)),
    "entmax15": lambda args, n_pixels: sp.estimators.Sparse(1.5, chunk_size=_chunk_size(args, n_pixels)),
}
# The metric of each method's ``is_exact``: the truncation to k atoms is exact, or the solver has not converged.
_CERTIFICATES = dict.fromkeys(("topk", "topk-bound"), ("exact", True)) | dict.fromkeys(SOLVED, ("unsolved", False))


def _n_at_once(n_pixels: int) -> int:
    """Bit vectors to decode at a time, such that the features of their pixels take at most 64 MB."""
    return max(1, min(2**14, 2**24 // (n_pixels * RANK)))


def _chunk_size(args: Args, n_pixels: int) -> int | None:
    """None if the atoms of a batch fit in memory: chunks bound the memory, but the backward pass decodes them again."""
    n_at_once = _n_at_once(n_pixels)
    return None if args.batch_size * 2**args.bits <= n_at_once else n_at_once


class Model(torch.nn.Module):
    r"""The inference network q(z | x) and the generative network p(x | z).

    Called with a batch, it returns the negative ELBO under the uniform prior over all :math:`2^D` vectors:

    .. math:: \mathbb{E}_q[-\log p(x \mid z)] - H(q) + D \log 2
    """

    def __init__(self, args: Args, n_pixels: int, n_levels: int) -> None:
        super().__init__()
        self.structure, self.log_count = args.structure, args.bits * math.log(2)
        self.n_pixels, self.n_levels = n_pixels, n_levels
        self.inference = perceptron(n_pixels, HIDDEN, args.bits)
        self.centring = Centred(args.bits) if args.score_centre == "batch" else None
        self.generative = perceptron(args.bits, HIDDEN, n_pixels * RANK)
        self.levels = torch.nn.Linear(RANK, n_levels)
        self.estimator = ESTIMATORS[args.method](args, n_pixels)
        self.sampler = sp.estimators.ScoreFunction(baseline=False)
        self.certificate = _CERTIFICATES.get(args.method)
        self.method, self.k = args.method, args.k
        self.bit_order, self.temperature, self.entropy = args.bit_order, args.score_temperature, args.entropy

    def pixels(self, x: Tensor) -> Tensor:
        """Grey levels scaled to [0, 1], in the dtype of the weights."""
        return x.to(self.levels.weight.dtype) / (self.n_levels - 1)

    def scores(self, x: Tensor) -> Tensor:
        """One score per bit, in the dtype of the weights also under autocast: (n, n_pixels) -> (n, n_bits)."""
        scores: Tensor = self.inference(self.pixels(x)).to(self.levels.weight.dtype)
        if self.centring is not None:
            scores = self.centring(scores)
        return scores / self.temperature

    def log_likelihood(self, z: Tensor, x: Tensor) -> Tensor:
        """The log-likelihood log p(x | z) of each pair: (n, n_bits), uint8 (n, n_pixels) -> (n,)."""
        features = self.generative(z).unflatten(-1, (self.n_pixels, RANK))
        return pixel_log_likelihood(features, self.levels.weight, self.levels.bias, x)

    def log_joint(self, x: Tensor) -> LogJoint:
        """The log-density log p(x, z) as a function of packed codes and the rows of their images."""
        return lambda z, row: self.log_likelihood(z, x[row]) - self.log_count

    def estimate(self, x: Tensor, generator: torch.Generator) -> Estimate:
        """The estimate of the expected distortion."""
        # Metrics in evaluation must be bounds, and the loss of a relaxed code is not a bound.
        is_relaxed = self.estimator.needs_relaxed_loss and not self.training
        estimator = self.sampler if is_relaxed else self.estimator

        scores = self.scores(x)
        order = self._order(scores, generator)
        places = None if order is None else order.argsort(-1)

        def distortion(z: Tensor, row: Tensor) -> Tensor:
            return -self.log_likelihood(z if places is None else z.gather(-1, places[row]), x[row])

        ordered = scores if order is None else scores.gather(-1, order)
        return estimator(ordered, self.structure, distortion, context=self.pixels(x), generator=generator)

    def _order(self, scores: Tensor, generator: torch.Generator) -> Tensor | None:
        """The order of the bits of each image in the solver, (n, n_bits); None for the fixed order."""
        if self.bit_order == "fixed" or not self.training:
            return None
        if self.bit_order == "sorted":
            return scores.detach().argsort(-1)
        return torch.rand(scores.shape, generator=generator, device=scores.device).argsort(-1)

    def posterior(self, x: Tensor, generator: torch.Generator) -> Distribution:
        """The distribution q(z | x) of each image."""
        return self.estimate(x, generator).distribution

    def measures(self, estimate: Estimate) -> dict[str, Tensor]:
        """The metrics of each image: (n,) each."""
        q, distortion = estimate.distribution, estimate.value
        entropy = q.entropy().detach()
        rate = self.log_count - entropy
        measures = {"elbo": -distortion - rate, "rate": rate, "distortion": distortion, "entropy": entropy}
        if self.certificate is not None and isinstance(q, sp.SparseDistribution):
            name, counted = self.certificate
            measures[name] = (q.is_exact == counted).float()
        return measures

    def forward(self, batch: Mapping[str, Tensor], generator: torch.Generator) -> Step:
        """The loss of a step: the negative ELBO, or the negative of another bound."""
        estimate: Estimate | Bound
        if self.method in BOUNDS:
            estimate = self.bound(batch["x"], generator)
            objective = -estimate.surrogate.mean()
            terms = {"bound": estimate.value.mean()}
        else:
            estimate = self.estimate(batch["x"], generator)
            objective = (estimate.surrogate - self.entropy * estimate.distribution.entropy()).mean() + self.log_count
            terms = {name: values.mean() for name, values in self.measures(estimate).items()}
        if self.centring is not None:
            self.centring.keep()
        return Step(objective, {"loss": objective.detach(), **terms}, estimate.calls)

    def bound(self, x: Tensor, generator: torch.Generator) -> Bound:
        """The bound of each image that the methods in `BOUNDS` maximise."""
        if self.method == "topk-bound":
            return sp.estimators.topk_bound(self.scores(x), self.structure, self.log_joint(x), self.k)
        if self.method == "distinct-bound":
            return sp.estimators.distinct_bound(
                self.scores(x), self.structure, self.log_joint(x), self.k, generator=generator
            )
        q = sp.Gibbs(self.scores(x), self.structure, validate_args=self.estimator.validate_args)
        samples = q.sample((self.k,), generator=generator)  # shape: (k, n, n_bits)
        row = torch.arange(len(x), device=x.device).repeat(self.k)
        log_probs = q.log_prob(samples)
        log_joint = self.log_joint(x)(samples.flatten(0, 1), row).reshape(log_probs.shape)
        return sp.estimators.wake_wake_from_weights(log_joint - log_probs, log_probs)


class BitvectorVAE(AbstractExperiment):
    """The third experiment of the paper."""

    name: ClassVar[str] = "bitvector-vae"
    methods: ClassVar[tuple[str, ...]] = tuple(ESTIMATORS)
    criterion: ClassVar[str] = "elbo"
    own_criteria: ClassVar[Mapping[str, str]] = dict.fromkeys(BOUNDS, "bound")
    judges: ClassVar[Mapping[str, int]] = {f"bits_per_dim_{way}": -1 for way in ("paper", "proposal", "annealed")}
    remedy: ClassVar[str] = " or --score-centre batch"
    args_class: ClassVar[type[CommonArgs]] = Args
    args: Args

    def __init__(self, args: Args, device: torch.device, images: Images | None = None) -> None:
        """Build the model, and load the data unless ``images`` are given."""
        self.args, self.device = args, device
        # The authors hold out 5,000 images here, and 10,000 in their first experiment.
        self.images = images or load_images(args.data, args.data_dir, max_validation=5_000, device=device)
        self.data_files = self.images.digests
        n_train = len(self.images.train.x)
        self.n_steps, self.n_calls_per_step = n_train // args.batch_size, args.batch_size
        if not self.n_steps:
            raise ValueError(f"--batch-size must be at most {n_train}, the training images, got {args.batch_size}")
        sizes = self.images.train.x.shape[1], self.images.n_levels
        self.model: Model = with_seed(lambda: Model(args, *sizes), args.seed, "weights").to(device)

    @property
    def is_sparse_sum(self) -> bool:
        """The calls of a bound are not the assignments with mass."""
        return super().is_sparse_sum and self.args.method not in BOUNDS

    @property
    def is_capturable(self) -> bool:
        """Steps in chunks cannot be captured: the number of chunks depends on the data."""
        return getattr(self.estimator, "chunk_size", None) is None

    @property
    def is_divisible(self) -> bool:
        """Centred scores depend on the other examples of the batch."""
        return self.model.centring is None

    def start_epoch(self, generator: torch.Generator) -> Tensor:
        """A permutation of the training images; an incomplete last batch is dropped."""
        return torch.randperm(len(self.images.train.x), generator=generator, device=self.device)

    def batch(self, order: Tensor, i: int, generator: torch.Generator) -> Mapping[str, Tensor]:
        """The images of step i."""
        size = self.args.batch_size
        return {"x": self.images.train.x[order[i * size : (i + 1) * size]]}

    def measures(self, generator: torch.Generator, split: str, limit: int | None) -> Iterator[Mapping[str, Tensor]]:
        """The ELBO and its terms, exact if the method is a sum, else with one discrete sample per image.

        For methods that maximise another bound, also the bound; ``calls`` are then those of the bound.
        """
        n_each = self.args.batch_size * (1 if self.device.type == "cpu" else _GPU_BATCHES)
        for x in getattr(self.images, split).x[:limit].split(n_each):
            estimate = self.model.estimate(x, generator)
            measures = {**self.model.measures(estimate), "calls": estimate.calls}
            if self.args.method in BOUNDS:
                bound = self.model.bound(x, generator)
                measures |= {"bound": bound.value, "calls": bound.calls}
            yield measures

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
        """The metrics of `validate` with standard errors over images, and the results of `bits_per_dim`.

        The standard errors of bits per dimension are those of the sampling and, if only some images are annealed, of their
        choice.
        """
        metrics = super().evaluate(generator, split=split, limit=limit)
        x, held_out = getattr(self.images, split).x[:limit], self.images.validation.x[:limit][:N_CHOOSING]
        sampling, size = Sampling(n_samples, generator, _n_at_once(self.model.n_pixels)), self.args.batch_size
        bits = bits_per_dim(self.model, x, held_out, sampling, size, n_annealed=n_annealed, progress=progress)
        return metrics | bits

    def usage(self, generator: torch.Generator, split: str, limit: int | None) -> dict[str, float]:
        """``used_bits``: the number of bits that are 0 in at least 1% and 1 in at least 1% of the images' best codes."""
        return {"used_bits": self.n_used_bits(getattr(self.images, split).x[:limit])}

    def n_used_bits(self, x: Tensor) -> float:
        """The number of bits that the best codes of images use."""
        codes = [self.model.structure.argmax(self.model.scores(part)) for part in x.split(_n_at_once(x.shape[1]))]
        n_on = torch.cat(codes).sum(0)
        return float((torch.minimum(n_on, len(x) - n_on) >= LEAST_USED * len(x)).sum())
