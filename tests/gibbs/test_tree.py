"""Gibbs distributions over trees: against loops over all heads, determinants and counts, and where determinants fail."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum.structures.spanning import is_tree

both_rootings = pytest.mark.parametrize("single_root", [False, True])


def all_trees(n: int, *, single_root: bool) -> Tensor:
    """The heads of all trees of n words, found by following each word up: (n_trees, n)."""
    trees = []
    for heads in itertools.product(range(n), repeat=n):
        above = list(range(n))
        for _ in range(n):
            above = [heads[m] for m in above]
        n_roots = sum(head == m for m, head in enumerate(heads))
        if all(heads[m] == m for m in above) and not (single_root and n_roots > 1):
            trees.append(heads)
    return torch.tensor(trees)


def log_partition_by_determinant(scores: Tensor, *, single_root: bool) -> Tensor:
    """Koo, Globerson, Carreras & Collins (2007), equations 3 and 4 transposed, of one matrix."""
    weights = scores.exp()
    root, edges = weights.diagonal(), weights - weights.diagonal().diag()
    if not single_root:
        return torch.logdet((edges.sum(1) + root).diag() - edges)
    laplacian = edges.sum(1).diag() - edges
    return torch.logdet(torch.cat([root.unsqueeze(1), laplacian[:, 1:]], 1))


def random_scores(*shape: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@both_rootings
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("scale", [1.0, 200.0, 1e4])
def test_agrees_with_all_trees_at_any_scale(n: int, scale: float, single_root: bool) -> None:
    """Scores of hundreds close cycles up to what no subtraction would resolve; forbidden edges among them."""
    scores = random_scores(4, n, n, scale=scale)
    if n > 2:
        scores[0, 0, 1] = scores[1, 0, 0] = scores[1, 1, 2] = -torch.inf
        for row, word in ((2, 1), (3, n - 1)):  # a word that must be attached to the root
            scores[row, word, torch.arange(n) != word] = -torch.inf
    scores.requires_grad_()
    trees = all_trees(n, single_root=single_root)
    vectors = torch.nn.functional.one_hot(trees, n).double()
    values = torch.where(vectors > 0, scores.unsqueeze(1), 0.0).sum((-1, -2))
    log_probs = values.log_softmax(-1)
    probs = log_probs.exp()
    p = sp.Gibbs(scores, sp.Tree(n, single_root=single_root))
    torch.testing.assert_close(p.log_partition, values.logsumexp(-1), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(p.log_prob(trees.unsqueeze(1)).T, log_probs, rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(p.mean, (probs[..., None, None] * vectors).sum(1), rtol=0, atol=1e-11)
    torch.testing.assert_close(p.entropy(), -torch.where(probs > 0, probs * log_probs, 0.0).sum(-1), rtol=0, atol=1e-8)
    (gradient,) = torch.autograd.grad(p.entropy().sum(), scores)
    assert gradient.isfinite().all()
    assert not gradient[scores == -torch.inf].any()


@both_rootings
@pytest.mark.parametrize("n", [1, 2, 7, 20])
def test_agrees_with_the_matrix_tree_theorem(n: int, single_root: bool) -> None:
    scores = random_scores(n, n).requires_grad_()
    p = sp.Gibbs(scores, sp.Tree(n, single_root=single_root))
    wanted = log_partition_by_determinant(scores, single_root=single_root)
    torch.testing.assert_close(p.log_partition, wanted)
    torch.testing.assert_close(p.mean, torch.autograd.grad(wanted, scores)[0])


@both_rootings
def test_equal_scores_count_the_trees(single_root: bool) -> None:
    structure = sp.Tree(40, single_root=single_root)
    p = sp.Gibbs(torch.zeros(40, 40), structure)
    assert float(p.log_partition) == pytest.approx(structure.log_count())
    assert float(p.entropy()) == pytest.approx(structure.log_count())


@both_rootings
@pytest.mark.parametrize("gap", [1.0, 30.0, 200.0, 1e4])
def test_words_that_all_but_close_a_cycle(gap: float, single_root: bool) -> None:
    """Two words prefer each other by far, and a third one either of them: few trees, of known odds, hold all the mass."""
    low = -gap
    parts = [[low, 0.0, low], [0.0, low + math.log(3.0), low], [0.0, math.log(4.0), low]]
    scores = torch.tensor(parts, dtype=torch.float64)
    p = sp.Gibbs(scores, sp.Tree(3, single_root=single_root))
    # Trees with one root at 0 or 1, with odds of 1 to 3; the rest has about exp(-gap) of the mass.
    rest = 100 * math.exp(-gap) + 1e-12
    assert float(p.mean[0, 0]) == pytest.approx(0.25, abs=rest)
    assert float(p.mean[2, 1]) == pytest.approx(0.8, abs=rest)
    assert float(p.log_partition) == pytest.approx(low + math.log(4) + math.log(5), abs=rest)
    samples = p.sample((4000,), generator=torch.Generator().manual_seed(0))
    assert float((samples[:, 0] == 0).double().mean()) == pytest.approx(float(p.mean[0, 0]), abs=0.04)
    assert float((samples[:, 2] == 1).double().mean()) == pytest.approx(float(p.mean[2, 1]), abs=0.04)


@both_rootings
def test_samples_of_many_words_are_trees_with_the_right_marginals(single_root: bool) -> None:
    """Also where some edges are forbidden, some words are padding, and scores are large."""
    lengths = torch.tensor([9, 6, 1, 9])
    scores = random_scores(4, 9, 9, scale=2.0)
    scores[3] *= 50
    scores[0, 4, 5:] = -torch.inf
    structure = sp.Tree(9, single_root=single_root, lengths=lengths)
    p = sp.Gibbs(scores, structure)
    n = 4000
    samples = p.sample((n,), generator=torch.Generator().manual_seed(0))
    assert p.log_prob(samples).isfinite().all()  # which raises for what is no tree
    frequency = torch.nn.functional.one_hot(samples, 9).double().mean(0)
    frequency = torch.where(torch.arange(9).unsqueeze(-1) < lengths[:, None, None], frequency, 0.0)
    assert bool(((frequency - p.mean).abs() <= 5 * (p.mean * (1 - p.mean) / n).sqrt() + 1e-12).all())


@both_rootings
def test_samples_have_the_frequencies_of_all_trees(single_root: bool) -> None:
    """Chi-square of 4 words, where a node may be reached through several that were eliminated; forbidden edges, too."""
    scores = random_scores(3, 4, 4, scale=1.5)
    scores[1, 0, 1] = scores[1, 2, 2] = scores[1, 3, 0] = -torch.inf
    scores[2, 1, torch.tensor([0, 2, 3])] = -torch.inf  # word 1 must be attached to the root
    trees, n = all_trees(4, single_root=single_root), 20000
    p = sp.Gibbs(scores, sp.Tree(4, single_root=single_root))
    probs = p.log_prob(trees.unsqueeze(1)).exp()
    samples = p.sample((n,), generator=torch.Generator().manual_seed(0))
    base = 4 ** torch.arange(4)
    codes = (trees * base).sum(-1)
    for row in range(3):
        counts = ((samples[:, row] * base).sum(-1).unsqueeze(-1) == codes).sum(0)
        assert counts.sum() == n
        assert not counts[probs[:, row] == 0].any()
        is_common = n * probs[:, row] > 5
        expected = n * probs[is_common, row]
        chi_square, freedom = float(((counts[is_common] - expected) ** 2 / expected).sum()), int(is_common.sum())
        assert chi_square < freedom + 5 * math.sqrt(2 * freedom) + 5


@both_rootings
@pytest.mark.parametrize("scale", [1.0, 50.0, 1e4])
def test_samples_of_120_words_have_the_right_marginals(scale: float, single_root: bool) -> None:
    """Large scores close cycles; what is drawn must be a tree, and as frequent as the marginals, a derivative, say."""
    scores, n = random_scores(120, 120, scale=scale), 400
    p = sp.Gibbs(scores, sp.Tree(120, single_root=single_root))
    samples = p.sample((n,), generator=torch.Generator().manual_seed(0))
    assert is_tree(samples).all()
    assert p.log_prob(samples).isfinite().all()
    frequency = torch.nn.functional.one_hot(samples, 120).double().mean(0)
    deviation = (frequency - p.mean).abs() / (p.mean * (1 - p.mean) / n + 1 / n**2).sqrt()
    assert float(deviation.max()) < 7  # of 14,400 parts
    total = (-p.log_prob(samples)).mean()  # an estimate of the entropy
    assert float(total) == pytest.approx(float(p.entropy()), abs=5 * float(p.log_prob(samples).std()) / math.sqrt(n) + 1e-6)


def test_many_words_can_be_sampled() -> None:
    """An elimination for each word and sample would need gigabytes here."""
    p = sp.Gibbs(torch.zeros(320, 320), sp.Tree(320))
    samples = p.sample((4,), generator=torch.Generator().manual_seed(0))
    assert is_tree(samples).all()


@both_rootings
def test_rows_without_a_tree_are_named(single_root: bool) -> None:
    """Every word has a head that is allowed, but these only make cycles; with a single root, also too many roots."""
    scores = random_scores(3, 4, 4).requires_grad_()
    is_cycle = torch.zeros(4, 4, dtype=torch.bool)
    is_cycle[[0, 1, 2, 3], [1, 2, 0, 0]] = True
    is_pair = torch.zeros(4, 4, dtype=torch.bool)
    is_pair[[0, 1, 2, 3], [0, 1, 1, 1]] = True
    allowed = torch.stack([torch.ones(4, 4, dtype=torch.bool), is_cycle, is_pair])
    masked = torch.where(allowed, scores, -torch.inf)
    named = (
        "row 1 forbids every assignment, row 2 forbids every assignment" if single_root else "row 1 forbids every assignment"
    )
    with pytest.raises(ValueError, match=rf"{named} \(of 3\)"):
        sp.Gibbs(masked, sp.Tree(4, single_root=single_root))
    p = sp.Gibbs(masked, sp.Tree(4, single_root=single_root), validate_args=False)
    assert p.sample((3,)).shape == (3, 3, 4)
    (gradient,) = torch.autograd.grad((p.entropy() + p.log_partition).sum(), scores)
    assert gradient.isfinite().all()


@both_rootings
def test_a_minimum_instead_of_minus_infinity_forbids_too(single_root: bool) -> None:
    """Of an edge, and of all edges of the last word but that to the root."""
    scores = random_scores(4, 4).float()
    is_forbidden = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]]).bool()
    structure = sp.Tree(4, single_root=single_root)
    p = sp.Gibbs(scores.masked_fill(is_forbidden, -torch.inf), structure)
    for least in (torch.finfo(torch.float32).min, -1e25, -1e9):
        peer = sp.Gibbs(scores.masked_fill(is_forbidden, least), structure)
        torch.testing.assert_close(peer.log_partition, p.log_partition)
        torch.testing.assert_close(peer.entropy(), p.entropy())


def test_what_is_a_tree() -> None:
    heads = torch.tensor(list(itertools.product(range(4), repeat=4)))
    assert is_tree(heads).sum() == 5**3
    assert {tuple(tree) for tree in heads[is_tree(heads)].tolist()} == {
        tuple(tree) for tree in all_trees(4, single_root=False).tolist()
    }


def test_only_trees_are_members() -> None:
    """Cycles, several roots, heads outside, heads in the padding, and padding with a head are none."""
    scores, lengths = random_scores(2, 3, 3), torch.tensor([3, 2])
    many = sp.Gibbs(scores, sp.Tree(3, lengths=lengths))
    one = sp.Gibbs(scores, sp.Tree(3, lengths=lengths, single_root=True))
    right = torch.tensor([[1, 1, 0], [0, 0, 0]])
    for p in (many, one):
        assert p.log_prob(right).isfinite().all()
        assert torch.equal(p.log_prob(right.float()), p.log_prob(right))
    for row, heads in ((0, [1, 0, 0]), (0, [0, 0, 3]), (0, [0, 0, -1]), (1, [0, 2, 0]), (1, [0, 0, 1]), (1, [0, 0, 2])):
        wrong = right.clone()
        wrong[row] = torch.tensor(heads)
        with pytest.raises(ValueError, match=r"must hold assignments of Tree\(n=3"):
            many.log_prob(wrong)
        assert many.log_prob_of(wrong[row : row + 1], torch.tensor([row])).tolist() == [-math.inf]
    with pytest.raises(ValueError, match="must hold assignments"):
        many.log_prob(right + 0.5)
    two_roots = torch.tensor([[0, 1, 0], [0, 1, 0]])
    assert many.log_prob(two_roots).isfinite().all()
    with pytest.raises(ValueError, match="must hold assignments"):
        one.log_prob(two_roots)
    forbidden = sp.Gibbs(torch.tensor([[0.0, 0.0], [-torch.inf, 0.0]]), sp.Tree(2))
    assert forbidden.log_prob(torch.tensor([0, 0])) == -math.inf


@both_rootings
def test_without_gradients_the_results_are_the_same(single_root: bool) -> None:
    """The mean is a derivative, which must not need the caller's permission to differentiate."""
    scores = random_scores(2, 4, 4).requires_grad_()
    structure = sp.Tree(4, single_root=single_root)
    p = sp.Gibbs(scores, structure)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            for peer in (sp.Gibbs(scores, structure), sp.Gibbs(scores * 1.0, structure)):
                torch.testing.assert_close(peer.mean, p.mean.detach())
                torch.testing.assert_close(peer.entropy(), p.entropy().detach())
                assert not peer.mean.requires_grad
                assert peer.sample((2,)).shape == (2, 2, 4)
    assert not sp.Gibbs(scores.detach(), structure).entropy().requires_grad
