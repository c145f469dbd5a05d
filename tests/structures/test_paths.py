"""Paths of graphs against the list of all paths, found by a walk through the graph."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor
from torch.distributions import kl_divergence

import sparsum as sp

Edges = list[tuple[int, int]]
LADDER: Edges = [(i, i + step) for i in range(5) for step in (1, 1, 2) if i + step < 6]
STAR: Edges = [*((0, i) for i in range(1, 60)), *((0, i) for i in range(1, 60)), *((i, 60) for i in range(1, 60)), (60, 61)]


def members(edges: Edges) -> Tensor:
    """All paths, in the form of atoms: (count, longest)."""
    found: list[list[int]] = []

    def walk(vertex: int, path: list[int]) -> None:
        if vertex == edges[-1][1]:
            found.append(path)
        for number, (tail, head) in enumerate(edges):
            if tail == vertex:
                walk(head, [*path, number])

    walk(edges[0][0], [])
    longest = max(map(len, found))
    return torch.tensor([path + [-1] * (longest - len(path)) for path in found])


def values_of(structure: sp.Paths, atoms: Tensor, scores: Tensor) -> Tensor:
    """The score of each atom in each row, where 0 * -inf is 0: (n_rows, n_atoms)."""
    ones = structure.vectors(atoms).double()
    return torch.where(ones == 0, 0.0, ones * scores.unsqueeze(1)).sum(-1)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Edges, list[int] | None, Tensor]:
    """A graph whose vertices all lie on paths, perhaps with edges that share parts or have none, and scores."""
    n = draw(st.integers(2, 6))
    pairs = [(i, i + 1) for i in range(n - 1)]  # leads everywhere
    pairs += draw(
        st.lists(st.tuples(st.integers(0, n - 2), st.integers(1, n - 1)).filter(lambda e: e[0] < e[1]), max_size=6)
    )
    edges = sorted(pairs)
    parts = None
    if draw(st.booleans()):  # edges that leave the same vertex cannot follow each other
        part_of = [draw(st.integers(0, i)) + i * (i + 1) // 2 for i in range(n - 1)]
        parts = [-1 if number and draw(st.integers(0, 4)) == 0 else part_of[tail] for number, (tail, _) in enumerate(edges)]
    n_parts = len(edges) if parts is None else max(parts) + 1
    entry = st.one_of(st.just(-math.inf), st.integers(-2, 2), st.floats(-1e4, 1e4))
    rows = draw(st.lists(st.lists(entry, min_size=n_parts, max_size=n_parts), min_size=1, max_size=3))
    return edges, parts, torch.tensor(rows, dtype=torch.float64)


@given(cases())
def test_any_graph_against_enumeration(case: tuple[Edges, list[int] | None, Tensor]) -> None:
    edges, parts, scores = case
    structure, atoms = sp.Paths(edges, parts), members(edges)
    assert round(math.exp(structure.log_count())) == len(atoms)
    values = values_of(structure, atoms, scores)
    best = structure.topk(scores, 4)
    assert bool(structure.contains(best.flatten(0, 1)).all())
    seen = torch.stack([values_of(structure, row, scores[i : i + 1])[0] for i, row in enumerate(best)])
    torch.testing.assert_close(seen, values.sort(-1, descending=True).values[:, :4], rtol=1e-12, atol=1e-9)
    assert all(len(row.unique(dim=0)) == min(4, len(atoms)) for row in best)
    torch.testing.assert_close(structure.log_partition(scores), values.logsumexp(-1), rtol=1e-12, atol=1e-10)
    is_possible = values.amax(-1) > -torch.inf
    if bool(is_possible.any()):
        p = sp.Gibbs(scores[is_possible], structure)
        probs = values[is_possible].softmax(-1)
        torch.testing.assert_close(p.mean, probs @ structure.vectors(atoms).double(), atol=1e-9, rtol=0)
        drawn = p.sample((20,), generator=torch.Generator().manual_seed(0))
        assert bool((p.log_prob(drawn) > -torch.inf).all())


def test_levels_with_few_and_many_edges_per_vertex() -> None:
    """Tables of edges are split where they would be mostly empty."""
    hub = [*STAR, *((61, 62 + i) for i in range(90)), *((61, 62) for _ in range(90)), *((62 + i, 200) for i in range(90))]
    structure = sp.Paths(hub)
    assert len(structure.graph.entering.blocks) > structure.graph.longest
    scores = torch.randn(2, len(hub), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = values_of(structure, members(hub), scores)
    torch.testing.assert_close(structure.log_partition(scores), values.logsumexp(-1))
    torch.testing.assert_close(
        sp.Gibbs(scores, structure).mean, values.softmax(-1) @ structure.vectors(members(hub)).double()
    )


@pytest.mark.parametrize("parts", [None, [i // 2 for i in range(14)]], ids=["edges", "parts"])
def test_two_derivatives(parts: list[int] | None) -> None:
    structure = sp.Paths(LADDER, parts)
    scores = torch.randn(2, *structure.score_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores[0, 0] = -torch.inf
    free = scores[:, 1:].clone().requires_grad_()

    def total(tensor: Tensor) -> Tensor:
        return structure.log_partition(torch.cat([scores[:, :1], tensor], 1))

    assert torch.autograd.gradcheck(total, (free,))
    assert torch.autograd.gradgradcheck(total, (free,))
    assert torch.autograd.gradcheck(lambda tensor: sp.Gibbs(tensor, structure).entropy(), (scores[1:].requires_grad_(),))


def test_samples_pass_a_chi_square_test() -> None:
    structure, atoms = sp.Paths(LADDER), members(LADDER)
    scores = torch.randn(2, len(LADDER), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    scores[1, 3] = -torch.inf
    drawn = sp.Gibbs(scores, structure).sample((4000,), generator=torch.Generator().manual_seed(0))
    observed = (drawn.unsqueeze(2) == atoms).all(-1).sum(0)
    assert observed.sum(-1).tolist() == [4000, 4000]
    probs = values_of(structure, atoms, scores).softmax(-1)
    for row in range(2):
        is_likely = probs[row] > 1e-3
        assert not observed[row][probs[row] == 0].any()
        wanted = probs[row][is_likely] / probs[row][is_likely].sum() * observed[row][is_likely].sum()
        assert chisquare(observed[row][is_likely].numpy(), wanted.numpy()).pvalue > 1e-3


def test_divergences_and_entropy() -> None:
    structure, atoms = sp.Paths(LADDER), members(LADDER)
    scores, others = torch.randn(2, 3, len(LADDER), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p, q = (values_of(structure, atoms, tensor).softmax(-1) for tensor in (scores, others))
    found = kl_divergence(sp.Gibbs(scores, structure), sp.Gibbs(others, structure))
    torch.testing.assert_close(found, (p * (p.log() - q.log())).sum(-1))
    torch.testing.assert_close(sp.Gibbs(scores, structure).entropy(), -(p * p.log()).sum(-1))


def test_long_chains_with_large_scores() -> None:
    """2,000 levels of two edges each: independent choices, whose probabilities are known."""
    structure = sp.Paths([(i, i + 1) for i in range(2000) for _ in range(2)])
    scores = 1e6 * torch.randn(2, 2000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores[1] /= 1e6
    p = sp.Gibbs(scores.flatten(1), structure)
    torch.testing.assert_close(p.log_partition, scores.logsumexp(-1).sum(-1))
    torch.testing.assert_close(p.mean, scores.softmax(-1).flatten(1))
    torch.testing.assert_close(p.mode % 2, scores.argmax(-1))


def test_parts_that_determine_the_flow_are_pulled() -> None:
    """Two of three parallel edges with a part suffice; two edges with one part between the same vertices do not."""
    assert sp.Paths([(0, 1)] * 3, [0, 1, -1]).can_pull
    assert not sp.Paths([(0, 1)] * 3, [0, 1, 1]).can_pull
    structure = sp.Paths(LADDER, [*range(13), -1])
    scores = torch.randn(40, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q = sp.sparsemap(scores, structure)
    torch.testing.assert_close(q.mean, sp.sparsemap(scores, structure, solver=sp.solvers.ActiveSet()).mean)
    moved = sp.sparsemap(scores + 1e-9, structure)
    loss = torch.randn(len(LADDER) + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).exp()
    ours, theirs = (each.expect(lambda z: loss[z].sum(-1).square()) for each in (q, moved))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_batches_and_dtypes() -> None:
    structure = sp.Paths(LADDER)
    scores = torch.randn(2, 3, len(LADDER), generator=torch.Generator().manual_seed(0))
    assert structure.argmax(scores).shape == (2, 3, 5)
    assert torch.equal(structure.argmax(scores)[1, 2], structure.argmax(scores[1, 2]))
    assert structure.topk(scores[:0], 2).shape == (0, 3, 2, 5)
    p = sp.Gibbs(scores.half(), structure)
    assert p.log_partition.dtype == torch.float16
    assert sp.sparsemap(scores, structure).mean.shape == scores.shape
    assert pickle.loads(pickle.dumps(structure)) == structure != sp.Paths(LADDER[:-1])
    assert hash(structure) == hash(sp.Paths(torch.tensor(LADDER)))


def test_structures_made_in_inference_mode_can_be_trained() -> None:
    with torch.inference_mode():
        made: list[sp.AbstractStructure] = [
            sp.Paths([(0, 1)] * 3, [0, 0, 1]),
            sp.Segmentation(7, 3, 1),
            sp.Knapsack((7, 5, 1), 7),
        ]
        for structure in made:
            structure.argmax(torch.zeros(1, *structure.score_shape))
    for structure in made:
        scores = torch.zeros(1, *structure.score_shape).requires_grad_()
        sp.Gibbs(scores, structure).entropy().sum().backward()
        assert scores.grad is not None


def test_nan_is_reported_and_does_not_spread() -> None:
    structure = sp.Paths(LADDER)
    scores = torch.randn(2, len(LADDER), generator=torch.Generator().manual_seed(0))
    alone = structure.topk(scores[1:], 3)
    scores[0, 4] = torch.nan
    assert torch.equal(structure.topk(scores, 3)[1:], alone)
    assert structure.log_partition(scores).isnan().tolist() == [True, False]
    for function in (sp.sparsemap, sp.Gibbs):
        with pytest.raises(ValueError, match="row 0 has a NaN"):
            function(scores, structure)


def test_rows_without_a_path_are_named() -> None:
    scores = torch.tensor([[0.0, 1.0], [-torch.inf, 1.0]])
    for function in (sp.sparsemap, sp.Gibbs):
        with pytest.raises(sp.NoDistribution, match="row 1 forbids every assignment"):
            function(scores, sp.Paths([(0, 1), (1, 2)]))


@pytest.mark.parametrize(
    ("edges", "parts", "message"),
    [
        ([(0, 1), (1, 2), (2, 1), (1, 3)], None, "cycle, got 1 -> 2 -> 1|cycle, got 2 -> 1 -> 2"),
        ([(0, 0)], None, "cycle, got 0 -> 0"),
        ([(1, 2), (0, 1), (2, 3)], None, r"topological order: edge 1, \(0, 1\), enters vertex 1, which edge 0"),
        ([(0, 2), (1, 2)], None, "vertex 1, which no edge enters: the source is the first tail, 0"),
        ([(0, 1), (0, 2)], None, "vertex 1, which no edge leaves: the sink is the last head, 2"),
        ([], None, "at least one edge"),
        ([(0, 1, 2)], None, r"shape \(n_edges, 2\)"),
        ([(-1, 1)], None, "at least 0, got -1"),
        ([(0, 1), (0, 1)], [0], r"one entry for each edge, \(2,\)"),
        ([(0, 1), (0, 1)], [0, -2], "or -1 for none, got -2 to 0"),
        ([(0, 1), (0, 1)], [-1, -1], "at least one of them"),
        ([(0, 1), (1, 2)], [3, 3], "twice by a path, got part 3 again at edge 1"),
    ],
)
def test_wrong_arguments_are_named(edges: Edges, parts: list[int] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sp.Paths(edges, parts)


def test_wrong_types_are_named() -> None:
    with pytest.raises(TypeError, match=r"edges must be an int64 tensor or a list of ints, got torch.float32"):
        sp.Paths(torch.zeros(1, 2))
    with pytest.raises(TypeError, match="parts must be an int64 tensor or a list of ints, got 'ab'"):
        sp.Paths([(0, 1)], "ab")  # type: ignore[arg-type]
