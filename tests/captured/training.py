"""Small models to train: by the plain step, by the step that is padded as a captured one, and by the captured step."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import sparsum as sp
from sparsum import estimators as se
from sparsum.captured.graphs import padded_size
from sparsum.captured.optimizers import Optimizers
from sparsum.segments import reading_sizes

N_INPUTS, BATCH = 12, 16

Objective = Callable[["Model", Tensor, sp.estimators.AbstractEstimator, torch.Generator], Tensor]
STRUCTURES: dict[str, sp.AbstractStructure] = {
    "one-of": sp.OneOf(40),
    "bits": sp.Bits(10),
    "bits, unsymmetric": sp.Bits(10, symmetric=False),
    "budget": sp.Budget(10, 4),
    "subset": sp.Subset(10, 4),
    "groups": sp.Groups(3, 5),
    "sequence": sp.Sequence(4, 3),
    "tree": sp.Tree(4),
    "projective tree": sp.ProjectiveTree(4),
    "binary tree": sp.BinaryTree(4),
    "matching": sp.Matching(4),
    "permutation": sp.Permutation(5),
    "enumerated": sp.Enumerated(torch.randn(9, 6, generator=torch.Generator().manual_seed(0))),
}
ESTIMATORS: dict[str, Callable[[], se.AbstractEstimator]] = {
    "Dense": se.Dense,
    "Sparse": se.Sparse,
    "Sparse, alpha 1.5": lambda: se.Sparse(1.5),
    "Sparse, alpha 1.3": lambda: se.Sparse(1.3),
    "TopK": lambda: se.TopK(5),
    "SparseMAP": se.SparseMAP,
    "SparseMAP, at most 4": lambda: se.SparseMAP(max_atoms=4),
    "SparseMAP, nested": lambda: se.SparseMAP(sp.solvers.Nested()),
    "SparseMAP, active set": lambda: se.SparseMAP(sp.solvers.ActiveSet(strict=False)),
    "SparseMAP, pulled": lambda: se.SparseMAP(sp.solvers.Pulled()),
    "ScoreFunction": se.ScoreFunction,
    "SelfCritic": se.SelfCritic,
    "NVIL": lambda: se.NVIL(N_INPUTS, hidden=(8,), normalise=True),
    "LeaveOneOut": lambda: se.LeaveOneOut(3),
    "SumAndSample": lambda: se.SumAndSample(2),
    "UnorderedSet": lambda: se.UnorderedSet(3),
    "Rebar": se.Rebar,
    "Relax": lambda: se.Relax(10, N_INPUTS, hidden=(8,)),
    "Arm": se.Arm,
    "Disarm": se.Disarm,
    "GumbelSoftmax": lambda: se.GumbelSoftmax(se.Anneal(1e-2, every=3)),
    "StraightThrough": se.StraightThrough,
    "ReinMax": se.ReinMax,
    "Simple": lambda: se.Simple(2),
    "Imle": lambda: se.Imle(samples=2),
}
BOUNDS = {
    "topk_bound": se.topk_bound,
    "distinct_bound": se.distinct_bound,
    "wake_wake": se.wake_wake,
    "vimco": se.vimco,
}
# Each estimator once, and the sums over every structure that they take.
_HOME = {"Dense": "groups", "Sparse": "one-of", "Sparse, alpha 1.5": "one-of", "Sparse, alpha 1.3": "one-of"}
CASES = list(
    dict.fromkeys(
        [
            *((name, _HOME.get(name, "bits")) for name in ESTIMATORS),
            *itertools.product(("TopK", "SparseMAP"), STRUCTURES),
            *itertools.product(("SparseMAP, active set",), ("bits", "budget", "subset", "sequence", "one-of", "tree")),
            *itertools.product(("ScoreFunction", "LeaveOneOut"), ("one-of", "groups", "sequence", "tree", "enumerated")),
            *itertools.product(("Dense", "Sparse"), ("bits", "enumerated", "sequence")),
            ("SparseMAP, nested", "groups"),
            ("SparseMAP, pulled", "matching"),
            *itertools.product(BOUNDS, ("bits", "one-of", "groups")),
        ]
    )
)
# Those whose steps stay eager.
# They read from the device in a loop.
EAGER = {("SparseMAP, active set", name) for name in ("sequence", "one-of", "tree")} | {("SparseMAP, pulled", "matching")}
EAGER |= {("SparseMAP, pulled", "bits"), ("SparseMAP, active set", "groups")}
EAGER |= {("SparseMAP", name) for name in ("sequence", "tree", "matching", "projective tree", "binary tree", "permutation")}
EAGER |= {("SparseMAP", "enumerated")}
# Lawler's search for the k best checks on the host what the structure returns.
EAGER |= {("TopK", name) for name in ("tree", "projective tree", "binary tree", "matching")}


class Model(nn.Module):
    """An encoder of inputs to scores, a decoder of assignments to inputs, and what is to be trained with them."""

    def __init__(self, method: str, structure: sp.AbstractStructure, *, has_norm: bool = False) -> None:
        super().__init__()
        self.method, self.structure = method, structure
        shape = torch.Size(structure.score_shape)
        self.norm = nn.BatchNorm1d(N_INPUTS) if has_norm else nn.Identity()
        self.encoder = nn.Sequential(nn.Linear(N_INPUTS, shape.numel()), nn.Unflatten(-1, shape))
        self.decoder = nn.Linear(shape.numel(), N_INPUTS)
        self.estimator = ESTIMATORS[method]() if method in ESTIMATORS else None

    def scores(self, x: Tensor) -> Tensor:
        """Scores of a scale at which supports differ from batch to batch."""
        scores: Tensor = self.encoder(self.norm(x)) * (1 + x[:1, :1].abs()).reshape(
            1, *[1] * len(self.structure.score_shape)
        )
        return scores

    def distortion(self, z: Tensor, target: Tensor) -> Tensor:
        vectors = z if z.is_floating_point() and z.shape[1:] == self.structure.score_shape else self.structure.vectors(z)
        distortion: Tensor = (self.decoder(vectors.flatten(1).to(target.dtype)) - target).square().mean(-1)
        return distortion

    def forward(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The objective, and the calls of each example."""

        def loss(z: Tensor, row: Tensor) -> Tensor:
            return self.distortion(z, x[row])

        if self.estimator is None:
            bound = BOUNDS[self.method](self.scores(x), self.structure, lambda z, row: -loss(z, row), 5, generator=generator)
            return -bound.surrogate.mean(), bound.calls
        estimate = self.estimator(self.scores(x), self.structure, loss, context=x, generator=generator)
        return estimate.surrogate.mean(), estimate.calls


class Training:
    """A model in training.

    Args:
        model: the model.
        device: where.
        dtype: of its weights.
        make: makes the optimizer.
    """

    def __init__(
        self,
        model: Model,
        device: str = "cuda",
        dtype: torch.dtype = torch.float32,
        make: Callable[..., torch.optim.Optimizer] = lambda p: torch.optim.Adam(p, lr=1e-3),
    ) -> None:
        self.model = model.to(device, dtype)
        self.optimizer = make(self.model.parameters())
        self.generator = torch.Generator(device).manual_seed(1)
        self.n_taken = 0

    def step(self, x: Tensor) -> dict[str, Tensor]:
        """A step."""
        self.n_taken += 1
        self.optimizer.zero_grad()
        objective, calls = self.model(x, self.generator)
        objective.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return {"objective": objective, "calls": calls, "norm": norm}


def training(method: str, structure: str, *, has_norm: bool = False, **options: Any) -> Training:
    """A training with weights that do not depend on the device."""
    torch.manual_seed(0)
    return Training(Model(method, STRUCTURES[structure], has_norm=has_norm), **options)


def batches(n: int, device: str = "cuda", dtype: torch.dtype = torch.float32, size: int = BATCH) -> list[Tensor]:
    """Inputs of n steps."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(size, N_INPUTS, generator=generator).to(device, dtype) for _ in range(n)]


def rounded_up(sizes: Tensor, most: int) -> list[int]:
    """Reads sizes as captured steps pad them."""
    n, *others = sizes.tolist()
    return [padded_size(n, most), *others]


@contextlib.contextmanager
def as_captured() -> Iterator[None]:
    """Eager steps that are padded as captured ones, with the same capturable optimizer."""
    with reading_sizes(rounded_up), Optimizers(lambda: None).found():
        yield
