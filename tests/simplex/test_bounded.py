"""The learnable alpha of `Entmax`: its bounds, its shape for heads, and the life of a module."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import sparsum as sp

BOUNDS = (1.05, 2.0)


def scores(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def alpha_of(module: sp.Entmax) -> Tensor:
    alpha = module.current_alpha()
    assert isinstance(alpha, Tensor)
    return alpha.detach()


@pytest.mark.parametrize("initial", [1.06, 1.5, 1.99])
def test_it_starts_at_the_given_value_and_maps_each_head_with_its_own(initial: float) -> None:
    module = sp.Entmax(initial, bounds=BOUNDS, n_heads=3)
    torch.testing.assert_close(alpha_of(module), torch.full((3, 1), initial))
    assert [name for name, _ in module.named_parameters()] == ["alpha.logit"]
    with torch.no_grad():
        module.get_parameter("alpha.logit").copy_(torch.tensor([[-2.0], [0.0], [3.0]]))
    x, alpha = scores(2, 3, 4, 5), alpha_of(module)
    assert alpha.unique().numel() == 3
    heads = [sp.entmax(x[:, head], alpha[head].item()) for head in range(3)]
    torch.testing.assert_close(module(x), torch.stack(heads, 1))
    mask = torch.arange(5) < 3
    torch.testing.assert_close(module(x, mask), sp.entmax(x, alpha.reshape(1, 3, 1, 1), mask=mask))


def test_a_shared_alpha_and_one_in_any_shape() -> None:
    x = scores(4, 5)
    assert alpha_of(sp.Entmax(1.5, bounds=BOUNDS)).shape == ()
    initial = torch.tensor([1.1, 1.2, 1.5, 1.9], dtype=torch.float64)
    module = sp.Entmax(initial, bounds=BOUNDS, temperature=0.5)
    assert alpha_of(module).dtype == torch.float64
    torch.testing.assert_close(alpha_of(module), initial)
    torch.testing.assert_close(module(x), sp.entmax(x, initial, temperature=0.5))


@pytest.mark.parametrize("direction", [1.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_no_step_leaves_the_bounds(direction: float, dtype: torch.dtype) -> None:
    """However large the steps and however coarse the dtype."""
    module = sp.Entmax(1.5, bounds=(1.001, 1.7), n_heads=2).to(dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e4)
    x = scores(8, 2, 4, 6).to(dtype)
    for _ in range(3):
        optimizer.zero_grad()
        (direction * module(x).double().square().sum()).backward()
        optimizer.step()
        alpha = alpha_of(module).double()
        assert ((alpha > 1.000999) & (alpha < 1.700001)).all()
    assert (alpha < 1.01 if direction > 0 else alpha > 1.69).all()  # less sparse, and more


def test_the_gradient_is_that_of_alpha() -> None:
    x, weight = scores(2, 3, 4, 5).double(), scores(2, 3, 4, 5, seed=1).double()
    module = sp.Entmax(1.3, bounds=BOUNDS, n_heads=3).double()
    (module(x) * weight).sum().backward()
    alpha = alpha_of(module).requires_grad_()
    (gradient,) = torch.autograd.grad((sp.entmax(x, alpha) * weight).sum(), alpha)
    low, high = BOUNDS
    slope = (alpha - low) * (high - alpha) / (high - low)
    torch.testing.assert_close(module.get_parameter("alpha.logit").grad, (gradient * slope).detach())


def test_copies_states_and_files() -> None:
    module, x = sp.Entmax(1.3, bounds=BOUNDS, n_heads=3), scores(2, 3, 4, 5)
    with torch.no_grad():
        module.get_parameter("alpha.logit").add_(torch.tensor([[0.1], [0.2], [0.3]]))
    other = sp.Entmax(1.9, bounds=BOUNDS, n_heads=3)
    other.load_state_dict(module.state_dict())
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for same in (other, copy.deepcopy(module), torch.load(file, weights_only=False)):
        torch.testing.assert_close(same(x), module(x), atol=0, rtol=0)
    assert repr(module) == "Entmax(\n  dim=-1\n  (alpha): BoundedAlpha(bounds=(1.05, 2.0), shape=(3, 1))\n)"


def test_compiled_and_on_the_meta_device() -> None:
    module, x = sp.Entmax(1.3, bounds=BOUNDS, n_heads=3), scores(2, 3, 4, 5)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), module(x))
    parameter = module.get_parameter("alpha.logit")
    gradients = [torch.autograd.grad(version(x).square().sum(), parameter)[0] for version in (module, compiled)]
    torch.testing.assert_close(*gradients)
    with torch.device("meta"):
        assert alpha_of(sp.Entmax(1.3, bounds=BOUNDS, n_heads=3)).shape == (3, 1)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: sp.Entmax(1.5, n_heads=2), ValueError, "n_heads needs bounds"),
        (lambda: sp.Entmax(1.5, bounds=(1.0, 2.0)), ValueError, "bounds[0] must be finite and larger than 1, got 1.0"),
        (lambda: sp.Entmax(1.5, bounds=(1.2, 1.1)), ValueError, "bounds[1] must be finite and larger than 1.2, got 1.1"),
        (lambda: sp.Entmax(1.5, bounds=2.0), TypeError, "bounds must be a pair of numbers, got 2.0"),  # type: ignore[arg-type]
        (lambda: sp.Entmax(1.5, bounds=("a", 2)), TypeError, "bounds[0] must be a number, got str"),  # type: ignore[arg-type]
        (
            lambda: sp.Entmax(2.0, bounds=BOUNDS),
            ValueError,
            "larger than bounds[0], 1.05, and less than bounds[1], 2.0, got 2",
        ),
        (lambda: sp.Entmax(torch.tensor([1.5, 0.5]), bounds=BOUNDS), ValueError, "less than bounds[1], 2.0, got 0.5"),
        (lambda: sp.Entmax("x", bounds=BOUNDS), TypeError, "alpha must be a number, got str"),  # type: ignore[arg-type]
        (lambda: sp.Entmax(torch.tensor(2), bounds=BOUNDS), TypeError, "alpha must have a floating-point dtype"),
        (lambda: sp.Entmax(torch.nn.Parameter(torch.tensor(1.5)), bounds=BOUNDS), TypeError, "must not be a Parameter"),
        (lambda: sp.Entmax(1.5, bounds=BOUNDS, n_heads=0), ValueError, "n_heads must be at least 1, got 0"),
        (lambda: sp.Entmax(torch.tensor([1.5]), bounds=BOUNDS, n_heads=1), ValueError, "n_heads must be None for a tensor"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], sp.Entmax], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert message in str(caught.value)
