"""Every structure passes the published conformance test, with every solver that takes it; and broken ones do not."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum.solvers import AbstractSolver, ActiveSet, Nested, Pulled, Systematic
from sparsum.structures.scores import Scores

VECTORS = torch.randn(7, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

STRUCTURES: list[sp.AbstractStructure] = [
    sp.OneOf(1),
    sp.OneOf(5),
    *(sp.Bits(4, symmetric=symmetric) for symmetric in (True, False)),
    *(sp.Budget(5, most, symmetric=symmetric) for most in (0, 1, 2, 5) for symmetric in (True, False)),
    *(sp.Subset(5, k, symmetric=symmetric) for k in (0, 1, 3, 5) for symmetric in (True, False)),
    sp.Groups(3, 3),
    sp.Groups(1, 4),
    sp.Sequence(3, 3),
    sp.Sequence(1, 4),
    sp.Tree(3),
    sp.Tree(3, single_root=True),
    sp.ProjectiveTree(1),
    sp.ProjectiveTree(3),
    sp.ProjectiveTree(3, single_root=True),
    sp.BinaryTree(1),
    sp.BinaryTree(4),
    sp.BinaryTree(3, n_labels=2),
    sp.Matching(3),
    sp.Matching(2, 4),
    sp.Permutation(1),
    sp.Permutation(4),
    sp.Paths([(0, 1)]),
    sp.Paths([(0, 1), (0, 2), (0, 2), (1, 2), (2, 3), (1, 3)]),
    sp.Paths([(0, 1), (0, 1), (1, 2), (1, 2), (0, 2)], parts=[0, -1, 1, 2, 1]),
    sp.Alignment(1, 1),
    sp.Alignment(3, 6),
    sp.Segmentation(1, 1, 1),
    sp.Segmentation(4, 2, 2),
    sp.Knapsack((2,), 2),
    sp.Knapsack((3, 4, 2, 10, 0), 6),
    sp.DecisionDiagram(1, []),
    sp.DecisionDiagram(4, [[1, -2], [2, 3]]),
    sp.Enumerated(VECTORS),
]


def solvers_of(structure: sp.AbstractStructure) -> list[AbstractSolver | None]:
    """None, which is the structure's own, those that take any structure, and the closed forms that take it."""
    found: list[AbstractSolver | None] = [None, ActiveSet(), Pulled()]
    if isinstance(structure, sp.Bits | sp.Groups):
        found.append(Nested())
    if isinstance(structure, sp.Bits | sp.Budget | sp.Subset):
        found.append(Systematic())
    return found


CASES = [(structure, solver) for structure in STRUCTURES for solver in solvers_of(structure)]


@pytest.mark.parametrize(("structure", "solver"), CASES, ids=lambda value: repr(value)[:40])
def test_structure(structure: sp.AbstractStructure, solver: AbstractSolver | None) -> None:
    report = sp.testing.check_structure(structure, solver=solver)
    assert set(report.counts) >= {
        "log_count",
        "distinct",
        "argmax",
        "topk",
        "batch",
        "sparsemap",
        "gradient",
        "topk_sparsemax",
    }
    assert report.counts["argmax"] == 20


@pytest.mark.parametrize("regularise", [True, False])
def test_sequences_with_transitions(regularise: bool) -> None:
    def draw(generator: torch.Generator, n: int) -> Scores:
        transition = torch.randn(n, 2, 2, 2, dtype=torch.float64, generator=generator)
        return torch.randn(n, 3, 2, dtype=torch.float64, generator=generator), transition

    structure = sp.Sequence(3, 2, regularise_transitions=regularise)
    members = torch.tensor(list(itertools.product(range(2), repeat=3)))
    report = sp.testing.check_structure(structure, members=members, random_scores=draw)
    assert report.counts["gradient"] == 3


def test_members_are_those_of_brute_force() -> None:
    """Independently of the structure's own search."""
    trees = torch.tensor([heads for heads in itertools.product(range(3), repeat=3) if is_tree(heads)])
    sp.testing.check_structure(sp.Tree(3), members=trees)
    matchings = torch.tensor(list(itertools.permutations(range(4), 2)))
    sp.testing.check_structure(sp.Matching(2, 4), members=matchings)
    bits = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)))
    sp.testing.check_structure(sp.Budget(4, 2), members=bits[bits.sum(-1) <= 2])
    sp.testing.check_structure(sp.Subset(4, 2), members=bits[bits.sum(-1) == 2])


def is_tree(heads: tuple[int, ...]) -> bool:
    """Whether every node reaches a root, which is its own head."""
    for node in range(len(heads)):
        seen = set()
        while heads[node] != node:
            if node in seen:
                return False
            seen.add(node)
            node = heads[node]
    return True


@dataclass(frozen=True)
class NoTwoInARow(sp.AbstractStructure):
    """A user's own structure: bits without two neighbours, by enumeration; `argmax` is all it defines."""

    n: int

    @property
    def score_shape(self) -> tuple[int, ...]:
        return (self.n,)

    def members(self) -> Tensor:
        rows = [
            z for z in itertools.product((0.0, 1.0), repeat=self.n) if not any(a and b for a, b in itertools.pairwise(z))
        ]
        return torch.tensor(rows, dtype=torch.float64)

    def argmax(self, scores: Tensor) -> Tensor:
        members = self.members()
        values = torch.where(members > 0, scores.unsqueeze(-2), 0.0).sum(-1)
        return members[values.argmax(-1)].to(scores.dtype)


def test_a_users_own_structure_needs_argmax_alone() -> None:
    structure = NoTwoInARow(4)
    report = sp.testing.check_structure(structure, members=structure.members())
    assert report.counts["members"] == 2


class Greedy(NoTwoInARow):
    """Wrong: takes the best bit first."""

    def argmax(self, scores: Tensor) -> Tensor:
        best = scores.argmax(-1, keepdim=True)
        return torch.zeros_like(scores).scatter(-1, best, 1.0)


class Miscounted(NoTwoInARow):
    """Wrong: says that it has one assignment more than it has."""

    def log_count(self) -> float:
        return float(torch.tensor(len(self.members()) + 1.0, dtype=torch.float64).log())


@pytest.mark.parametrize(("structure", "message"), [(Greedy(4), "argmax|members|topk"), (Miscounted(4), "log_count says 9")])
def test_broken_structures_are_found(structure: NoTwoInARow, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        sp.testing.check_structure(structure, members=structure.members())


def test_an_argmax_that_fails_where_all_is_forbidden_is_named() -> None:
    """An error of the structure's own is reported with the scores that it was raised for."""

    class Strict(NoTwoInARow):
        def argmax(self, scores: Tensor) -> Tensor:
            if bool((scores == -torch.inf).all()):
                raise RuntimeError("index -1 is out of bounds")
            return super().argmax(scores)

    with pytest.raises(AssertionError, match=r"all scores at -inf, argmax raises RuntimeError: index -1 is out of bounds"):
        sp.testing.check_structure(Strict(4))


def test_structures_that_are_too_large_or_shapeless_say_so() -> None:
    with pytest.raises(ValueError, match="at most 5000 assignments"):
        sp.testing.check_structure(sp.Bits(13))

    class Shapeless(sp.AbstractStructure):
        def argmax(self, scores: Tensor) -> Tensor:
            return scores

    with pytest.raises(TypeError, match="has no score_shape"):
        sp.testing.check_structure(Shapeless())
