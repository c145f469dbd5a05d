"""The problem of the task large-k: its rotation, losses, candidates and where methods start."""

from __future__ import annotations

import pytest
import torch

import sparsum as sp
from benchmarks.tasks.large_k import BATCH, DIM, PERPLEXITY, START, Model, Problem, rotation, sharpness


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem.of(25, 40, torch.device("cpu"))


def test_rotation_turns_all_vectors_alike(problem: Problem) -> None:
    """It is orthogonal, and the cosine of every vector with its image is START."""
    turn = rotation(torch.Generator().manual_seed(0))
    torch.testing.assert_close(turn @ turn.T, torch.eye(DIM), atol=1e-5, rtol=0)
    cosines = (problem.keys @ turn * problem.keys).sum(-1)
    torch.testing.assert_close(cosines, torch.full_like(cosines, START))


def test_the_right_option_alone_has_no_loss(problem: Problem) -> None:
    """Of all options, the target is what the network makes of the right one."""
    right = torch.tensor([3, 500, 999])
    generator = torch.Generator().manual_seed(0)
    x, target = problem.queries(right, rotation(generator), generator)
    every = torch.arange(len(problem.keys))
    found = torch.stack([problem.read(x[i].expand(len(every), -1), every) for i in range(3)])
    losses = (found - target.unsqueeze(1)).square().mean(-1)
    assert losses.argmin(-1).tolist() == right.tolist()
    assert losses.amin(-1).lt(1e-12).all()
    assert losses.topk(2, largest=False).values[:, 1].gt(1e-3).all()


def test_candidates_are_whole_cells_and_give_the_same_distribution(problem: Problem) -> None:
    """Where the candidates hold the support, the index changes nothing."""
    x = torch.randn(BATCH, DIM, generator=torch.Generator().manual_seed(1))
    full, index = (Model(row, problem, 4.0) for row in ("sparse", "sparse, index"))
    candidates = problem.candidates(x)
    nearest = (x @ problem.centres.T).argmax(-1)
    assert (candidates[:, :40] // 40).eq(nearest.unsqueeze(-1)).all()
    expected, found = full.choose(x), index.choose(x)
    inside = torch.tensor(
        [set(z.tolist()) <= set(c.tolist()) for (z, _), c in zip(_rows(expected), candidates, strict=True)]
    )
    assert 0 < inside.sum() < len(inside)
    for i in inside.nonzero().flatten().tolist():
        (z, p), (other, q) = _rows(expected)[i], _rows(found)[i]
        assert z.tolist() == other.sort().values.tolist()
        torch.testing.assert_close(p, q[other.argsort()])


def _rows(q: sp.SparseDistribution) -> list[tuple[torch.Tensor, torch.Tensor]]:
    lengths = q.n_atoms_per_row.tolist()
    return list(zip(q.atoms.split(lengths), q.probs.detach().split(lengths), strict=True))


@pytest.mark.parametrize("mapping", [sp.sparsemax, lambda s: s.softmax(-1)], ids=["sparsemax", "softmax"])
def test_methods_start_with_the_same_perplexity(problem: Problem, mapping: object) -> None:
    assert callable(mapping)
    scores = torch.randn(BATCH, 1000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    entropy = torch.special.entr(mapping(scores * sharpness(scores, mapping))).sum(-1).mean()
    assert entropy.exp().item() == pytest.approx(PERPLEXITY, rel=0.01)
