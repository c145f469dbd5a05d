"""The mathematics of the task of pixel subsets: relaxed subsets, and the subsets of the references."""

from __future__ import annotations

import torch

from benchmarks.tasks.pixel_subsets import BRIGHTEST, CALLS, RANDOM, Explainer, relaxed_subset


def test_relaxed_subsets_sum_to_k_and_become_subsets() -> None:
    """Weights are from 0 to about 1; at a low temperature, they are the k best of the perturbed scores."""
    scores = torch.randn(6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    soft = relaxed_subset(scores, 4, 0.5, torch.Generator().manual_seed(1))
    assert torch.allclose(soft.sum(-1), torch.full((6,), 4.0, dtype=torch.float64))
    assert soft.min() >= 0
    hard = relaxed_subset(scores, 4, 1e-3, torch.Generator().manual_seed(1))
    noise = -(-torch.rand(6, 9, generator=torch.Generator().manual_seed(1)).log()).log()
    wanted = torch.zeros_like(scores).scatter(-1, (scores + noise).topk(4).indices, 1.0)
    assert torch.allclose(hard, wanted, atol=1e-3)


def test_relaxed_subsets_have_the_gradient_of_finite_differences() -> None:
    scores = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: relaxed_subset(s, 2, 0.5, torch.Generator().manual_seed(1)), scores)


def test_references_choose_k_pixels() -> None:
    """The brightest pixels are those with the largest values; random ones differ between images and draws."""
    x, g = torch.rand(7, 12), torch.Generator().manual_seed(0)
    brightest = Explainer(12, 3, 4, BRIGHTEST).chosen(x, g)
    assert torch.equal(brightest, (x >= x.topk(3).values[:, -1:]).float())
    random = Explainer(12, 3, 4, RANDOM)
    draws = torch.stack([random.chosen(x, g) for _ in range(200)])
    assert torch.equal(draws.sum(-1), torch.full((200, 7), 3.0))
    assert (draws.mean((0, 1)) - 0.25).abs().max() < 0.05


def test_losses_are_means_over_calls() -> None:
    """A reader that sees black alone has the same loss for every subset, whatever the method."""
    target, g = torch.eye(10)[[3, 5]], torch.Generator().manual_seed(0)
    for row in (RANDOM, BRIGHTEST, "simple", "gumbel top-k, 0.5"):
        model = Explainer(12, 3, 4, row)
        losses, calls = model.losses(torch.zeros(2, 12), target, g)
        wanted = -model.reader(torch.zeros(12)).log_softmax(-1)[[3, 5]]
        assert torch.allclose(losses, wanted, atol=1e-5)
        assert calls.tolist() == [1 if row == BRIGHTEST else CALLS] * 2
