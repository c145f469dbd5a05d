"""Arguments of the wrong type or value: an error that names the argument, what was given and what is wanted."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum import estimators

X = torch.tensor([[0.4, 0.1, -0.2], [1.0, 0.0, 0.9]])
q = sp.sparsemap(X, sp.OneOf(3))


def distribution(atoms: Tensor, structure: sp.AbstractStructure, **options: Any) -> sp.SparseDistribution:
    """Two atoms in the first row, one in the second."""
    return sp.SparseDistribution(
        atoms, torch.tensor([0.5, 0.5, 1.0]), torch.tensor([0, 0, 1]), structure=structure, **options
    )


def start_from(atoms: Any, structure: sp.AbstractStructure) -> sp.SparseDistribution:
    scores = torch.zeros(2, *structure.score_shape)
    return sp.sparsemap(scores, structure, solver=sp.solvers.ActiveSet(start=atoms))


WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "scores without dimensions": (
        lambda: sp.sparsemap(torch.tensor(1.0), sp.Sequence(3, 2)),
        ValueError,
        r"at least 2 dimension\(s\), got \(\)",
    ),
    "start": (lambda: sp.solvers.ActiveSet(start=3), TypeError, "start must be a torch.Tensor or a packed pair .* got int"),  # type: ignore[arg-type]
    "start of one dimension": (
        lambda: start_from(torch.tensor([2, 1]), sp.OneOf(3)),
        ValueError,
        r"start must have shape \(2, n_start\), .* got \(2,\)",
    ),
    "start out of range": (
        lambda: start_from(torch.tensor([[2], [7]]), sp.OneOf(3)),
        ValueError,
        r"start must hold assignments of OneOf\(n=3\), got 7 in row 1",
    ),
    "start that is not a matching": (
        lambda: start_from(torch.tensor([[[0, 1]], [[1, 1]]]), sp.Matching(2)),
        ValueError,
        r"start must hold assignments of Matching\(n=2, m=2\), got \[1, 1\] in row 1",
    ),
    "tolerance": (lambda: sp.solvers.ActiveSet(tolerance="a"), TypeError, "tolerance must be a number, got str"),  # type: ignore[arg-type]
    "negative tolerance": (
        lambda: sp.solvers.Pulled(tolerance=-1.0),
        ValueError,
        "tolerance must be at least 0.0, got -1.0",
    ),
    "strict": (lambda: sp.solvers.Pulled(strict="no"), TypeError, "strict must be a bool, got str"),  # type: ignore[arg-type]
    "is_exact": (
        lambda: distribution(torch.tensor([0, 1, 2]), sp.OneOf(3), is_exact=[True, False]),
        TypeError,
        "is_exact must be a tensor of dtype torch.bool, got list",
    ),
    "repeated atoms": (
        lambda: distribution(torch.tensor([1, 1, 2]), sp.OneOf(3)),
        ValueError,
        "atoms must be distinct within each row, got 1 twice in row 0",
    ),
    "repeated bits": (
        lambda: distribution(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), sp.Bits(2)),
        ValueError,
        r"got \[1.0, 0.0\] twice in row 0",
    ),
    "more bits": (
        lambda: distribution(torch.eye(5)[:3], sp.Bits(3)),
        ValueError,
        r"assignments of Bits\(n=3, symmetric=True\), whose vectors have shape \(3,\), got atoms of shape \(5,\)",
    ),
    "too many bits of a budget": (
        lambda: distribution(torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]), sp.Budget(2, 1)),
        ValueError,
        r"assignments of Budget\(n=2, most=1, symmetric=True\), got \[1.0, 1.0\] in row 1",
    ),
    "indices out of range": (
        lambda: distribution(torch.tensor([0, 1, 3]), sp.OneOf(3)),
        ValueError,
        r"assignments of OneOf\(n=3\), got 3 in row 1",
    ),
    "generators": (
        lambda: q.expect(lambda z: z.float(), generators="ab"),  # type: ignore[arg-type]
        TypeError,
        "generators must be a torch.Generator or a sequence of them, got 'ab'",
    ),
    "complex loss": (
        lambda: q.expect(lambda z: z.to(torch.complex64)),
        TypeError,
        "loss must return real numbers, got torch.complex64",
    ),
    "ignore_index": (
        lambda: sp.sparsemax_loss(X, torch.tensor([0, 1]), ignore_index="a"),  # type: ignore[arg-type]
        TypeError,
        "ignore_index must be an int, got str",
    ),
    "ignore_index of a module": (lambda: sp.Entmax15Loss(ignore_index=1.5), TypeError, "ignore_index must be an int"),  # type: ignore[arg-type]
    "single_root": (lambda: sp.Tree(3, "yes"), TypeError, "single_root must be a bool, got str"),  # type: ignore[arg-type]
    "regularise_transitions": (lambda: sp.Sequence(3, 2, "x"), TypeError, "regularise_transitions must be a bool, got str"),  # type: ignore[arg-type]
    "hidden": (lambda: estimators.NVIL(3, hidden=5), TypeError, "hidden must be a sequence of ints, got int"),  # type: ignore[arg-type]
    "hidden of words": (lambda: estimators.Relax(3, hidden=("a",)), TypeError, r"hidden\[0\] must be an int, got str"),  # type: ignore[arg-type]
    "network": (lambda: estimators.NVIL(network=3), TypeError, "network must be a torch.nn.Module, got int"),  # type: ignore[arg-type]
    "normalise": (lambda: estimators.NVIL(3, normalise=1), TypeError, "normalise must be a bool, got int"),  # type: ignore[arg-type]
    "edges": (lambda: sp.Paths(None), TypeError, "edges must be an int64 tensor or a list of ints, got None"),  # type: ignore[arg-type]
    "an edge without a head": (lambda: sp.Paths([(0, None)]), TypeError, "edges must be .* a list of ints, got"),  # type: ignore[list-item]
    "scores that are a list": (
        lambda: sp.sparsemax([0.0, 1.0]),  # type: ignore[arg-type]
        TypeError,
        "must be a torch.Tensor, got list",
    ),
    "probabilities that are a list": (
        lambda: sp.SparseDistribution.from_dense([[1.0]]),  # type: ignore[arg-type]
        TypeError,
        "probs must be a torch.Tensor, got list",
    ),
    "no items": (lambda: sp.Knapsack((), 3), ValueError, "weights must have at least one item, got none"),
    "progress": (
        lambda: sp.diagnose(X, sp.OneOf(3), lambda z: z.float(), [estimators.Sparse()], progress=3),  # type: ignore[arg-type]
        TypeError,
        "progress must be a function or None, got int",
    ),
    "costs": (
        lambda: sp.sparsemap_loss(X, sp.OneOf(3), torch.tensor([0, 1]), cost=(X, X)),
        ValueError,
        "cost must have at most as many tensors as scores, 1, got 2",
    ),
    "targets": (
        lambda: sp.sparsemap_loss(X, sp.OneOf(3), (X, X)),
        ValueError,
        "target must have as many tensors as scores, 1, got 2",
    ),
    "atoms without dimensions": (
        lambda: q.with_atoms(torch.tensor(3), sp.OneOf(3)),
        ValueError,
        r"atoms must have shape \(5, \*event_shape\), got \(\)",
    ),
    "atoms that are a list": (lambda: q.with_atoms([1, 2]), TypeError, "atoms must be a torch.Tensor, got list"),  # type: ignore[arg-type]
    "structure of other atoms": (
        lambda: q.with_atoms(q.atoms, 3),  # type: ignore[arg-type]
        TypeError,
        "structure must be an AbstractStructure or None, got int",
    ),
    "noise": (lambda: estimators.Imle(noise=3), TypeError, r"noise must be a function noise\(shape, like, generator\)"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str) -> None:
    call, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("p", [q, sp.Gibbs(X, sp.OneOf(3)), sp.UniformOver(sp.OneOf(3))], ids=lambda p: type(p).__name__)
def test_sample_shapes(p: sp.SparseDistribution | sp.Gibbs | sp.UniformOver) -> None:
    with pytest.raises(ValueError, match=r"sample_shape\[1\] must be at least 0, got -1"):
        p.sample((2, -1))
    with pytest.raises(ValueError, match="sample_shape must be at least 0, got -2"):
        p.sample(-2)
    with pytest.raises(TypeError, match="sample_shape must be an int or a sequence of ints, got str"):
        p.sample("2")  # type: ignore[arg-type]
    assert p.sample((0,)).shape == (0, *p.batch_shape)
    assert p.sample(2).shape == (2, *p.batch_shape)


STRUCTURES = [sp.OneOf(3), sp.Bits(3), sp.Budget(3, 2), sp.Groups(3, 2), sp.Sequence(3, 2), sp.Tree(3), sp.Matching(3)]


@pytest.mark.parametrize("structure", [*STRUCTURES, sp.Enumerated(torch.eye(3))], ids=repr)
@pytest.mark.parametrize("k", ["2", None, 1.5, True])
def test_the_k_of_the_k_best_is_an_int(structure: sp.AbstractStructure, k: Any) -> None:
    with pytest.raises(TypeError, match=f"k must be an int, got {type(k).__name__}"):
        structure.topk(torch.zeros(structure.score_shape), k)


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_vmap_over_distributions_is_refused(structure: sp.AbstractStructure) -> None:
    """The shape of a distribution depends on values; torch would say so of one of its own functions."""
    scores = torch.zeros(2, *structure.score_shape)
    for name, call in {
        "sparsemap": lambda t: sp.sparsemap(t, structure).entropy(),
        "topk_sparsemax": lambda t: sp.topk_sparsemax(t, structure, 2).entropy(),
    }.items():
        with pytest.raises(RuntimeError, match=f"{name} does not support torch.vmap"):
            torch.vmap(call)(scores)


def test_a_diagnosis_says_why_gradients_are_unknown() -> None:
    found = sp.diagnose(X, sp.OneOf(3), lambda z: z.double(), [estimators.ScoreFunction()], max_terms=0, reference_samples=0)
    text = " ".join(str(found).split())
    assert "-: unknown, because the assignments times examples are more than max_terms" in text
    assert "distance, cosine: unknown, because the dense distribution was neither enumerated nor sampled" in text
    known = sp.diagnose(X, sp.OneOf(3), lambda z: z.double(), [estimators.ScoreFunction()])
    assert "unknown" not in str(known)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_queries_of_a_router_have_any_dtype(dtype: torch.dtype) -> None:
    router, queries = sp.nn.Router(4, 3), torch.randn(2, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = router(queries)
    assert found.probs.dtype == dtype
    listed = router(queries, torch.arange(3).expand(2, 3))
    torch.testing.assert_close(found.mean, listed.mean, atol=2e-2, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_atoms_in_many_rows_are_distinct_in_half_precision(dtype: torch.dtype) -> None:
    """Neighbouring rows beyond 2048 are equal in half precision."""
    n = 5000
    q = sp.SparseDistribution(torch.ones(n, 2, dtype=dtype), torch.ones(n), torch.arange(n), structure=sp.Bits(2))
    assert q.batch_shape == (n,)


@pytest.mark.parametrize("most", [2**62, 2**63, 2**70])
def test_weights_of_items_are_any_ints(most: int) -> None:
    structure = sp.Knapsack((most // 2, most // 2, 4 * most), most)
    assert structure.argmax(torch.ones(3)).tolist() == [1, 1, 0]
    members = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3)
    assert structure.contains(members).tolist() == [True, False] * 4
    q = sp.sparsemap(torch.tensor([0.3, 0.2, 0.9]), structure)
    assert sp.SparseDistribution(q.atoms, q.probs, q.row, structure=structure).mean.shape == (1, 3)


def test_deep_formulas_are_pickled_and_copied() -> None:
    a, b = sp.Formula.variables(2)
    formula = shared = a ^ b
    for _ in range(3000):
        formula = ~formula & shared
    for made in (pickle.loads(pickle.dumps(formula)), copy.deepcopy(formula)):
        assert repr(made) == repr(formula) == "Formula(2 variables, 6001 operations)"
        for values in itertools.product((False, True), repeat=2):
            assert made.fold(truth(values)) == formula.fold(truth(values))
    structure = sp.DecisionDiagram(2, ~formula)
    assert pickle.loads(pickle.dumps(structure)) == structure


def truth(values: tuple[bool, ...]) -> Callable[[str, int, list[bool]], bool]:
    """The truth of formulas of variables, not, and, and xor."""

    def combine(kind: str, number: int, operands: list[bool]) -> bool:
        known = {"variable": lambda: values[number], "not": lambda: not operands[0], "and": lambda: all(operands)}
        return known[kind]() if kind in known else operands[0] != operands[1]

    return combine


SUMMED = [
    sp.Paths([(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)]),
    sp.Alignment(2, 3),
    sp.Segmentation(2, 2, 1),
    sp.Knapsack((1, 2, 2), 3),
    sp.Subset(3, 2),
    sp.Budget(3, 2),
    sp.Tree(3),
    sp.ProjectiveTree(3),
    sp.BinaryTree(3),
    sp.DecisionDiagram(3, [[1, -2], [2, 3]]),
    sp.Sequence(3, 2),
    sp.Enumerated(torch.eye(3)),
]


@pytest.mark.parametrize("size", [1e25, 1e31, 1e37])
@pytest.mark.parametrize("structure", SUMMED, ids=repr)
def test_large_scores_are_not_taken_for_forbidden_ones(structure: sp.AbstractStructure, size: float) -> None:
    """Of either sign, whether all are equal or one assignment wins by far."""
    for sign in (1, -1):
        equal = sp.Gibbs(torch.full(structure.score_shape, sign * size), structure)
        drawn = equal.sample((50,), generator=torch.Generator().manual_seed(0))
        assert bool(equal.log_prob(drawn).isfinite().all())
        assert 0 <= equal.entropy() <= structure.log_count() + 1e-6
        scores = sign * size * torch.rand(structure.score_shape, generator=torch.Generator().manual_seed(1))
        best = structure.argmax(scores)
        single = sp.Gibbs(scores, structure)
        assert torch.equal(single.sample((5,)), best.expand(5, *best.shape))
        assert single.log_prob(best) == 0
        assert single.log_partition == pytest.approx(float(structure.score(scores[None], best[None], torch.zeros(1).long())))
        assert torch.equal(single.mean, structure.vectors(best[None])[0].to(scores))


@pytest.mark.parametrize("structure", [*SUMMED, *STRUCTURES], ids=repr)
def test_structures_are_not_equal_to_other_things(structure: sp.AbstractStructure) -> None:
    others: list[Any] = [3, "structure", sp.OneOf(7)]
    assert all(structure != other for other in others)
    assert structure == structure
