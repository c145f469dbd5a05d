"""The kernel for trees against the algorithm on the CPU, whose trees are tested by brute force."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sparsum as sp
from sparsum.structures.tree import best_trees
from tests.kernels.serving import serving

pytest.importorskip("triton")
# Said by the interpreter, where forbidden parts are compared.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def check_best(scores: Tensor, lengths: Tensor, *, single_root: bool) -> None:
    """Trees, as good as those of the twin; ties may be decided in another way."""
    n_rows, n, _ = scores.shape
    with serving(True):
        heads = best_trees(scores, lengths, single_root)
    wanted = best_trees.twin(scores, lengths, single_root)
    assert bool(sp.Tree(n, single_root, lengths=lengths).contains(heads).all())
    is_word = torch.arange(n, device=scores.device) < lengths.unsqueeze(-1)
    mine, others = (
        torch.where(is_word, scores.gather(2, each.unsqueeze(-1)).squeeze(-1), 0.0).sum(-1) for each in (heads, wanted)
    )
    torch.testing.assert_close(mine, others, rtol=1e-14, atol=0)
    is_forbidden = others == -torch.inf
    assert torch.equal(heads[is_forbidden], wanted[is_forbidden])
    assert n_rows > 0


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 9),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-9, 1.0, 1e9]),
    is_tied=st.booleans(),
    forbidden=st.sampled_from([0.0, 0.4, 0.8]),
    single_root=st.booleans(),
)
def test_ties_integers_and_forbidden_parts(
    n: int, seed: int, scale: float, is_tied: bool, forbidden: float, single_root: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(4, n, n, generator=generator, dtype=torch.float64)
    if is_tied:
        scores = scores.round()
    scores = scores.masked_fill(torch.rand(scores.shape, generator=generator) < forbidden, -torch.inf)
    lengths = torch.randint(1, n + 1, (4,), generator=generator)
    check_best((scale * scores).to(DEVICE), lengths.to(DEVICE), single_root=single_root)


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("n", [16, 40, 70])
def test_cycles_within_cycles(n: int, single_root: bool) -> None:
    """Pairs that prefer each other, pairs of pairs that do, and so on: each level is contracted."""
    word = torch.arange(n, device=DEVICE)
    levels = (word.unsqueeze(-1) ^ word).double().clamp_min(1).log2().floor()
    noise = torch.rand(2, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64).to(DEVICE)
    scores = -levels + 0.3 * noise
    scores.diagonal(dim1=-2, dim2=-1).sub_(20)
    check_best(scores, torch.full((2,), n, device=DEVICE), single_root=single_root)


def test_scores_without_a_best_tree() -> None:
    scores = torch.zeros(3, 4, 4, dtype=torch.float64, device=DEVICE)
    scores[0, 1, 2], scores[1, 2, 1], scores[2] = torch.nan, torch.inf, -torch.inf
    with serving(True):
        assert best_trees(scores, None, False).tolist() == [[0, 0, 1, 2]] * 3


def test_sparsemap_over_trees_is_the_same() -> None:
    """Of the mean, the atoms and the gradient."""
    scores = torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
    for single_root in (False, True):
        found = []
        for is_served in (True, False):
            leaf = scores.clone().requires_grad_()
            with serving(is_served):
                q = sp.sparsemap(leaf, sp.Tree(5, single_root))
            (gradient,) = torch.autograd.grad(q.mean.square().sum(), leaf)
            found.append((q.mean.detach(), q.probs.detach(), q.atoms, gradient))
        for here, there in zip(*found, strict=True):
            torch.testing.assert_close(here, there, rtol=0, atol=1e-9)
