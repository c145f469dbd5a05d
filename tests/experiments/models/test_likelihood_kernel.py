"""The kernel of the log-likelihood against its definition: on a GPU if available, else in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sparsum_experiments.models.likelihood import pixel_log_likelihood
from torch import Tensor

from tests.kernels.serving import serving
from tests.simplex.test_devices import n_waits

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
# The interpreter warns where a GPU continues with infinity, which the kernel relies on.
pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def _serving() -> Iterator[None]:
    with serving(True):
        yield


def inputs(n: int, n_pixels: int, n_levels: int, rank: int = 5, scale: float = 1.0) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(n + n_pixels + n_levels)
    shapes = [(n, n_pixels, rank), (n_levels, rank), (n_levels,)]
    tensors = [(scale * torch.randn(shape, generator=generator)).to(DEVICE) for shape in shapes]
    dtype = torch.uint8 if n_levels <= 256 else torch.int64
    return tensors, torch.randint(0, n_levels, (n, n_pixels), generator=generator, dtype=dtype).to(DEVICE)


def definition(tensors: Sequence[Tensor], x: Tensor) -> Tensor:
    features, weight, bias = tensors
    log_probs = (features @ weight.t() + bias).log_softmax(-1)
    return log_probs.gather(-1, x.long().unsqueeze(-1)).sum((1, 2))


def check(tensors: list[Tensor], x: Tensor) -> None:
    """Value and gradients against the definition in float64, relative to the largest entry."""
    # Large logits leave fewer digits for their differences and so for all probabilities.
    tolerance = 1e-5 * max(1.0, (tensors[0] @ tensors[1].t()).abs().max().item() / 50)
    upstream = torch.randn(len(x), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    fast = [tensor.clone().requires_grad_() for tensor in tensors]
    slow = [tensor.double().requires_grad_() for tensor in tensors]
    values, wanted = pixel_log_likelihood(fast[0], fast[1], fast[2], x), definition(slow, x)
    mine = [values, *torch.autograd.grad(values, fast, upstream)]
    truth = [wanted, *torch.autograd.grad(wanted, slow, upstream.double())]
    for here, there in zip(mine, truth, strict=True):
        size = max(1.0, there.abs().max().item())
        torch.testing.assert_close(here.double(), there, rtol=tolerance, atol=tolerance * size)
    with torch.no_grad():
        torch.testing.assert_close(pixel_log_likelihood(tensors[0], tensors[1], tensors[2], x), values.detach())


@pytest.mark.parametrize(
    ("n", "n_pixels", "n_levels", "rank"),
    [(1, 30, 256, 5), (1, 6, 17, 5), (3, 5, 2, 1), (1, 3, 300, 8), (2, 1, 1000, 3), (1, 7, 40, 8), (2, 48, 33, 2)],
)
def test_likelihood_and_gradients(n: int, n_pixels: int, n_levels: int, rank: int) -> None:
    check(*inputs(n, n_pixels, n_levels, rank))


@pytest.mark.parametrize(("n", "n_pixels", "n_levels", "rank"), [(2, 150, 9, 5), (1, 6, 30, 8), (3, 52, 3, 2)])
def test_several_pixels_per_thread(monkeypatch: pytest.MonkeyPatch, n: int, n_pixels: int, n_levels: int, rank: int) -> None:
    monkeypatch.setattr("sparsum_experiments.kernels.likelihood.LEAST_WARPS", 0)  # as if there were many images
    for scale in (1.0, 20.0):
        check(*inputs(n, n_pixels, n_levels, rank, scale))


def test_certain_levels_have_a_log_likelihood_of_exactly_zero() -> None:
    tensors, x = inputs(3, 40, 30, scale=4.0)
    tensors[2].zero_()
    tensors[2][7] = 1e4
    leaves = [tensor.requires_grad_() for tensor in tensors]
    values = pixel_log_likelihood(leaves[0], leaves[1], leaves[2], torch.full_like(x, 7))
    gradients = torch.autograd.grad(values.sum(), leaves)
    assert not any(tensor.any() for tensor in (values, *gradients))


def test_far_from_the_largest_logit() -> None:
    """The exponential of a difference overflows; in the second image, a level has probability 0."""
    tensors, x = inputs(3, 6, 12)
    tensors[2][3] = 300.0
    tensors[2][4] = -torch.inf
    x = torch.where(x == 4, 5, x)
    check(tensors, x)
    x[1, 2] = 4
    with torch.no_grad():
        values = pixel_log_likelihood(tensors[0], tensors[1], tensors[2], x)
    assert values.isinf().tolist() == [False, True, False]


def test_a_level_out_of_range_gives_nan() -> None:
    tensors, x = inputs(3, 4, 30)
    x[1, 2] = 30
    values = pixel_log_likelihood(tensors[0], tensors[1], tensors[2], x)
    assert values.isnan().tolist() == [False, True, False]


def test_unaligned_tensors() -> None:
    tensors, x = inputs(2, 8, 16)
    odd = [torch.empty(tensor.numel() + 1, device=DEVICE)[1:].view(tensor.shape).copy_(tensor) for tensor in tensors]
    from sparsum_experiments.kernels.likelihood import evaluate

    mine, wanted = (evaluate(some[0], some[1], some[2], x, True, True) for some in (odd, tensors))
    assert all(torch.equal(here, there) for here, there in zip(mine, wanted, strict=True))


@settings(max_examples=12, phases=[Phase.generate])  # shrinking takes minutes in the interpreter
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 70), st.integers(1, 8), st.sampled_from([0.0, 1e-3, 3.0, 20.0]))
def test_shapes_and_scales(n: int, n_pixels: int, n_levels: int, rank: int, scale: float) -> None:
    check(*inputs(n, n_pixels, n_levels, rank, scale))


def test_each_derivative_alone() -> None:
    tensors, x = inputs(2, 4, 20)
    for i in range(3):
        parts = [tensor.clone().requires_grad_(i == j) for j, tensor in enumerate(tensors)]
        (gradient,) = torch.autograd.grad(pixel_log_likelihood(parts[0], parts[1], parts[2], x).sum(), parts[i])
        (wanted,) = torch.autograd.grad(definition(parts, x).sum(), parts[i])
        torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-5)


def test_inputs_that_the_kernel_does_not_support() -> None:
    for n_levels, rank in ((1025, 2), (9, 9)):
        check(*inputs(1, 2, n_levels, rank))
    tensors, x = inputs(2, 3, 5)
    double = [tensor.double() for tensor in tensors]
    torch.testing.assert_close(pixel_log_likelihood(double[0], double[1], double[2], x), definition(double, x))


def test_half_precision_strides_and_empty_batches() -> None:
    tensors, x = inputs(3, 4, 30)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        values = pixel_log_likelihood(tensors[0].bfloat16(), tensors[1], tensors[2], x)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, definition([tensors[0].bfloat16().float(), *tensors[1:]], x))
    turned = [tensors[0].transpose(0, 1).contiguous().transpose(0, 1), tensors[1].t().contiguous().t(), tensors[2]]
    check(turned, x.t().contiguous().t())
    leaves = [tensors[0][:0].clone().requires_grad_(), tensors[1].clone().requires_grad_(), tensors[2]]
    nothing = pixel_log_likelihood(leaves[0], leaves[1], leaves[2], x[:0])
    assert nothing.shape == (0,)
    nothing.sum().backward()
    assert leaves[1].grad is not None
    assert not leaves[1].grad.any()


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # raised by the interpreter
def test_nan_stays_in_its_image() -> None:
    tensors, x = inputs(3, 4, 30)
    tensors[0][1, 2, 3] = torch.nan
    values = pixel_log_likelihood(tensors[0], tensors[1], tensors[2], x)
    assert values.isnan().tolist() == [False, True, False]


@on_gpu
@pytest.mark.parametrize("n", [64, 640, 6000])
def test_full_size_on_a_gpu(n: int) -> None:
    tensors, x = inputs(n, 784, 256)
    values = pixel_log_likelihood(tensors[0], tensors[1], tensors[2], x)
    some = torch.arange(0, n, 37, device=DEVICE)
    wanted = definition([tensors[0][some].double(), tensors[1].double(), tensors[2].double()], x[some])
    torch.testing.assert_close(values[some].double(), wanted, rtol=1e-5, atol=0)
    leaves = [tensor.requires_grad_() for tensor in tensors]
    results = []
    for _ in range(3):
        sums = pixel_log_likelihood(leaves[0], leaves[1], leaves[2], x)
        results.append([sums.detach(), *torch.autograd.grad(sums.sum(), leaves)])
    assert all(torch.equal(a, b) for result in results[1:] for a, b in zip(result, results[0], strict=True))


@on_gpu
def test_captured_in_a_graph_without_synchronisation() -> None:
    tensors, x = inputs(16, 784, 256)
    leaves = [tensor.requires_grad_() for tensor in tensors]

    def work() -> list[Tensor]:
        values = pixel_log_likelihood(leaves[0], leaves[1], leaves[2], x)
        return [values.detach(), *torch.autograd.grad(values.sum(), leaves)]

    assert n_waits(work, DEVICE) == 0
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        wanted = work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = work()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(mine, other) for mine, other in zip(results, wanted, strict=True))
