"""Derivatives of the mappings and losses: finite differences to second order, function transforms, and graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

import sparsum as sp


def target() -> Tensor:
    """Made anew where it is used: strict exports of older versions of torch refuse tensors from outside."""
    return torch.tensor([0, 3, -100])


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sparsemax": sp.sparsemax,
    "sparsemax-k": lambda x: sp.sparsemax(x, k=3),
    "sparsemax-mask": lambda x: sp.sparsemax(x, mask=torch.arange(x.shape[-1]) != 2),
    "sparsemax-dim": lambda x: sp.sparsemax(x, 0),
    "entmax15": sp.entmax15,
    "entmax-1": lambda x: sp.entmax(x, 1),
    "entmax-1.3": lambda x: sp.entmax(x, 1.3),
    "entmax-2.5": lambda x: sp.entmax(x, 2.5),
    "entmax-rows": lambda x: sp.entmax(x, torch.tensor([1.0, 1.5, 2.2], dtype=torch.float64)),
    "sparsemax-loss": lambda x: sp.sparsemax_loss(x, target(), reduction="none"),
    "entmax15-loss": lambda x: sp.entmax15_loss(x, target()),
    "entmax-loss-1": lambda x: sp.entmax_loss(x, target(), 1.0),
    "entmax-loss-1.3": lambda x: sp.entmax_loss(x, target(), 1.3, reduction="sum"),
    "soft-loss": lambda x: sp.sparsemax_loss(x, torch.linspace(0, 2 / x.shape[-1], x.shape[-1]).expand(x.shape)),
}
every_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())


def scores(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@every_function
def test_first_and_second_derivatives(function: Callable[[Tensor], Tensor]) -> None:
    """Reverse and forward mode, batched and not, against finite differences."""
    x = scores(3, 7).requires_grad_()
    assert gradcheck(function, (x,), check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    assert gradgradcheck(function, (x,), check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize("function", [sp.entmax, lambda x, alpha: sp.entmax_loss(x, target(), alpha, reduction="none")])
@pytest.mark.parametrize("low", [1.0001, 1.2, 1.5, 2.0, 2.5])
def test_derivatives_in_alpha(function: Callable[[Tensor, Tensor], Tensor], low: float) -> None:
    alpha = low + torch.tensor([0.0, 0.1, 0.2], dtype=torch.float64)
    inputs = (scores(3, 7).requires_grad_(), alpha.requires_grad_())
    assert gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, inputs)


def test_alpha_receives_its_limit_gradient_at_one() -> None:
    """From one side, since alpha < 1 is not defined."""
    x, weight = scores(4, 6), scores(4, 6, seed=2)
    for function in (
        lambda alpha: (sp.entmax(x, alpha) * weight).sum(),
        lambda alpha: sp.entmax_loss(x, torch.tensor([0, 1, 2, 3]), alpha),
    ):
        alpha = torch.ones(4, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(function(alpha), alpha)
        step = 1e-4
        for row in range(4):
            shift = step * torch.eye(4, dtype=torch.float64)[row]
            values = [function(torch.ones(4, dtype=torch.float64) + i * shift) for i in range(3)]
            difference = (-3 * values[0] + 4 * values[1] - values[2]) / (2 * step)
            torch.testing.assert_close(gradient[row], difference, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("mapping", [sp.sparsemax, sp.entmax15], ids=["sparsemax", "entmax15"])
def test_the_packed_jacobian_of_long_rows_is_the_dense_one(mapping: Callable[[Tensor], Tensor]) -> None:
    """A long row, padded with scores that get nothing, has the gradients of the short one, to second order."""
    short = scores(3, 20).requires_grad_()
    padding = torch.full((3, 9000), -50.0, dtype=torch.float64)
    weight = scores(3, 20, seed=3)
    results = []
    for x in (short, torch.cat([short, padding], -1)):
        loss = (mapping(x)[:, :20] * weight).sum(-1).square().sum()
        (first,) = torch.autograd.grad(loss, short, create_graph=True)
        results.append((first, torch.autograd.grad(first.square().sum(), short)[0]))
    for short_result, long_result in zip(*results, strict=True):
        torch.testing.assert_close(long_result, short_result, atol=1e-12, rtol=0)


@every_function
def test_function_transforms(function: Callable[[Tensor], Tensor]) -> None:
    """vmap, grad, jvp, jacrev, jacfwd and their compositions, against loops and each other."""
    batch = scores(4, 3, 7)
    looped = torch.stack([function(x) for x in batch])
    torch.testing.assert_close(torch.func.vmap(function)(batch), looped)
    torch.testing.assert_close(torch.func.vmap(function, in_dims=2)(batch.movedim(0, 2)), looped)

    def energy(x: Tensor) -> Tensor:
        return function(x).square().sum()

    gradients = torch.stack([torch.func.grad(energy)(x) for x in batch])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(energy))(batch), gradients)
    x = batch[0]
    jacobian = torch.func.jacrev(function)(x)
    torch.testing.assert_close(torch.func.jacfwd(function)(x), jacobian)
    tangent = torch.func.jvp(function, (x,), (batch[1],))[1]
    torch.testing.assert_close(tangent, torch.tensordot(jacobian, batch[1], 2))
    torch.testing.assert_close(torch.func.hessian(energy)(x), torch.func.jacrev(torch.func.jacrev(energy))(x))


def nested_jvp(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], tangents: tuple[Tensor, ...], order: int
) -> Tensor:
    """The derivative of the given order along the tangents, in forward mode alone."""
    if order == 0:
        return function(*inputs)
    result: Tensor = torch.func.jvp(lambda *z: nested_jvp(function, z, tangents, order - 1), inputs, tangents)[1]
    return result


@pytest.mark.parametrize("moving", ["x", "alpha", "both"])
@pytest.mark.parametrize("function", [sp.entmax, lambda x, alpha: sp.entmax_loss(x, target(), alpha, reduction="none")])
@pytest.mark.parametrize("low", [1.0001, 1.3, 1.85])
def test_nested_forward_mode_with_a_tensor_alpha(function: Callable[..., Tensor], moving: str, low: float) -> None:
    """Each order is the finite difference of the order below, which torch would compute without the outer tangents."""
    inputs = scores(3, 7), low + torch.tensor([0.0, 0.1, 0.2], dtype=torch.float64)
    tangents = scores(3, 7, seed=1) * (moving != "alpha"), scores(3, seed=2) * (moving != "x")
    step = 1e-5

    def moved(by: float) -> tuple[Tensor, ...]:
        return tuple(value + by * tangent for value, tangent in zip(inputs, tangents, strict=True))

    for order in (1, 2, 3):
        ends = [nested_jvp(function, moved(by), tangents, order - 1) for by in (step, -step)]
        derivative = nested_jvp(function, inputs, tangents, order)
        torch.testing.assert_close(derivative, (ends[0] - ends[1]) / (2 * step), atol=1e-5, rtol=1e-5)


@every_function
def test_nested_forward_mode(function: Callable[[Tensor], Tensor]) -> None:
    """The Hessian in forward mode alone is that in reverse mode alone."""

    def energy(x: Tensor) -> Tensor:
        return function(x).square().sum()

    x = scores(3, 7)
    hessian = torch.func.jacrev(torch.func.jacrev(energy))(x)
    torch.testing.assert_close(torch.func.jacfwd(torch.func.jacfwd(energy))(x), hessian)


def test_vmap_over_alpha_and_long_rows() -> None:
    x, alpha = scores(4, 7), 1 + torch.rand(4, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(torch.func.vmap(sp.entmax)(x, alpha), sp.entmax(x, alpha))
    torch.testing.assert_close(torch.func.vmap(lambda a: sp.entmax(x[0], a))(alpha), sp.entmax(x[:1].expand(4, 7), alpha))
    long = scores(3, 9000)
    torch.testing.assert_close(torch.func.vmap(sp.sparsemax)(long), sp.sparsemax(long))
    gradient = torch.func.vmap(torch.func.grad(lambda x: sp.sparsemax(x).square().sum()))(long)
    assert ((gradient != 0).sum(-1) < 100).all()


def test_forward_mode_of_rounded_and_packed_probabilities() -> None:
    """What is computed without gradient must not let tangents through either."""
    x = scores(40).bfloat16()
    torch.testing.assert_close(torch.func.jacfwd(sp.entmax15)(x), torch.func.jacrev(sp.entmax15)(x))
    for size in (5, 50, 9000):
        x, tangent = scores(2, size), scores(2, size, seed=1)
        packed = torch.func.jvp(lambda x: sp.sparsemap(x, sp.OneOf(x.shape[-1])).to_dense(), (x,), (tangent,))[1]
        torch.testing.assert_close(packed, torch.func.jvp(sp.sparsemax, (x,), (tangent,))[1])


def test_gradients_of_large_alphas_are_finite() -> None:
    x = (0.01 * scores(500, 12)).requires_grad_()
    for alpha in (10.0, 80.0, 200.0):
        (gradient,) = torch.autograd.grad((sp.entmax(x, alpha) * scores(500, 12, seed=1)).sum(), x)
        assert gradient.isfinite().all()


@every_function
@pytest.mark.parametrize("size", [7, 50], ids=["short", "long"])
def test_compiled_graphs(function: Callable[[Tensor], Tensor], size: int) -> None:
    """The value and gradient of a whole graph are those of eager mode."""
    x = scores(3, size).requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    weight = scores(*function(x).shape, seed=4)
    (expected,) = torch.autograd.grad((function(x) * weight).sum(), x)
    value = compiled(x)
    torch.testing.assert_close(value, function(x))
    torch.testing.assert_close(torch.autograd.grad((value * weight).sum(), x)[0], expected)


def test_compiled_alpha_receives_its_gradient() -> None:
    x, weight = scores(3, 7), scores(3, 7, seed=5)
    gradients = []
    for version in (sp.entmax, torch.compile(sp.entmax, fullgraph=True, backend="aot_eager")):
        alpha = torch.tensor([1.0, 1.4, 2.0], dtype=torch.float64, requires_grad=True)
        (version(x, alpha) * weight).sum().backward()
        gradients.append(alpha.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_compiled_graphs_take_odd_rows() -> None:
    x = torch.tensor([[1.0, 0.5, -3.0], [-torch.inf] * 3, [torch.inf, 0.0, torch.inf], [torch.nan, 0.0, 1.0]])
    compiled = torch.compile(sp.sparsemax, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), sp.sparsemax(x), equal_nan=True)


@every_function
@pytest.mark.parametrize("strict", [True, False])
def test_exported_programs(function: Callable[[Tensor], Tensor], strict: bool) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    x = scores(3, 7)
    program = torch.export.export(Model(), (x,), strict=strict)
    torch.testing.assert_close(program.module()(x), function(x))


def test_exported_with_a_dynamic_batch() -> None:
    program = torch.export.export(sp.Sparsemax(), (scores(3, 50),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    x = scores(11, 50)
    torch.testing.assert_close(program.module()(x), sp.sparsemax(x))


every_mapping_and_loss = pytest.mark.parametrize(
    "function",
    [
        sp.sparsemax,
        sp.entmax15,
        lambda x: sp.entmax(x, 1.3),
        lambda x: sp.entmax(x, torch.tensor([1.1, 1.7, 2.5], dtype=torch.float64)),
        lambda x: sp.sparsemax_loss(x, target()),
        lambda x: sp.entmax_loss(x, target(), 1.3),
    ],
    ids=["sparsemax", "entmax15", "entmax", "entmax-rows", "sparsemax-loss", "entmax-loss"],
)


@every_mapping_and_loss
def test_compiled_once_for_rows_of_any_length(function: Callable[[Tensor], Tensor]) -> None:
    """Attention over sentences: after the first lengths, one graph serves all others."""
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for n in (5, 40, 50):
        compiled(scores(3, n))
    with torch.compiler.set_stance("fail_on_recompile"):
        for n in (33, 64, 129, 300):
            torch.testing.assert_close(compiled(scores(3, n)), function(scores(3, n)))


@pytest.mark.parametrize(
    ("function", "strict"),
    [
        (sp.sparsemax, False),
        (sp.entmax15, True),
        (lambda x: sp.entmax(x, 1.3), False),
        (lambda x: sp.sparsemax_loss(x, target()), True),
        (lambda x: sp.entmax_loss(x, target(), torch.tensor([1.1, 1.7, 2.5], dtype=torch.float64)), False),
    ],
    ids=["sparsemax", "entmax15", "entmax", "sparsemax-loss", "entmax-loss-rows"],
)
def test_exported_with_rows_of_any_length(function: Callable[[Tensor], Tensor], strict: bool) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    sizes = {1: torch.export.Dim("n", min=4, max=10_000)}
    program = torch.export.export(Model(), (scores(3, 50),), dynamic_shapes=(sizes,), strict=strict)
    for n in (4, 31, 32, 33, 500):
        torch.testing.assert_close(program.module()(scores(3, n)), function(scores(3, n)))


@every_mapping_and_loss
@pytest.mark.parametrize("n", [7, 50, 9000])
def test_without_values(function: Callable[[Tensor], Tensor], n: int) -> None:
    """Under FakeTensorMode, shapes and dtypes are computed, forward and backward."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(3, n, dtype=torch.float64, requires_grad=True)
        y = function(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert isinstance(y, FakeTensor)
        assert isinstance(grad, FakeTensor)
        assert (y.dtype, grad.shape) == (torch.float64, x.shape)


@pytest.mark.parametrize("mapping", [sp.sparsemax, sp.entmax15, lambda x: sp.entmax(x, 1.3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_the_meta_device(mapping: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    for n in (7, 50, 9000):
        x = torch.empty(3, n, dtype=dtype, device="meta", requires_grad=True)
        y = mapping(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert y.is_meta
        assert y.dtype == dtype
        assert grad.shape == y.shape == x.shape


@pytest.mark.parametrize("value", [1.3, 2.0])
def test_third_derivatives_in_alpha(value: float) -> None:
    """Also at 2, where the weights of the Jacobian have the exponent 0."""
    x, weight = scores(7), scores(7, seed=1)

    def second(alpha: Tensor) -> Tensor:
        def loss(scores: Tensor, alpha: Tensor) -> Tensor:
            return (sp.entmax(scores, alpha) * weight).sum()

        found: Tensor = torch.func.grad(lambda alpha: torch.func.grad(loss)(x, alpha).square().sum())(alpha)
        return found

    alpha, step = torch.tensor(value, dtype=torch.float64), 1e-5
    numeric = (second(alpha + step) - second(alpha - step)) / (2 * step)
    torch.testing.assert_close(torch.func.grad(second)(alpha), numeric, rtol=1e-4, atol=1e-6)
