"""Properties of structures: the best and the k best assignments, and distributions over them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

import sparsum as sp
from sparsum.structures.scores import Scores, flatten, unflatten
from tests.properties.drawing import DTYPES, Draw
from tests.properties.registry import about

STRUCTURES: dict[str, sp.AbstractStructure] = {
    "OneOf": sp.OneOf(4),
    "Bits": sp.Bits(4),
    "Bits of the paper": sp.Bits(3, symmetric=False),
    "Budget": sp.Budget(4, 2),
    "Subset": sp.Subset(4, 2),
    "Groups": sp.Groups(2, 3),
    "Sequence": sp.Sequence(3, 2),
    "Sequence with transitions": sp.Sequence(3, 2),
    "Tree": sp.Tree(3),
    "Tree with one root": sp.Tree(3, single_root=True),
    "ProjectiveTree": sp.ProjectiveTree(3),
    "BinaryTree": sp.BinaryTree(3),
    "BinaryTree with labels": sp.BinaryTree(2, n_labels=2),
    "Matching": sp.Matching(3),
    "Matching of some": sp.Matching(2, 3),
    "Permutation": sp.Permutation(3),
    "Paths": sp.Paths([(0, 1), (0, 2), (0, 2), (1, 2), (2, 3), (1, 3)]),
    "Paths with parts": sp.Paths([(0, 1), (0, 1), (1, 2), (1, 2), (0, 2)], parts=[0, -1, 1, 2, 1]),
    "Alignment": sp.Alignment(3, 4),
    "Segmentation": sp.Segmentation(3, 2, 2),
    "Knapsack": sp.Knapsack((3, 4, 2, 10, 0), 6),
    "DecisionDiagram": sp.DecisionDiagram(4, [[1, -2], [2, 3]]),
    "Enumerated": sp.Enumerated(torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))),
}

STRUCTURE_NAMES = (
    *("OneOf", "Bits", "Budget", "Subset", "Groups", "Sequence", "Tree", "ProjectiveTree", "BinaryTree", "Matching"),
    *("Permutation", "Paths", "Alignment", "Segmentation", "Knapsack", "DecisionDiagram", "Enumerated", "AbstractStructure"),
    *("Formula", "Scores", "Potentials"),
)


class Case:
    """A structure with all its members."""

    def __init__(self, name: str) -> None:
        self.name, self.structure = name, STRUCTURES[name]
        self.shapes: list[tuple[int, ...]] = [tuple(self.structure.score_shape)]
        if name == "Sequence with transitions":
            self.shapes.append((2, 2, 2))
        self.n_parts = sum(map(math.prod, self.shapes))
        bound = self.structure.bind(self.scores(torch.zeros(1, self.n_parts, dtype=torch.float64)))
        self.bound_structure = bound.structure
        self.atoms = bound.structure.topk(bound.scores, 1000)[0]
        assert len(self.atoms) == round(math.exp(self.structure.log_count()))
        assert bool(self.bound_structure.contains(self.atoms).all())
        self.vectors = flatten(bound.structure.vectors(self.atoms)).double()
        self.exact = [[Fraction(x) for x in row] for row in self.vectors.tolist()]
        self.is_binary = bool(((self.vectors == 0) | (self.vectors == 1)).all())
        self.parts = [row.nonzero().flatten().tolist() for row in self.vectors]

    def scores(self, flat: Tensor) -> Scores:
        """Flat rows in the form of scores."""
        like = tuple(torch.zeros(1, *shape) for shape in self.shapes)
        return unflatten(flat, like if len(like) > 1 else like[0])

    def index(self, atoms: Tensor) -> Tensor:
        """The number of each atom among the members, or -1: (*lead,)."""
        n_event = self.atoms.ndim - 1
        is_same = atoms.unsqueeze(atoms.ndim - n_event) == self.atoms.to(atoms)
        is_same = is_same.flatten(atoms.ndim - n_event + 1).all(-1) if n_event else is_same
        return torch.where(is_same.any(-1), is_same.long().argmax(-1), -1)

    def below(self, row: Tensor) -> Tensor:
        """How far the score of each member is below the best, correctly rounded; -inf for forbidden ones: (n_members,)."""
        t = row.tolist()
        if self.is_binary:
            used = [[t[i] for i in parts] for parts in self.parts]
            allowed = [not any(x == -math.inf for x in each) for each in used]
            sums = [math.fsum(each) if ok else -math.inf for each, ok in zip(used, allowed, strict=True)]
            top = used[max(range(len(sums)), key=sums.__getitem__)]
            found = [
                math.fsum([*each, *(-x for x in top)]) if ok else -math.inf for each, ok in zip(used, allowed, strict=True)
            ]
            most = max(found)  # sums that round to the same number
            found = [x - most for x in found]
        else:
            exact = []
            for v in self.exact:
                is_forbidden = any(x and y == -math.inf for x, y in zip(v, t, strict=True))
                total = sum((x * Fraction(y) for x, y in zip(v, t, strict=True) if x and y != -math.inf), Fraction(0))
                exact.append(None if is_forbidden else total)
            best = max(x for x in exact if x is not None)
            found = [-math.inf if x is None else float(max(x - best, Fraction(-(10**300)))) for x in exact]
        return torch.tensor(found, dtype=torch.float64)

    def rounding(self, row: Tensor) -> float:
        """What a sum of scores in float64 may be off."""
        largest = row.masked_fill(row == -torch.inf, 0.0).abs().amax() * self.vectors.abs().amax().clamp_min(1.0)
        info = torch.finfo(torch.float64)
        # Products of denormal scores are rounded to multiples of the smallest number.
        return 4 * (self.n_parts + 2) * info.eps * max(float(largest), info.smallest_normal)


@functools.cache
def case_of(name: str) -> Case:
    """The members of a structure, enumerated once."""
    return Case(name)


def some_case(draw: Draw) -> Case:
    return case_of(draw.choice(list(STRUCTURES)))


def some_rows(draw: Draw, case: Case, n_rows: int, dtype: torch.dtype, *, most: float | None = None) -> Tensor:
    """Flat rows of scores, which may forbid parts but not all members: (n_rows, n_parts)."""
    # Sums of all parts must not overflow in the dtype; in float64, -1e290 and less are the same.
    limit = min(torch.finfo(dtype).max / (8 * case.n_parts), 1e280)
    flat = draw.table(n_rows, case.n_parts, dtype, most=limit if most is None else min(most, limit))
    if draw.integer(0, 2) == 2:
        generator = draw.generator()
        chosen = torch.randint(len(case.atoms), (n_rows,), generator=generator)
        is_forbidden = (torch.rand(flat.shape, generator=generator) < 0.4) & (case.vectors[chosen] == 0)
        flat = flat.masked_fill(is_forbidden, -torch.inf)
    return flat


@about(*STRUCTURE_NAMES, weight=12)
def the_best_and_the_k_best(draw: Draw) -> None:
    """`argmax` and `topk` against the scores of all members, up to the rounding of sums in float64."""
    case, dtype = some_case(draw), draw.choice(DTYPES)
    n_rows, k = draw.integer(0, 3), draw.integer(1, 6)
    flat = some_rows(draw, case, n_rows, dtype)
    scores = case.scores(flat)
    best = case.index(case.structure.argmax(scores))
    assert best.shape == (n_rows,)
    assert bool((best >= 0).all())
    several = case.structure.topk(scores, k)
    found = case.index(several)
    assert found.shape[0] == n_rows
    assert found.shape[1] <= min(k, len(case.atoms))
    for row in range(n_rows):
        below, tolerance = case.below(flat[row].double()), case.rounding(flat[row].double())
        assert below[best[row]] >= -tolerance, (case.name, flat[row], best[row])
        values = below[found[row][found[row] >= 0]]
        kept = values[values > -torch.inf]
        truth = below.sort(descending=True).values[:k]
        truth = truth[truth > -torch.inf]
        assert len(kept) == len(truth), (case.name, flat[row])
        assert len(set(found[row][: len(kept)].tolist())) == len(kept)
        assert bool(((kept - truth).abs() <= tolerance).all()), (case.name, flat[row], kept, truth)


@about("topk_sparsemax", *STRUCTURE_NAMES, weight=6)
def sparsemax_of_the_k_best_assignments(draw: Draw) -> None:
    """`topk_sparsemax` is the sparsemax of the k best exact scores."""
    case, dtype = some_case(draw), draw.choice(DTYPES)
    flat = some_rows(draw, case, draw.integer(0, 3), dtype)
    k = draw.integer(1, 6)
    q = sp.topk_sparsemax(case.scores(flat), case.structure, k)
    assert q.probs.dtype == dtype
    assert q.batch_shape == (len(flat),)
    index = case.index(q.atoms)
    assert bool((index >= 0).all())
    for row in range(len(flat)):
        wide = flat[row].double()
        probs, tolerance = q.probs[q.row == row].double(), case.rounding(wide)
        assert probs.sum() == torch.as_tensor(1.0).double() or abs(float(probs.sum()) - 1) <= 8 * torch.finfo(dtype).eps
        below = case.below(wide)
        assert bool((below[index[q.row == row]] > -torch.inf).all())
        if tolerance < 1e-6:
            truth = sp.sparsemax(below.sort(descending=True).values[:k])
            truth = truth[truth > 0].sort(descending=True).values
            seen = torch.zeros(max(len(truth), len(probs)), dtype=torch.float64)
            wanted = seen.clone()
            seen[: len(probs)], wanted[: len(truth)] = probs.sort(descending=True).values, truth
            limit = 8 * torch.finfo(dtype).eps + 2 * tolerance
            torch.testing.assert_close(seen, wanted, atol=limit, rtol=0)


@about("NoDistribution", "sparsemap", "topk_sparsemax", "Gibbs", weight=4)
def rows_without_a_distribution_are_named(draw: Draw) -> None:
    """NaN, +inf and only -inf in one row: an error that names this row and no other."""
    case, dtype = some_case(draw), draw.choice(DTYPES)
    n_rows = draw.integer(1, 4)
    flat = some_rows(draw, case, n_rows, dtype, most=1e3)
    row, value = draw.integer(0, n_rows - 1), draw.choice([math.nan, math.inf, -math.inf])
    used = case.vectors.any(0).nonzero().flatten().tolist()  # what stands in other parts does not matter
    flat[row, slice(None) if value == -math.inf else draw.choice(used)] = value
    if (value == -math.inf and not case.vectors.any(-1).all()) or (value == math.inf and case.name == "OneOf"):
        return  # a member without parts is not forbidden; infinite categories share the mass
    scores = case.scores(flat)
    calls = {
        "sparsemap": lambda: sp.sparsemap(scores, case.structure),
        "topk_sparsemax": lambda: sp.topk_sparsemax(scores, case.structure, 2),
        "Gibbs": lambda: sp.Gibbs(scores, case.structure),
    }
    for name, call in calls.items():
        if name == "Gibbs" and not case.structure.has_partition:
            continue
        try:
            call()
        except sp.NoDistribution as error:
            named = str(error)
        else:
            raise AssertionError(f"{name} over {case.name} accepts {value} in row {row}: {flat}")
        assert [i for i in range(n_rows) if f"row {i} " in named] == [row], named


LENGTHS: dict[str, tuple[Callable[..., sp.AbstractStructure], tuple[int, ...]]] = {
    "Sequence": (sp.Sequence, (4, 2)),
    "Tree": (sp.Tree, (4,)),
    "ProjectiveTree": (sp.ProjectiveTree, (4,)),
    "Matching": (sp.Matching, (4,)),
}


@about("sparsemap", *LENGTHS, weight=3)
def examples_of_different_lengths(draw: Draw) -> None:
    """In a batch of different lengths, each row has the mean that it has alone, whatever stands in its padding."""
    kind, args = LENGTHS[draw.choice(list(LENGTHS))]
    n, generator = draw.integer(1, 3), draw.generator()
    lengths = torch.randint(1, 5, (n,), generator=generator)
    structure = kind(*args, lengths=lengths)
    shape = tuple(structure.score_shape)
    t = draw.table(n, math.prod(shape), torch.float64, most=100.0).reshape(n, *shape)
    together = sp.sparsemap(t, structure)
    for row, length in enumerate(lengths.tolist()):
        alone = kind(length, *args[1:])
        cut = tuple(slice(length) if size == 4 else slice(None) for size in shape)
        wanted = sp.sparsemap(t[row][cut].clone(), alone).mean
        mean = together.mean
        assert isinstance(mean, Tensor)
        torch.testing.assert_close(mean[row][cut], wanted, atol=1e-6, rtol=0)
        rest = mean[row].clone()
        rest[cut] = 0
        assert not bool(rest.any())
