"""Scores that are hard to solve, structures small enough to list, and the solution over the list in exact arithmetic.

``python -m tests.solvers.adversarial`` prints, for each structure, how many rows were certified, and how far they are from
the truth.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

import sparsum as sp
from sparsum.solvers import AbstractSolver, ActiveSet, NotConverged, Pulled
from sparsum.structures.scores import flatten, unflatten
from tests.reference import sparsemax_by_sorting

Vector = list[Fraction]


@dataclass(frozen=True)
class Knapsack(sp.AbstractStructure):
    """Bits of limited weight, as a user would write it: nothing but an argmax is declared."""

    weights: tuple[float, ...] = (1.0, 2.0, 2.0, 3.0)
    most: float = 4.0

    def argmax(self, scores: Tensor) -> Tensor:
        bits = torch.tensor(list(itertools.product((0.0, 1.0), repeat=len(self.weights))), dtype=torch.float64)
        bits = bits[bits @ torch.tensor(self.weights, dtype=torch.float64) <= self.most]
        values = torch.where(bits > 0, scores.double().unsqueeze(-2), 0.0).sum(-1)
        return bits[values.argmax(-1)].to(scores.dtype)


def _points(scale: float) -> Tensor:
    return scale * torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


#: The structure, the scores' shapes without the batch, and the size of its vectors.
CASES: dict[str, tuple[sp.AbstractStructure, tuple[tuple[int, ...], ...], float]] = {
    "tags": (sp.Sequence(3, 2), ((3, 2),), 1.0),
    "tags and transitions": (sp.Sequence(3, 2), ((3, 2), (2, 2, 2)), 1.0),
    "transitions that are not regularised": (sp.Sequence(3, 2, regularise_transitions=False), ((3, 2), (2, 2, 2)), 1.0),
    "trees": (sp.Tree(3), ((3, 3),), 1.0),
    "trees with one root": (sp.Tree(3, single_root=True), ((3, 3),), 1.0),
    "permutations": (sp.Matching(3), ((3, 3),), 1.0),
    "matchings": (sp.Matching(2, 4), ((2, 4),), 1.0),
    "groups": (sp.Groups(2, 3), ((2, 3),), 1.0),
    "one of four": (sp.OneOf(4), ((4,),), 1.0),
    "bits": (sp.Bits(4), ((4,),), 1.0),
    "bits of the paper": (sp.Bits(4, symmetric=False), ((4,),), 1.0),
    "budget": (sp.Budget(5, 2), ((5,),), 1.0),
    "budget of the paper": (sp.Budget(5, 2, symmetric=False), ((5,),), 1.0),
    "subsets": (sp.Subset(5, 2), ((5,),), 1.0),
    "points": (sp.Enumerated(_points(1.0)), ((3,),), 1.0),
    "small points": (sp.Enumerated(_points(1e-5)), ((3,),), 1e-5),
    "large points": (sp.Enumerated(_points(1e6)), ((3,),), 1e6),
    "one's own": (Knapsack(), ((4,),), 1.0),
}


def members(structure: sp.AbstractStructure, shapes: tuple[tuple[int, ...], ...]) -> Tensor:
    """All vectors of a structure: (n_members, n_parts)."""
    zeros = tuple(torch.zeros(1, *shape, dtype=torch.float64) for shape in shapes)
    bound = structure.bind(zeros if len(zeros) > 1 else zeros[0])
    if isinstance(structure, sp.Enumerated | sp.OneOf):
        atoms = torch.arange(round(math.exp(structure.log_count())))
    elif structure.bit_counts() is not None or isinstance(structure, Knapsack):
        atoms = torch.tensor(list(itertools.product((0.0, 1.0), repeat=shapes[0][0])), dtype=torch.float64)
        if isinstance(structure, Knapsack):
            atoms = atoms[atoms @ torch.tensor(structure.weights, dtype=torch.float64) <= structure.most]
        else:
            atoms = atoms[structure.contains(atoms)]
    else:
        atoms = torch.tensor(list(itertools.product(range(shapes[0][1]), repeat=shapes[0][0])))
        atoms = atoms[structure.contains(atoms)]
    return flatten(bound.structure.vectors(atoms)).double()


Maker = Callable[[Tensor, Tensor, torch.Generator], Tensor]


def _alone(t: Tensor, vectors: Tensor, generator: torch.Generator) -> Tensor:
    """Forbid all parts but those of one assignment."""
    chosen = vectors[torch.randint(len(vectors), (len(t),), generator=generator)]
    return torch.where(chosen != 0, t, -torch.inf)


def _two(t: Tensor, vectors: Tensor, generator: torch.Generator) -> Tensor:
    """Forbid all parts but those of two assignments."""
    return torch.maximum(_alone(t, vectors, generator), _alone(t, vectors, generator))


def _swamped(t: Tensor, vectors: Tensor, generator: torch.Generator) -> Tensor:
    """One or more entries are as large as 1e17, of either sign."""
    place = torch.rand(t.shape, generator=generator, dtype=t.dtype) < 1 / t.shape[-1]
    size = 10 ** (3 + 14 * torch.rand(len(t), 1, generator=generator, dtype=t.dtype))
    return torch.where(place, size * t.sign(), t)


def _masked(t: Tensor, vectors: Tensor, generator: torch.Generator) -> Tensor:
    """Some entries are lowered by a large number, as one does to exclude them."""
    place = torch.rand(t.shape, generator=generator, dtype=t.dtype) < 0.3
    size = torch.tensor([1e4, 1e9, 1e15, 1e30], dtype=t.dtype)[torch.randint(4, (len(t), 1), generator=generator)]
    return torch.where(place, -size, t)


def _offset(t: Tensor, vectors: Tensor, generator: torch.Generator) -> Tensor:
    """All entries are raised by the same large number."""
    return t + 10 ** (10 * torch.rand(len(t), 1, generator=generator, dtype=t.dtype))


def _nearly_binding(t: Tensor, vectors: Tensor, generator: torch.Generator) -> Tensor:
    """The clamped scores, of either kind of bits, sum to nearly 2."""
    noise = torch.tensor([0.0, 1e-16, -1e-16, 1e-12, -1e-12, 1e-9, -1e-9, 1e-6], dtype=t.dtype)
    target = t.sigmoid() / t.sigmoid().sum(-1, keepdim=True) * 2 + noise[torch.randint(8, (len(t), 1), generator=generator)]
    is_plain = torch.rand(len(t), 1, generator=generator) < 0.5
    return torch.where(is_plain, target, 2 * target - 1)


def _vertices(t: Tensor, vectors: Tensor, generator: torch.Generator) -> Tensor:
    """Nearly the mean of two vectors."""
    first, second = (vectors[torch.randint(len(vectors), (len(t),), generator=generator)] for _ in range(2))
    size = 10 ** (-16 + 14 * torch.rand(len(t), 1, generator=generator, dtype=t.dtype))
    return (first + second) / 2 + size * t


def _scaled(t: Tensor, vectors: Tensor, generator: torch.Generator) -> Tensor:
    """Scales from 1e-6 to 1e6."""
    return t * 10 ** (12 * torch.rand(len(t), 1, generator=generator, dtype=t.dtype) - 6)


MAKERS: dict[str, Maker] = {
    "normal": lambda t, vectors, generator: t,
    "scaled": _scaled,
    "integers": lambda t, vectors, generator: (2 * t).round(),
    "scaled integers": lambda t, vectors, generator: _scaled((2 * t).round(), vectors, generator),
    "halves": lambda t, vectors, generator: (2 * t).round() / 2,
    "one assignment": _alone,
    "two assignments": _two,
    "swamped": _swamped,
    "masked": _masked,
    "offset": _offset,
    "nearly binding": _nearly_binding,
    "vertices": _vertices,
}


def rows(vectors: Tensor, size: float, n: int, seed: int) -> dict[str, Tensor]:
    """Rows of scores of each kind, (n, n_parts) each, in the unit of the vectors."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(len(MAKERS), n, vectors.shape[-1], dtype=torch.float64, generator=generator)
    return {name: size * make(t, vectors / size, generator) for (name, make), t in zip(MAKERS.items(), normal, strict=True)}


@dataclass
class Outcome:
    """What was found of some rows."""

    n_rows: int
    n_named: int  # rows that the solver says it has not solved
    gap: float  # the largest duality gap of the others, exactly
    distance: float  # their largest distance to the exact mean


def attack(
    name: str,
    kind: str,
    n: int,
    n_exact: int,
    *,
    seed: int = 0,
    closed_form: AbstractSolver | None = None,
    device: str = "cpu",
) -> Outcome:
    """Solve rows of one kind, and compare those that are certified with the truth; `n_exact` of them with the exact mean.

    By default the active set solves them.
    """
    structure, shapes, size = CASES[name]
    vectors = members(structure, shapes)
    flat = rows(vectors, size, n, seed)[kind]
    like = tuple(torch.zeros(1, *shape) for shape in shapes)
    scores = unflatten(flat, like if len(like) > 1 else like[0])
    solver = ActiveSet() if closed_form is None else closed_form
    loose = dataclasses.replace(solver, strict=False) if isinstance(solver, ActiveSet | Pulled) else solver
    there = unflatten(flat.to(device), like if len(like) > 1 else like[0])
    q = sp.sparsemap(there, structure, solver=loose).to("cpu")
    try:
        sp.sparsemap(there, structure, solver=solver)
        named: set[int] = set()
    except NotConverged as error:
        named = set(error.rows)
    assert named == set((~q.is_exact).nonzero().flatten().tolist())
    assert bool(structure.contains(q.atoms).all())
    found = Outcome(n, len(named), 0.0, 0.0)
    problem = Exact.of(structure, vectors, size)
    for row in range(n):
        if row in named:
            continue
        mean = problem.mean(_vectors_of(q, structure, scores, row), q.probs[q.row == row])
        b, allowed = problem.linear(flat[row])
        found.gap = max(found.gap, float(problem.gap(b, allowed, mean)))
        if row < n_exact and all(problem.weight):  # else the mean is not unique
            found.distance = max(found.distance, problem.distance(mean, problem.solve(b, allowed)))
    return found


def attack_topk(name: str, kind: str, n: int, k: int, seed: int = 0) -> float:
    """The largest error of the probabilities of `topk_sparsemax`, whatever the atoms of a tie."""
    structure, shapes, size = CASES[name]
    vectors = members(structure, shapes)
    flat = rows(vectors, size, n, seed)[kind]
    like = tuple(torch.zeros(1, *shape) for shape in shapes)
    q = sp.topk_sparsemax(unflatten(flat, like if len(like) > 1 else like[0]), structure, k)
    problem, error = Exact.of(structure, vectors, 1.0), 0.0
    for row, t in enumerate(flat):
        is_forbidden = (t == -torch.inf).tolist()
        parts = [Fraction(0) if f else Fraction(x) for x, f in zip(t.tolist(), is_forbidden, strict=True)]
        allowed = [v for v in problem.vectors if not any(f and x for x, f in zip(v, is_forbidden, strict=True))]
        values = sorted((_dot(v, parts) for v in allowed), reverse=True)[:k]
        # Exact differences; those of more than 1 have no mass.
        below = torch.tensor([float(max(x - values[0], Fraction(-2))) for x in values], dtype=torch.float64)
        wanted, found = torch.zeros(k, dtype=torch.float64), torch.zeros(k, dtype=torch.float64)
        wanted[: len(values)] = sparsemax_by_sorting(below)
        probs = q.probs[q.row == row]
        found[: len(probs)] = probs
        error = max(error, float((wanted - found.sort(descending=True).values).abs().max()))
    return error


def _vectors_of(q: sp.SparseDistribution, structure: sp.AbstractStructure, scores: Any, row: int) -> Tensor:
    atoms = q.atoms[q.row == row]
    return flatten(structure.bind(scores).structure.vectors(atoms)).double()


@dataclass(frozen=True)
class Exact:
    """SparseMAP over a list of vectors in rational arithmetic, with vectors in the unit of their size."""

    structure: sp.AbstractStructure
    vectors: list[Vector]
    weight: Vector
    size: Fraction

    @classmethod
    def of(cls, structure: sp.AbstractStructure, vectors: Tensor, size: float) -> Exact:
        weight = [Fraction(1)] * vectors.shape[-1]
        counts = structure.bit_counts()
        if counts is not None and counts.is_symmetric:
            weight = [Fraction(2)] * vectors.shape[-1]
        if isinstance(structure, sp.Sequence) and not structure.regularise_transitions:
            n_tags = structure.length * structure.n_tags
            weight[n_tags:] = [Fraction(0)] * (len(weight) - n_tags)
        return cls(structure, _divided(vectors, size), weight, Fraction(size))

    def linear(self, scores: Tensor) -> tuple[Vector, list[Vector]]:
        """The linear term with 0 for forbidden parts, and the vectors that are allowed."""
        is_forbidden = (scores == -torch.inf).tolist()
        counts = self.structure.bit_counts()
        shift = 1 if counts is not None and counts.is_symmetric else 0
        b = [
            Fraction(0) if f else Fraction(t) / self.size + shift for t, f in zip(scores.tolist(), is_forbidden, strict=True)
        ]
        return b, [v for v in self.vectors if not any(f and x for x, f in zip(v, is_forbidden, strict=True))]

    def mean(self, vectors: Tensor, probs: Tensor) -> Vector:
        """The mean of vectors, with probabilities that sum to 1 exactly."""
        p = [Fraction(x) for x in probs.tolist()]
        columns = zip(*_divided(vectors, float(self.size)), strict=True)
        return [sum((x * y for x, y in zip(p, column, strict=True)), Fraction(0)) / sum(p) for column in columns]

    def residual(self, b: Vector, mean: Vector) -> Vector:
        return [x - w * m for x, w, m in zip(b, self.weight, mean, strict=True)]

    def gap(self, b: Vector, allowed: list[Vector], mean: Vector) -> Fraction:
        """The duality gap over all vectors."""
        r = self.residual(b, mean)
        return max(_dot(v, r) for v in allowed) - _dot(mean, r)

    def distance(self, mean: Vector, other: Vector) -> float:
        """The largest difference in a part that is regularised."""
        return max(float(abs(x - y)) for x, y, w in zip(mean, other, self.weight, strict=True) if w)

    def solve(self, b: Vector, allowed: list[Vector]) -> Vector:
        """The exact mean, by Wolfe's algorithm: minor cycles on affinely independent vectors."""
        chosen = [max(allowed, key=lambda v: _dot(v, b) - _dot(v, self._weighted(v)) / 2)]
        probs = [Fraction(1)]
        while True:
            mean = [sum((p * v[i] for p, v in zip(probs, chosen, strict=True)), Fraction(0)) for i in range(len(b))]
            r = self.residual(b, mean)
            best = max(allowed, key=lambda v: _dot(v, r))
            if _dot(best, r) <= _dot(mean, r):
                return mean
            chosen, probs = [*chosen, best], [*probs, Fraction(0)]
            chosen, probs = self._minor(b, chosen, probs)

    def _minor(self, b: Vector, chosen: list[Vector], probs: Vector) -> tuple[list[Vector], Vector]:
        while True:
            target = self._affine(b, chosen)
            if min(target) >= 0:
                break
            steps = [p / (p - t) for p, t in zip(probs, target, strict=True) if t < 0]
            length = min(steps)
            probs = [p + length * (t - p) for p, t in zip(probs, target, strict=True)]
            kept = [i for i, p in enumerate(probs) if p > 0]
            chosen, probs = [chosen[i] for i in kept], [probs[i] for i in kept]
        kept = [i for i, t in enumerate(target) if t > 0]
        return [chosen[i] for i in kept], [target[i] for i in kept]

    def _weighted(self, v: Vector) -> Vector:
        return [w * x for w, x in zip(self.weight, v, strict=True)]

    def _affine(self, b: Vector, chosen: list[Vector]) -> Vector:
        """The best weights that sum to 1, of any sign, by Gauss elimination of the bordered system."""
        n = len(chosen)
        system = [[_dot(u, self._weighted(v)) for v in chosen] + [Fraction(1), _dot(u, b)] for u in chosen]
        system.append([Fraction(1)] * n + [Fraction(0), Fraction(1)])
        for i in range(n + 1):
            pivot = next(j for j in range(i, n + 1) if system[j][i])
            system[i], system[pivot] = system[pivot], system[i]
            for j in range(n + 1):
                if j != i and system[j][i]:
                    factor = system[j][i] / system[i][i]
                    system[j] = [x - factor * y for x, y in zip(system[j], system[i], strict=True)]
        return [system[i][-1] / system[i][i] for i in range(n)]


def _dot(x: Vector, y: Vector) -> Fraction:
    return sum((a * c for a, c in zip(x, y, strict=True) if a), Fraction(0))


def _divided(vectors: Tensor, size: float) -> list[Vector]:
    """The exact quotients of entries and a number."""
    return [[Fraction(x) / Fraction(size) for x in v] for v in vectors.tolist()]


def main() -> None:
    """Attack everything, with as many rows as `make test-all` does."""
    for name in CASES:
        for kind in MAKERS:
            found = attack(name, kind, 850, 20)
            print(f"{name:40} {kind:16} {found}")  # noqa: T201


if __name__ == "__main__":
    main()
