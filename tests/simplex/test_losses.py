"""The Fenchel-Young losses: their definition, their properties, and the interface of torch's cross-entropy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import sparsum as sp
from sparsum.simplex.entropy import tsallis_entropy as fast_entropy
from tests.reference import tsallis_entropy

ALPHAS = [1.0, 1.2, 1.5, 2.0, 3.0]
every_alpha = pytest.mark.parametrize("alpha", ALPHAS)


def scores(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@every_alpha
def test_the_definition(alpha: float) -> None:
    x, target = scores(8, 5), torch.arange(8) % 5
    soft = torch.softmax(scores(8, 5, seed=1), -1)
    probs = sp.entmax(x, alpha)
    conjugate = (probs * x).sum(-1) + tsallis_entropy(probs, alpha)
    hard_loss = conjugate - x[torch.arange(8), target]
    torch.testing.assert_close(sp.entmax_loss(x, target, alpha, reduction="none"), hard_loss, atol=1e-12, rtol=0)
    soft_loss = conjugate - (soft * x).sum(-1) - tsallis_entropy(soft, alpha)
    torch.testing.assert_close(sp.entmax_loss(x, soft, alpha, reduction="none"), soft_loss, atol=1e-12, rtol=0)
    torch.testing.assert_close(fast_entropy(probs, alpha), tsallis_entropy(probs, alpha), atol=1e-12, rtol=0)


def test_the_named_losses_are_members_of_the_family() -> None:
    x, target = scores(6, 5), torch.arange(6) % 5
    torch.testing.assert_close(sp.sparsemax_loss(x, target), sp.entmax_loss(x, target, 2.0))
    torch.testing.assert_close(sp.entmax15_loss(x, target), sp.entmax_loss(x, target, 1.5))
    torch.testing.assert_close(sp.entmax_loss(x, target, 1.0), torch.nn.functional.cross_entropy(x, target))
    rows = torch.tensor([*ALPHAS, 1.5], dtype=torch.float64)
    by_row = torch.stack([sp.entmax_loss(x[i], target[i], rows[i].item()) for i in range(6)])
    torch.testing.assert_close(sp.entmax_loss(x, target, rows, reduction="none"), by_row)


@every_alpha
def test_the_gradient_is_probabilities_minus_target(alpha: float) -> None:
    """To the last digits, also for scores so large that a derivative through the probabilities would lose them."""
    x, target = (1000 * torch.ones(3, 5) + scores(3, 5).float()).requires_grad_(), torch.tensor([4, 0, 2])
    sp.entmax_loss(x, target, alpha, reduction="sum").backward()
    expected = sp.entmax(x.detach(), alpha) - torch.nn.functional.one_hot(target, 5)
    torch.testing.assert_close(x.grad, expected, atol=1e-6, rtol=0)


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=8), st.integers(0, 7), st.sampled_from(ALPHAS))
def test_the_loss_is_not_negative_and_zero_when_right(values: list[float], chosen: int, alpha: float) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    target = torch.tensor(chosen % len(x))
    assert sp.entmax_loss(x, target, alpha) >= -1e-12
    assert abs(sp.entmax_loss(x, sp.entmax(x, alpha), alpha).item()) < 1e-9
    if alpha > 1:  # a lead of 1 / (alpha - 1) is enough
        x[target] = x.max() + 1.001 / (alpha - 1)
        assert abs(sp.entmax_loss(x, target, alpha).item()) < 1e-12


@pytest.mark.parametrize("loss", [sp.sparsemax_loss, sp.entmax15_loss])
def test_reductions_and_leading_dimensions(loss: Callable[..., Tensor]) -> None:
    x = scores(2, 3, 4, 5)
    target = torch.arange(24).reshape(2, 3, 4) % 5
    target[0, 0, 0] = target[1, 2, 3] = -100
    each = loss(x, target, reduction="none")
    assert each.shape == (2, 3, 4)
    assert each[0, 0, 0] == each[1, 2, 3] == 0
    torch.testing.assert_close(loss(x, target, reduction="sum"), each.sum())
    torch.testing.assert_close(loss(x, target), each.sum() / 22)
    torch.testing.assert_close(each[1, 1, 1], loss(x[1, 1, 1], target[1, 1, 1]))
    soft = torch.softmax(scores(2, 3, 4, 5, seed=1), -1)
    torch.testing.assert_close(loss(x, soft), loss(x, soft, reduction="none").mean())
    renamed = torch.where(target == -100, 7, target)
    torch.testing.assert_close(loss(x, renamed, ignore_index=7), loss(x, target))


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3])
def test_a_target_of_zero_has_no_gradient(alpha: float) -> None:
    x = torch.tensor([[2.0, -3.0, 0.5]], dtype=torch.float64)
    target = torch.tensor([[0.6, 0.0, 0.4]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(sp.entmax_loss(x, target, alpha).sum(), target)
    assert gradient[0, 1] == 0
    slope = (1 - alpha * target.detach() ** (alpha - 1)) / (alpha * (alpha - 1))  # of the entropy
    torch.testing.assert_close(gradient[0, ::2], (2 - x - slope)[0, ::2])


def test_ignored_rows_have_no_gradient_and_do_not_divide_by_zero() -> None:
    x = scores(2, 3).requires_grad_()
    sp.sparsemax_loss(x, torch.tensor([-100, 1])).backward()
    assert x.grad is not None
    assert not x.grad[0].any()
    assert sp.sparsemax_loss(x, torch.tensor([-100, -100])) == 0


def test_rounding_does_not_make_a_loss_negative() -> None:
    x = torch.tensor([[3.322594404220581, 1.326801061630249, -3.8363142013549805]])
    assert sp.entmax15_loss(x, torch.tensor([0])) >= 0
    x = 4 * torch.randn(5000, 5, generator=torch.Generator().manual_seed(0))
    for alpha in ALPHAS:
        assert (sp.entmax_loss(x, x.argmax(-1), alpha, reduction="none") >= 0).all()


def test_a_nan_in_an_ignored_row_is_ignored() -> None:
    x = torch.tensor([[torch.nan, 0.0], [0.0, 1.0]], requires_grad=True)
    sp.sparsemax_loss(x, torch.tensor([-100, 1])).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_small_integer_targets() -> None:
    x = scores(1, 200)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        target = torch.tensor([156])
        torch.testing.assert_close(sp.sparsemax_loss(x, target.to(dtype)), sp.sparsemax_loss(x, target))


def test_forbidden_classes() -> None:
    x = torch.tensor([[0.3, -torch.inf, 0.0]], requires_grad=True)
    loss = sp.sparsemax_loss(x, torch.tensor([0]))
    torch.testing.assert_close(loss, sp.sparsemax_loss(x[:, [0, 2]], torch.tensor([0])))
    loss.backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert sp.sparsemax_loss(x, torch.tensor([1])) == torch.inf
    torch.testing.assert_close(sp.sparsemax_loss(x, torch.tensor([[1.0, 0.0, 0.0]])), loss)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    x, target = scores(4, 5).to(dtype), torch.arange(4)
    loss = sp.sparsemax_loss(x, target)
    assert loss.dtype == dtype
    torch.testing.assert_close(loss.float(), sp.sparsemax_loss(x.float(), target), atol=1e-2, rtol=1e-2)


X = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: sp.sparsemax_loss(X, torch.tensor([0])),
            ValueError,
            "must have shape (2,) for x of shape (2, 3), got (1,)",
        ),
        (lambda: sp.sparsemax_loss(X, torch.zeros(2)), ValueError, "must have the shape of x, (2, 3), got (2,)"),
        (
            lambda: sp.sparsemax_loss(X, torch.tensor([0, 3])),
            ValueError,
            "class indices from 0 to 2 or ignore_index=-100, got [3]",
        ),
        (lambda: sp.sparsemax_loss(X, torch.tensor([0, -1])), ValueError, "or ignore_index=-100"),
        (lambda: sp.sparsemax_loss(X, [0, 1]), TypeError, "target must be a torch.Tensor"),  # type: ignore[arg-type]
        (lambda: sp.sparsemax_loss(X, torch.ones(2, 3)), ValueError, "rows that sum to 1"),
        (lambda: sp.sparsemax_loss(X, torch.ones(2, 3) > 0), TypeError, "got torch.bool"),
        (lambda: sp.sparsemax_loss(X.long(), torch.tensor([0, 1])), TypeError, "x must have a floating-point dtype"),
        (lambda: sp.entmax_loss(X, torch.tensor([0, 1]), 0.5), ValueError, "alpha must be a finite number of at least 1"),
        (lambda: sp.entmax15_loss(X, torch.tensor([0, 1]), reduction="avg"), ValueError, "none, mean, sum, got 'avg'"),
    ],
)
def test_bad_input_is_named(call: Callable[[], Tensor], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)


def masks(seed: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of 6 rows, a mask that allows 2 to 5 of 5 classes, and a target that it allows."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(6, 5, generator=generator) < 0.6
    mask[torch.arange(6), torch.arange(6) % 5] = mask[torch.arange(6), (torch.arange(6) + 2) % 5] = True
    return scores(6, 5, seed=seed), mask, torch.arange(6) % 5


@every_alpha
def test_masked_classes_are_left_out(alpha: float) -> None:
    """The loss and its gradient are those of the allowed classes alone, whatever the others hold."""
    x, mask, target = masks()
    assert not mask.all(-1).all()
    soft = torch.softmax(scores(6, 5, seed=4).masked_fill(~mask, -torch.inf), -1)
    noisy = torch.where(mask, x, torch.tensor([torch.nan, torch.inf, 1e30, -torch.inf, 7.0]).double()).requires_grad_()
    for goal in (target, soft):
        each = sp.entmax_loss(noisy, goal, alpha, mask=mask, reduction="none")
        (gradient,) = torch.autograd.grad(each.sum(), noisy)
        assert not gradient[~mask].any()
        for row in range(6):
            few = x[row, mask[row]].clone().requires_grad_()
            index = mask[row, : target[row]].sum()
            wanted = sp.entmax_loss(few, index if goal is target else soft[row, mask[row]], alpha)
            torch.testing.assert_close(each[row], wanted)
            torch.testing.assert_close(gradient[row, mask[row]], torch.autograd.grad(wanted, few)[0])


@every_alpha
def test_derivatives_with_a_mask(alpha: float) -> None:
    x, mask, target = masks()
    soft = torch.softmax(scores(6, 5, seed=4).masked_fill(~mask, -torch.inf), -1)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: sp.entmax_loss(x, target, alpha, mask=mask, reduction="none"), (x,))
    (gradient,) = torch.autograd.grad(sp.entmax_loss(x, soft.requires_grad_(), alpha, mask=mask), soft)
    assert gradient.isfinite().all()
    assert not gradient[~mask].any()


def test_masks_broadcast_and_ignored_rows_need_no_class() -> None:
    x = scores(2, 3, 4)
    mask, target = torch.tensor([True, True, False, True]), torch.tensor([[0, 1, 3], [0, 0, -100]])
    each = sp.sparsemax_loss(x, target, mask=mask, reduction="none")
    torch.testing.assert_close(each, sp.sparsemax_loss(x, target, mask=mask.expand(2, 3, 4), reduction="none"))
    nothing = mask.expand(2, 3, 4).clone()
    nothing[1, 2] = False
    torch.testing.assert_close(sp.sparsemax_loss(x, target, mask=nothing, reduction="none"), each)
    torch.testing.assert_close(sp.SparsemaxLoss(reduction="none")(x, target, mask), each)
    torch.testing.assert_close(sp.EntmaxLoss(2.0, reduction="none")(x, target, mask=mask), each)
    wanted = sp.entmax15_loss(x, target, mask=mask)
    torch.testing.assert_close(sp.Entmax15Loss()(x, target, mask), wanted)


def test_a_target_that_is_masked_out() -> None:
    x, mask = scores(3, 4), torch.tensor([True, True, False, True])
    with pytest.raises(ValueError, match=r"target must be allowed by mask.* 2 of 3 rows: 0, 2"):
        sp.sparsemax_loss(x, torch.tensor([2, 0, 2]), mask=mask)
    with pytest.raises(ValueError, match=r"target must be allowed by mask.* 3 of 3 rows: 0, 1, 2"):
        sp.sparsemax_loss(x, torch.full((3, 4), 0.25).double(), mask=mask)
    with pytest.raises(TypeError, match=r"mask must be a tensor of dtype torch.bool"):
        sp.sparsemax_loss(x, torch.tensor([0, 0, 0]), mask=mask.long())
    with pytest.raises(ValueError, match=r"mask must broadcast to the shape of x, \(3, 4\), got \(3,\)"):
        sp.sparsemax_loss(x, torch.tensor([0, 0, 0]), mask=mask[:3])


def test_a_target_that_is_masked_out_where_one_may_not_look() -> None:
    """Infinite, with the gradient of the allowed classes and none for the others."""
    x, mask, target = scores(3, 4).requires_grad_(), torch.tensor([True, True, False, True]), torch.tensor([2, 0, 1])

    def loss(x: Tensor, target: Tensor) -> Tensor:
        return sp.sparsemax_loss(x, target, mask=mask, reduction="none")

    wanted = [loss(x[row], target[row]) for row in (1, 2)]
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    for each in (torch.func.vmap(loss)(x, target), compiled(x, target)):
        assert each[0] == torch.inf
        torch.testing.assert_close(each[1:], torch.stack(wanted))
        (gradient,) = torch.autograd.grad(each.sum(), x)
        assert gradient.isfinite().all()
        assert not gradient[:, 2].any()


@pytest.mark.parametrize("loss", [sp.SparsemaxLoss, sp.Entmax15Loss, lambda **options: sp.EntmaxLoss(1.3, **options)])
def test_modules_check_the_reduction_when_they_are_made(loss: Callable[..., object]) -> None:
    """The name that the entmax package has for the mean, for one, is not silently something else."""
    with pytest.raises(ValueError, match=r"reduction must be one of none, mean, sum, got 'elementwise_mean'"):
        loss(reduction="elementwise_mean")
