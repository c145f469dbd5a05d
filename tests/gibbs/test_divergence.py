"""Divergences between Gibbs and other distributions, against their definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal, kl_divergence

import sparsum as sp
from tests.gibbs.test_gibbs import LENGTHS, STRUCTURES, by_brute_force, every_structure, forbid, gibbs, random_scores

EVERY_TAG = "pairs, one tag"  # of which none can be forbidden


def definition(q: sp.Gibbs, p: Distribution) -> Tensor:
    """The sum over all that q allows, row by row; p may be torch's."""
    dense = by_brute_force(q)
    total = []
    for row in range(len(dense.log_partition)):
        atoms, log_probs = dense.atoms[dense.row == row], dense.log_probs[dense.row == row]
        others = torch.stack([p.log_prob(atom.expand(q.batch_shape + q.event_shape))[row] for atom in atoms])
        total.append((log_probs.exp() * (log_probs - others)).sum())
    return torch.stack(total)


@every_structure
@pytest.mark.parametrize("q_forbids", [False, True])
@pytest.mark.parametrize("p_forbids", [False, True])
def test_between_gibbs_distributions(name: str, q_forbids: bool, p_forbids: bool) -> None:
    """Infinite where p alone forbids something, in that row only."""
    scores, others = random_scores(name), random_scores(name, seed=1)
    if name == EVERY_TAG:
        q_forbids = p_forbids = False
    q = gibbs(name, forbid(scores) if q_forbids else scores, validate_args=False)
    p = gibbs(name, forbid(others) if p_forbids else others, validate_args=False)
    divergence = kl_divergence(q, p)
    torch.testing.assert_close(divergence, definition(q, p))
    assert divergence.isinf().tolist() == [p_forbids and not q_forbids, False, False]
    torch.testing.assert_close(kl_divergence(q, q), torch.zeros(3).double())


@every_structure
def test_derivatives(name: str) -> None:
    """In the scores of both, also where both forbid the same."""
    n_rows = 3 if "lengths" in name else 1
    scores, others = (random_scores(name, seed=seed, n_rows=n_rows) for seed in (0, 1))
    inputs = tuple(tensor.requires_grad_() for tensor in scores + others)

    def divergence(*inputs: Tensor) -> Tensor:
        scores, others = inputs[: len(inputs) // 2], inputs[len(inputs) // 2 :]
        if name == EVERY_TAG:
            return kl_divergence(gibbs(name, scores), gibbs(name, others))
        return kl_divergence(gibbs(name, forbid(scores)), gibbs(name, forbid(others)))

    assert gradcheck(divergence, inputs)
    assert gradgradcheck(divergence, inputs)


def test_batches_broadcast() -> None:
    scores, others = torch.randn(2, 1, 4), torch.randn(3, 4)
    for structure in (sp.OneOf(4), sp.Bits(4)):
        divergence = kl_divergence(sp.Gibbs(scores, structure), sp.Gibbs(others, structure))
        assert divergence.shape == (2, 3)
        torch.testing.assert_close(
            divergence[1, 2], kl_divergence(sp.Gibbs(scores[1, 0], structure), sp.Gibbs(others[2], structure))
        )
    q = sp.sparsemap(scores, sp.Bits(4))
    assert kl_divergence(q, sp.Gibbs(others, sp.Bits(4))).shape == (2, 3)
    assert kl_divergence(sp.Gibbs(scores, sp.OneOf(4)), Categorical(logits=others)).shape == (2, 3)
    assert kl_divergence(sp.Gibbs(scores, sp.Bits(4)), Independent(Bernoulli(logits=others), 1)).shape == (2, 3)


def test_tags_with_and_without_transitions() -> None:
    """One may have transitions where the other has none."""
    unary, transition = random_scores("pairs")
    q, p = gibbs("tags", (unary,)), gibbs("pairs", (-unary, transition))
    torch.testing.assert_close(kl_divergence(q, p), definition(q, p))
    torch.testing.assert_close(kl_divergence(p, q), definition(p, q))


@pytest.mark.parametrize("by_probs", [False, True])
def test_to_torchs_distributions(by_probs: bool) -> None:
    """Made from logits or from probabilities, of which a true 0 makes the divergence infinite."""
    scores, others = random_scores("one of")[0], random_scores("one of", seed=1)[0]
    probs = others.softmax(-1)
    peer = Categorical(probs=probs) if by_probs else Categorical(logits=others)
    q = sp.Gibbs(scores, sp.OneOf(5))
    torch.testing.assert_close(kl_divergence(q, peer), kl_divergence(Categorical(logits=scores), peer))
    bits = Independent(Bernoulli(probs=others.sigmoid()) if by_probs else Bernoulli(logits=others), 1)
    q = sp.Gibbs(scores, sp.Bits(5))
    wanted = kl_divergence(Independent(Bernoulli(logits=scores), 1), bits)
    torch.testing.assert_close(kl_divergence(q, bits), wanted)


@pytest.mark.parametrize("by_probs", [False, True])
def test_to_independent_categories(by_probs: bool) -> None:
    scores, others = (
        torch.randn(2, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in (0, 1)
    )

    def prior(logits: Tensor) -> Independent[Categorical]:
        return Independent(Categorical(probs=logits.softmax(-1)) if by_probs else Categorical(logits=logits), 1)

    q = sp.Gibbs(scores, sp.Groups(4, 5))
    wanted = kl_divergence(Independent(Categorical(logits=scores), 1), prior(others))
    torch.testing.assert_close(kl_divergence(q, prior(others)), wanted)
    wanted = kl_divergence(Independent(Categorical(logits=scores), 1), prior(others[1, 2]))
    torch.testing.assert_close(kl_divergence(q, prior(others[1, 2])), wanted)
    inputs = scores[0].requires_grad_(), others[0].requires_grad_()
    assert gradcheck(lambda s, o: kl_divergence(sp.Gibbs(s, sp.Groups(4, 5)), prior(o)), inputs)


def test_true_zeros_of_independent_categories() -> None:
    scores = torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, -torch.inf]]]).requires_grad_()
    q = sp.Gibbs(scores, sp.Groups(2, 2))
    probs = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    by_probs, by_logits = Categorical(probs=probs), Categorical(logits=probs.log())
    assert by_probs.logits.isfinite().all()  # clamped by torch, and not to be taken
    for base in (by_probs, by_logits):
        divergence = kl_divergence(q, Independent(base, 1))
        assert divergence.tolist() == [math.inf, 0.0]
        (gradient,) = torch.autograd.grad(divergence[1], scores, retain_graph=True)
        assert not gradient.any()
    with pytest.raises(ValueError, match=r"got Groups\(n_groups=2, n_each=2\) and Categoricals over 3 categories"):
        kl_divergence(q, Independent(Categorical(logits=torch.zeros(2, 3)), 1))
    with pytest.raises(NotImplementedError, match=r"Independent\(Categorical\)"):
        kl_divergence(sp.Gibbs(torch.zeros(2, 2), sp.Sequence(2, 2)), Independent(by_logits, 1))


def test_true_zeros_of_torchs_distributions() -> None:
    scores = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -torch.inf]]).requires_grad_()
    for peer in (Categorical(probs=torch.tensor([0.5, 0.5, 0.0])), Categorical(logits=torch.tensor([0, 0, -torch.inf]))):
        divergence = kl_divergence(sp.Gibbs(scores, sp.OneOf(3)), peer)
        assert divergence.tolist() == [math.inf, 0.0]
        (gradient,) = torch.autograd.grad(divergence[1], scores)
        assert not gradient.any()  # nor a NaN from the row that is infinite
    q = sp.Gibbs(scores, sp.Bits(3))
    for bits in (
        Bernoulli(probs=torch.tensor([0.5, 0.5, 0.0])),
        Bernoulli(logits=torch.tensor([0, 0, -torch.inf])),
    ):
        assert kl_divergence(q, Independent(bits, 1)).tolist() == [math.inf, 0.0]
    probs = torch.tensor([0.5, 0.5, 0.0], requires_grad=True)
    kl_divergence(q, Independent(Bernoulli(probs=probs), 1))[1].backward()
    assert probs.grad is not None
    assert probs.grad.isfinite().all()


@every_structure
def test_from_sparse_distributions(name: str) -> None:
    """The sum over the atoms of q, infinite where one of them is forbidden."""
    scores, others = random_scores(name), random_scores(name, seed=1)
    p = gibbs(name, others)
    q = sp.sparsemap(scores if len(scores) > 1 else scores[0], STRUCTURES[name])
    dense = by_brute_force(p)
    total = torch.zeros(3).double()
    for atom, prob, row in zip(q.atoms, q.probs, q.row, strict=True):
        is_equal = (dense.atoms == atom).reshape(len(dense.atoms), -1).all(-1) & (dense.row == row)
        # vectors that occur repeatedly are different assignments with the same score
        total[row] += prob * (prob.log() - dense.log_probs[is_equal][0])
    torch.testing.assert_close(kl_divergence(q, p), total)
    unknown = sp.SparseDistribution(q.atoms, q.probs, q.row)
    torch.testing.assert_close(kl_divergence(unknown, p), total)
    if name != EVERY_TAG:
        zeros = tuple(torch.zeros_like(tensor) for tensor in scores)
        everywhere = sp.topk_sparsemax(zeros if len(zeros) > 1 else zeros[0], STRUCTURES[name], 100)
        assert kl_divergence(everywhere, gibbs(name, forbid(others))).isinf().tolist() == [True, False, False]


def test_few_ones_are_bits() -> None:
    p = sp.Gibbs(torch.zeros(4), sp.Bits(4))
    q = sp.sparsemap(torch.tensor([[2.0, 1.0, 0.4, -1.0]]), sp.Budget(4, 1))
    torch.testing.assert_close(kl_divergence(q, p), 4 * math.log(2) - q.entropy())


def test_to_the_uniform_distribution() -> None:
    for name in ("one of", "bits", "groups", "pairs", "enumerated", "tree", "tree, single root"):
        q = gibbs(name, random_scores(name))
        wanted = q.structure.log_count() - q.entropy()
        torch.testing.assert_close(kl_divergence(q, sp.UniformOver(STRUCTURES[name])), wanted)
    with pytest.raises(ValueError, match="different lengths"):
        kl_divergence(gibbs("tree, lengths", random_scores("tree, lengths")), sp.UniformOver(sp.Tree(3)))


def test_an_edge_in_no_tree_may_be_forbidden() -> None:
    """Word 1 must follow word 2, so no tree has 2 after 1: whether p forbids that edge changes nothing."""
    q_scores, p_scores = random_scores("tree")[0], random_scores("tree", seed=1)[0]
    q_scores[:, 1, :2] = p_scores[:, 1, :2] = -torch.inf
    forbidden = p_scores.clone()
    forbidden[:, 2, 1] = -torch.inf
    for structure in (sp.Tree(3), sp.Tree(3, single_root=True)):
        q = sp.Gibbs(q_scores, structure)
        wanted = kl_divergence(q, sp.Gibbs(p_scores, structure))
        torch.testing.assert_close(kl_divergence(q, sp.Gibbs(forbidden, structure)), wanted)


def test_what_does_not_fit_is_named() -> None:
    tags = random_scores("tags, lengths")
    q = gibbs("tags, lengths", tags)
    for lengths in (torch.tensor([3, 1, 1]), None):
        other = sp.Gibbs(tags[0], sp.Sequence(3, 2, lengths=lengths))
        for first in (q, sp.sparsemap(tags[0], sp.Sequence(3, 2, lengths=LENGTHS))):
            with pytest.raises(ValueError, match="different lengths"):
                kl_divergence(first, other)
    full = torch.tensor([3, 3, 3])
    same = kl_divergence(other, sp.Gibbs(tags[0], sp.Sequence(3, 2, lengths=full)))
    torch.testing.assert_close(same, torch.zeros(3).double())
    one, bits = sp.Gibbs(torch.zeros(4), sp.OneOf(4)), sp.Gibbs(torch.zeros(4), sp.Bits(4))
    tree, groups = sp.Gibbs(torch.zeros(2, 2), sp.Tree(2)), sp.Gibbs(torch.zeros(2, 2), sp.Groups(2, 2))
    sparse = sp.sparsemap(torch.zeros(4), sp.OneOf(4))
    for first, second, reason in (
        (one, sp.Gibbs(torch.zeros(3), sp.OneOf(3)), r"must be equal, got OneOf\(n=4\) and OneOf\(n=3\)"),
        (tree, groups, "Tree"),
        (tree, sp.Gibbs(torch.zeros(2, 2), sp.Tree(2, single_root=True)), "single_root"),
        (sparse, sp.Gibbs(torch.zeros(3), sp.OneOf(3)), "OneOf"),
        (sparse, bits, "event shapes"),
        (sp.sparsemap(torch.zeros(2, 2), sp.Matching(2)), tree, "Matching"),
        (sp.SparseDistribution(torch.tensor([[1, 0]]), torch.ones(1), torch.tensor([0])), tree, "must hold assignments"),
        (one, Categorical(logits=torch.zeros(3)), "3 categories"),
        (bits, Categorical(logits=torch.zeros(4)), "requires a distribution over OneOf"),
        (bits, Independent(Bernoulli(logits=torch.zeros(3)), 1), "event shapes"),
        (one, sp.UniformOver(sp.OneOf(3)), "OneOf"),
    ):
        with pytest.raises(ValueError, match=reason):
            kl_divergence(first, second)
    for peer in (Independent(Normal(torch.zeros(4), 1.0), 1), Independent(Bernoulli(logits=torch.zeros(2, 2)), 2)):
        with pytest.raises(NotImplementedError, match="no KL divergence is implemented"):
            kl_divergence(tree if peer.event_shape == (2, 2) else bits, peer)


def test_only_bits_have_a_divergence_to_independent_bernoullis() -> None:
    prior = torch.distributions.Independent(torch.distributions.Bernoulli(logits=torch.zeros(2)), 1)
    for structure in (sp.Groups(2, 4), sp.Sequence(2, 4)):
        q = sp.sparsemap(torch.zeros(1, 2, 4), structure)
        with pytest.raises(NotImplementedError, match="no KL divergence is implemented"):
            torch.distributions.kl_divergence(q, prior)


def test_lengths_are_compared_on_their_device() -> None:
    scores = torch.zeros(2, 3, 2)
    full, short = sp.Sequence(3, 2, lengths=[3, 3]), sp.Sequence(3, 2, lengths=[3, 1])
    with torch.device("meta"):
        q, p = sp.Gibbs(scores, sp.Sequence(3, 2)), sp.Gibbs(scores, full)
        for one, other in ((q, p), (p, q)):
            assert torch.distributions.kl_divergence(one, other).tolist() == [0.0, 0.0]
        with pytest.raises(ValueError, match="must have the same lengths"):
            torch.distributions.kl_divergence(q, sp.Gibbs(scores, short))


def test_graphs_that_look_the_same_are_told_apart() -> None:
    """The representation of a graph has its size alone; the message says that there is more."""
    edges = torch.tensor([[0, 1], [1, 2], [0, 2]])
    first, second = (sp.Gibbs(torch.zeros(3), sp.Paths(edges[order])) for order in ([0, 1, 2], [0, 2, 1]))
    with pytest.raises(ValueError, match=r"got two Paths.* that differ in what this does not show"):
        torch.distributions.kl_divergence(first, second)
