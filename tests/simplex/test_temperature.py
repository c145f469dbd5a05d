"""The mappings of scores over a temperature: the quotient, its derivatives, and what is checked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import sparsum as sp

Mapping = Callable[..., Tensor]
MAPPINGS: dict[str, Mapping] = {
    "sparsemax": sp.sparsemax,
    "sparsemax, k": lambda x, dim=-1, **kwargs: sp.sparsemax(x, dim, k=2, **kwargs),
    "entmax15": sp.entmax15,
    "entmax": lambda x, dim=-1, **kwargs: sp.entmax(x, 1.3, dim, **kwargs),
}
every_mapping = pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)


def scores(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@every_mapping
def test_the_quotient(mapping: Mapping) -> None:
    x = scores(2, 3, 5)
    torch.testing.assert_close(mapping(x, temperature=0.7), mapping(x / 0.7))
    torch.testing.assert_close(mapping(x, temperature=2), mapping(x / 2))
    mask = torch.tensor([True, False, True, True, True])
    torch.testing.assert_close(mapping(x, mask=mask, temperature=0.7), mapping(x / 0.7, mask=mask))
    rows = 0.5 + scores(2, 3, seed=1).abs()
    for temperature in (rows, rows.unsqueeze(-1), rows.unsqueeze(-1).float(), rows[0], torch.tensor(0.7)):
        quotient = x / (temperature.unsqueeze(-1) if temperature.ndim < 3 else temperature).double()
        torch.testing.assert_close(mapping(x, temperature=temperature), mapping(quotient))


@every_mapping
def test_any_dimension(mapping: Mapping) -> None:
    x, temperature = scores(2, 4, 3), 0.5 + scores(2, 3, seed=1).abs()
    wanted = mapping((x / temperature.unsqueeze(1)).movedim(1, -1)).movedim(-1, 1)
    torch.testing.assert_close(mapping(x, 1, temperature=temperature), wanted)
    torch.testing.assert_close(mapping(x, -2, temperature=temperature.unsqueeze(1)), wanted)


@every_mapping
def test_derivatives(mapping: Mapping) -> None:
    x, temperature = scores(3, 5).requires_grad_(), (0.5 + scores(3, seed=1).abs()).requires_grad_()
    assert gradcheck(lambda x, t: mapping(x, temperature=t), (x, temperature))
    assert gradcheck(lambda x, t: mapping(x, temperature=t), (x, torch.tensor(0.8).double().requires_grad_()))


@every_mapping
def test_forbidden_entries_give_the_temperature_no_gradient(mapping: Mapping) -> None:
    x = scores(3, 5)
    x[:, 1], x[:, 2] = -torch.inf, torch.nan
    mask = torch.tensor([True, True, False, True, True])
    temperature = (0.5 + scores(3, seed=1).abs()).requires_grad_()
    few = mapping(x[:, [0, 3, 4]], temperature=temperature).square().sum()
    (wanted,) = torch.autograd.grad(few, temperature)
    (gradient,) = torch.autograd.grad(mapping(x, mask=mask, temperature=temperature).square().sum(), temperature)
    torch.testing.assert_close(gradient, wanted)
    empty = mapping(torch.full((1, 4), -torch.inf), temperature=0.5)
    assert not empty.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    """A quotient that the dtype cannot hold is mapped all the same."""
    x = (100 * scores(20, 30)).to(dtype)
    for dim in (-1, 0):
        probs = sp.sparsemax(x, dim, temperature=1e-4)
        assert probs.dtype == dtype
        torch.testing.assert_close(probs.float(), sp.sparsemax(x.float() / 1e-4, dim), atol=1e-2, rtol=0)
    probs = sp.entmax15(x, temperature=70.0)
    assert torch.distributions.constraints.simplex.check(probs).all()


def test_transforms_and_graphs() -> None:
    x, temperature = scores(4, 5), 0.5 + scores(4, seed=1).abs()
    wanted = sp.sparsemax(x, temperature=temperature)
    torch.testing.assert_close(torch.func.vmap(lambda x, t: sp.sparsemax(x, temperature=t))(x, temperature), wanted)
    compiled = torch.compile(lambda x, t: sp.sparsemax(x, temperature=t), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, temperature), wanted)


def test_modules() -> None:
    x, temperature = scores(4, 5), 0.5 + scores(4, seed=1).abs()
    torch.testing.assert_close(sp.Sparsemax(temperature=0.5)(x), sp.sparsemax(x, temperature=0.5))
    torch.testing.assert_close(sp.Entmax15(temperature=temperature)(x), sp.entmax15(x, temperature=temperature))
    torch.testing.assert_close(sp.Entmax(1.3, temperature=2.0)(x), sp.entmax(x, 1.3, temperature=2.0))
    learned = sp.Sparsemax(k=3, temperature=torch.nn.Parameter(torch.ones(())))
    assert [name for name, _ in learned.named_parameters()] == ["temperature"]
    assert "temperature" in sp.Entmax15(temperature=temperature).state_dict()
    assert repr(learned) == "Sparsemax(dim=-1, k=3, temperature=tensor of shape ())"
    assert repr(sp.Sparsemax()) == "Sparsemax(dim=-1)"
    assert repr(sp.Entmax(1.3, temperature=2.0)) == "Entmax(alpha=1.3, dim=-1, temperature=2.0)"


X = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("temperature", "error", "message"),
    [
        (0, ValueError, "temperature must be a positive finite number, got 0"),
        (-1.0, ValueError, "got -1.0"),
        (float("inf"), ValueError, "got inf"),
        (float("nan"), ValueError, "got nan"),
        (True, TypeError, "temperature must be a number or a tensor, got bool"),
        ("warm", TypeError, "got str"),
        (torch.tensor([1, 2]), TypeError, "temperature must have a floating-point dtype, got torch.int64"),
        (torch.tensor([1.0, 0.0]), ValueError, "temperature must be positive and finite everywhere, got [0.0]"),
        (torch.tensor(torch.nan), ValueError, "got [nan]"),
        (torch.ones(3), ValueError, "temperature must broadcast to the rows of x, (2,)"),
    ],
)
def test_bad_input_is_named(temperature: float | Tensor, error: type[Exception], message: str) -> None:
    for mapping in (sp.sparsemax, sp.entmax15):
        with pytest.raises(error) as caught:
            mapping(X, temperature=temperature)
        assert message in str(caught.value)
