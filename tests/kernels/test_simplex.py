"""The kernels of entmax with whole exponents against their plain versions: on a GPU if there is one, else interpreted.

Exponent 1 is sparsemax, exponent 2 is 1.5-entmax. Blocks are made so small that short rows go through every loop.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from unittest import mock

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import constraints

import sparsum as sp
from sparsum.kernels import launch as launching
from sparsum.segments import reading_sizes
from sparsum.simplex import autograd
from sparsum.simplex.packed import packed_entmax
from sparsum.simplex.solve import solve_plainly
from tests.kernels.serving import serving
from tests.reference import entmax_by_root_finding, sparsemax_by_sorting

kernels = pytest.importorskip("sparsum.kernels.simplex")
any_alpha = pytest.importorskip("sparsum.kernels.entmax")
packing = pytest.importorskip("sparsum.kernels.simplex_packed")
steps = pytest.importorskip("sparsum.kernels.simplex_math")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ALPHAS = {1: 2.0, 2: 1.5, 3: 4 / 3, 4: 1.25, 5: 1.2}
PATHS = ("tile", "groups", "split")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Rounding, and one unit of half precision that makes up for the sum.
TOLERANCE = {torch.float64: 1e-14, torch.float32: 5e-7, torch.bfloat16: 1.5 * 2**-7, torch.float16: 1.5 * 2**-10}

on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
# The interpreter computes with numpy, which warns of infinities.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@contextlib.contextmanager
def small_blocks() -> Iterator[None]:
    """Groups of 4 entries, 4 to a chunk and 2 to a batch, and 2 chunks to a program."""
    cut = kernels.Groups(size=4, chunk=4, batch=2, warps=1)
    with contextlib.ExitStack() as stack:
        for module in (kernels, packing):
            stack.enter_context(mock.patch.object(module, "groups_for", return_value=cut))
            stack.enter_context(mock.patch.object(module, "SPLIT_SIZE", 32))
        yield


@pytest.fixture
def _kernels_serve() -> Iterator[None]:
    """Let the public functions call the kernels on the CPU too."""
    with serving(True):
        yield


def odd_rows(n: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Rows of all kinds, (8, n): random, tied, wide apart, constant, with -inf, of -inf alone, with +inf, with NaN."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, n, generator=generator, dtype=torch.float64)
    x[1] = (2 * x[1]).round() / 2
    x[2] *= 1e3
    x[3] = x[3, 0]
    x[4, ::2] = -torch.inf
    x[5] = -torch.inf
    x[6, torch.randint(n, (2,), generator=generator)] = torch.inf
    x[7, torch.randint(n, (1,), generator=generator)] = torch.nan
    return x.to(dtype)


def expected(x: Tensor, exponent: int, mask: Tensor | None = None) -> Tensor:
    """The plain version on the CPU, in double precision."""
    x = x.cpu().double()
    return solve_plainly(x if mask is None else x.masked_fill(~mask.cpu().expand(x.shape), -torch.inf), ALPHAS[exponent])


def assert_near(actual: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """Equal up to the rounding of ``dtype``: absolute in full precision, relative in half."""
    is_half = dtype in (torch.bfloat16, torch.float16)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        actual.cpu().double(), wanted.cpu().double(), atol=1e-6 if is_half else tolerance,
        rtol=tolerance if is_half else 0, equal_nan=True,
    )  # fmt: skip


def padding_by(extra: int) -> Callable[[Tensor, int], list[int]]:
    """A reader of sizes that asks for more room than is needed."""
    return lambda sizes, most: [sizes.tolist()[0] + extra, *sizes.tolist()[1:]]


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The rows (m, n) as (outer, inner, n) on the device, in one of several memory layouts."""
    x = x.to(DEVICE)
    if layout == "columns":
        return x.t().contiguous().t().view(2, -1, x.shape[-1])
    if layout == "sliced":
        wide = torch.full((x.shape[0], x.shape[1] + 3), 7.0, dtype=x.dtype, device=DEVICE)
        wide[:, 1:-2] = x
        return wide[:, 1:-2].unsqueeze(1)
    return x.unsqueeze(1)


@settings(max_examples=20)
@given(
    n=st.integers(1, 40),
    seed=st.integers(0, 1000),
    path=st.sampled_from(PATHS),
    exponent=st.sampled_from([1, 2, 3, 4, 5]),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(["plain", "columns", "sliced"]),
    masked=st.sampled_from(["no", "all", "by column", "by row"]),
)
def test_probabilities_of_all_kinds_of_rows(
    n: int, seed: int, path: str, exponent: int, dtype: torch.dtype, layout: str, masked: str
) -> None:
    """Values, infinities, NaN, ties, masks and strides, in every kernel and dtype; and the sum in the output's dtype."""
    x = laid_out(odd_rows(n, seed, dtype), layout)
    shapes = {"all": x.shape, "by column": (1, 1, n), "by row": (*x.shape[:2], 1)}
    mask = torch.rand(shapes.get(masked, ()), generator=torch.Generator().manual_seed(seed)).to(DEVICE) < 0.7
    allowed = None if masked == "no" else mask
    with small_blocks():
        probs = kernels.forward(x, allowed, exponent, path=path)
    wanted = expected(x, exponent, allowed)
    assert probs.dtype == dtype
    assert probs.shape == x.shape
    assert_near(probs, wanted, dtype)
    is_distribution = wanted.sum(-1) > 0
    assert constraints.simplex.check(probs.cpu()[is_distribution]).all()


@settings(max_examples=20)
@given(
    n=st.integers(1, 40),
    seed=st.integers(0, 1000),
    path=st.sampled_from(["tile", "groups"]),
    exponent=st.sampled_from([1, 2, 3, 5]),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(["plain", "columns", "sliced"]),
)
def test_gradients_of_all_kinds_of_rows(
    n: int, seed: int, path: str, exponent: int, dtype: torch.dtype, layout: str
) -> None:
    """The Jacobian's product at given probabilities is the plain version's; a row that is NaN stays so."""
    wanted_probs = expected(odd_rows(n, seed, dtype), exponent).to(dtype)
    grad = torch.randn(8, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    wanted = _wanted_gradient(wanted_probs.double(), grad.double(), exponent)
    with small_blocks():
        found = kernels.backward(laid_out(wanted_probs, layout), laid_out(grad, layout), exponent, path=path)
    rtol = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 2**-6)
    scale = grad.double().abs().max().item()
    torch.testing.assert_close(found.cpu().double().reshape(8, n), wanted, atol=rtol * scale, rtol=0, equal_nan=True)


def _wanted_gradient(probs: Tensor, grad: Tensor, exponent: int) -> Tensor:
    s = torch.where(probs == 0, 0.0, probs.pow(1 - 1 / exponent) + 0 * probs)
    return s * (grad - (s * grad).sum(-1, keepdim=True) / s.sum(-1, keepdim=True).clamp_min(1e-300))


@pytest.mark.parametrize("exponent", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("path", PATHS)
def test_against_textbook_versions(path: str, exponent: int) -> None:
    """A sort, or a root finder, in double precision."""
    x = torch.randn(3, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    reference = sparsemax_by_sorting if exponent == 1 else lambda row: entmax_by_root_finding(row, ALPHAS[exponent])
    wanted = torch.stack([reference(row) for row in x])
    for dtype in (torch.float64, torch.float32):
        with small_blocks():
            found = kernels.forward(x.to(DEVICE, dtype).unsqueeze(1), None, exponent, path=path).squeeze(1)
        torch.testing.assert_close(found.cpu().double(), wanted, atol=1e-12 if dtype == torch.float64 else 5e-7, rtol=0)


@pytest.mark.parametrize("exponent", [1, 2, 5])
@pytest.mark.parametrize("path", PATHS)
def test_many_equal_scores_share_the_mass(path: str, exponent: int) -> None:
    """Over a plateau of thousands of entries the sum stays 1: no rounding of the threshold adds up."""
    x = torch.full((1, 1, 3000), 0.1)
    x[..., 1000:] = 0.1 + 1e-6
    probs = kernels.forward(x.to(DEVICE), None, exponent, path=path).cpu()
    assert probs.double().sum().item() == pytest.approx(1, abs=1e-5)
    assert_near(probs, expected(x, exponent), torch.float32)


@pytest.mark.parametrize("n", [1, 2, 33, 700, 2049, 2056, 4096, 5000])
def test_the_blocks_in_use(n: int) -> None:
    """The table's own block sizes, at sizes around their limits."""
    x = 3 * torch.randn(2, 1, n, generator=torch.Generator().manual_seed(n))
    for dtype in (torch.float32, torch.bfloat16):
        scores = x.to(DEVICE, dtype)
        probs = kernels.simplex_forward(scores, None, 2)
        assert_near(probs, expected(scores, 2), dtype)
        assert_near(kernels.forward(scores, None, 1), expected(scores, 1), dtype)
        grad = torch.randn(2, 1, n, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)
        wanted = _wanted_gradient(probs.double(), grad.double(), 2)
        torch.testing.assert_close(kernels.simplex_backward(probs, grad, 2).double(), wanted, atol=2e-2, rtol=0)


def test_remembered_launches() -> None:
    """A second launch goes to the compiled kernel, constants in their order, unless it was compiled for something else."""
    compiled, launches = mock.MagicMock(), mock.MagicMock()
    kernel = mock.MagicMock(arg_names=["x", "n", "A", "B"])
    kernel.__getitem__.return_value = mock.MagicMock(return_value=compiled)
    compiled.__getitem__.return_value = launches
    x = torch.zeros(9, device=DEVICE)
    at = x.data_ptr()
    launch = kernels.unwrapped(kernel)[(5,)]
    for args in ((x, 3), (x, 3), (x, 4), (x, 1), (x, 16), (x, 2**33 + 1), (x[1:], 3), (x.double(), 3)):
        launch(*args, B=1, A=2)
    assert kernel.__getitem__.return_value.call_count == 6
    assert launches.call_args_list == [mock.call(at, 3, 2, 1), mock.call(at, 4, 2, 1)]
    compiled.__getitem__.assert_called_with((5, 1, 1))


def test_known_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's launcher is called directly where its arguments are known and no profiler listens, else in Triton's way."""
    knobs = pytest.importorskip("triton").knobs
    hooks = mock.MagicMock(calls=[])
    monkeypatch.setattr(knobs.runtime, "launch_enter_hook", hooks)
    monkeypatch.setattr(knobs.runtime, "launch_exit_hook", hooks)
    monkeypatch.setattr("triton.runtime.driver", mock.MagicMock())
    compiled, normal = mock.MagicMock(), mock.MagicMock()
    start = launching.direct_starter(compiled, (7,), 0, normal)
    start(5, 1, 1, 30, 40)
    assert compiled.run.launch.call_args.args[:3] == (5, 1, 1)
    assert compiled.run.launch.call_args.args[-3:] == (30, 40, 7)
    normal.assert_not_called()
    hooks.calls.append(print)
    start(5, 1, 1, 30, 40)
    normal.assert_called_once_with(5, 1, 1, 30, 40)


def test_plans_of_scores_seen_before() -> None:
    """A plan serves scores of its shape that are contiguous and aligned, and no others."""
    x, start = torch.zeros(4, 16, device=DEVICE), mock.MagicMock()
    with mock.patch.dict(launching.plans, clear=True):
        launching.keep_plan(1.5, launching.Plan(start, 2, (0, 0, 1, 2, 2), (((4, 2), torch.int32),), (4, 16)), x)
        launching.keep_plan(1.5, launching.Plan(start, 2, (0, 1, 2), (), (9,)), x, x)
        launching.keep_plan(1.5, launching.Plan(start, 2, (0, 0, 1), (), ()), x.t())
        odd = torch.zeros(65, device=DEVICE)[1:].view(4, 16)
        assert launching.again(2.0, x) is None
        for others in (
            (x.double(),),
            (x.t(),),
            (odd,),
            (x, x.double()),
            (x, x.t().contiguous().t()),
            (x, odd),
            (x, x[:1]),
        ):
            assert launching.again(1.5, *others) is None
        start.assert_not_called()
        product = launching.again(1.5, x, x + 1)
        assert product is not None
        assert start.call_args.args[3:4] + start.call_args.args[5:] == (x.data_ptr(), product.data_ptr(), 9)
        y = launching.again(1.5, x)
    assert y is not None
    assert y.shape == x.shape
    *pointers, peaks, ids, n_rows, n = start.call_args.args
    assert pointers == [2, 1, 1, x.data_ptr(), x.data_ptr(), y.data_ptr()]
    assert (peaks, n_rows, n) == (ids, 4, 16)


@pytest.mark.parametrize("path", PATHS)
def test_fused_reductions(path: str) -> None:
    """Two sums at once, and maxima that keep a NaN, left out elsewhere where they are interpreted, slowly."""
    x = odd_rows(9, 0, torch.float32)
    with small_blocks(), mock.patch.object(steps, "FUSED", steps.tl.constexpr(True)):
        probs = kernels.forward(x.to(DEVICE).unsqueeze(1), None, 1, path=path).squeeze(1)
    assert_near(probs, expected(x, 1), torch.float32)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(10,), (64, 10), (3, 5, 300), (2, 3, 4, 2304), (7, 4096), (3, 5000)])
def test_the_second_call(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """By a plan, bit for bit as the first and as with a gradient; other strides take another kernel."""
    torch.manual_seed(0)
    for mapping, alpha in ((sp.sparsemax, 2.0), (sp.entmax15, 1.5), (lambda x: sp.entmax(x, 1.3), 1.3)):
        x, other, grad = (torch.randn(shape, device="cuda").to(dtype) for _ in range(3))
        with mock.patch.dict(launching.plans, clear=True):
            leaf = x.clone().requires_grad_()
            first = mapping(leaf)
            (product,) = torch.autograd.grad(first, leaf, grad)
            assert len(launching.plans) == 2
            with contextlib.ExitStack() as stack:
                for module, name in itertools.product((kernels, any_alpha), ("planned_forward", "planned_backward")):
                    stack.enter_context(mock.patch.object(module, name, side_effect=AssertionError))
                assert torch.equal(mapping(x), first)
                assert torch.equal(torch.autograd.grad(mapping(leaf), leaf, grad)[0], product)
                assert_near(mapping(other), solve_plainly(other.cpu().double(), alpha), dtype)
        # In half precision each kernel makes up for what rounding leaves of 1 in entries of its own.
        assert_near(mapping(torch.stack([x, x], -1)[..., 0]), solve_plainly(x.cpu().double(), alpha), dtype)


def test_split_programs_begin_where_a_chunk_does() -> None:
    """The kernels promise the compiler that every step of the reading starts at a multiple of its chunk."""
    for n in (5000, 16384, 20000, 262144, 10**6):
        cut = kernels.groups_for(n)
        assert kernels.SPLIT_SIZE % (cut.size * cut.chunk) == 0


def test_no_rows_and_one_entry() -> None:
    """An empty batch stays empty; a single entry gets all the mass."""
    for path in PATHS:
        assert kernels.forward(torch.empty(0, 1, 5, device=DEVICE), None, 1, path=path).shape == (0, 1, 5)
        assert kernels.forward(torch.full((1, 1, 1), 3.0, device=DEVICE), None, 1, path=path).item() == 1


@settings(max_examples=8)
@given(
    n=st.integers(1, 40),
    seed=st.integers(0, 1000),
    path=st.sampled_from(PATHS),
    exponent=st.sampled_from([1, 2]),
    extra=st.sampled_from([0, 5]),
)
def test_the_packed_support(n: int, seed: int, path: str, exponent: int, extra: int) -> None:
    """Positions and probabilities are those of the dense version; rows without mass are empty; room at the end is padded."""
    x = odd_rows(n, seed, torch.float32)
    wanted = expected(x, exponent)
    with small_blocks():
        rows = x.to(DEVICE).unsqueeze(1)
        found = packing.support(rows, exponent, path=path)
        dense = kernels.forward(rows, None, exponent, path=path).squeeze(1)
        count = int(found[1].sum())
        flat, probs, of_row = packing.pack(rows, found, count + extra, exponent)
    positions = (dense > 0).reshape(-1).nonzero().squeeze(-1)
    assert torch.equal(flat[:count], positions)
    assert torch.equal(of_row[:count], positions // x.shape[-1])
    assert (of_row[count:] == len(x) - 1).all()
    assert torch.equal(found[1], (dense > 0).sum(-1))
    assert (flat[count:] == x.numel() - 1).all()
    assert (probs[count:] == 0).all()
    assert_near(probs[:count], wanted.reshape(-1)[positions.cpu()], torch.float32)


@pytest.mark.usefixtures("_kernels_serve")
@pytest.mark.parametrize("alpha", [2.0, 1.5])
def test_packed_probabilities_have_the_dense_derivatives(alpha: float) -> None:
    """Value, first and second derivative, with padding and without, against the dense mapping."""
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE).requires_grad_()
    weight = torch.randn(3, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(DEVICE)

    def derivatives(probs: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        (first,) = torch.autograd.grad((probs * weights).square().sum(), x, create_graph=True)
        return first, torch.autograd.grad((first * weight).sum(), x)[0]

    wanted = derivatives(sp.entmax(x, alpha), weight)
    for extra in (0, 7):
        with reading_sizes(padding_by(extra)):
            packed, probs = packed_entmax(x, alpha, on_bad=sp.OneOf(x.shape[-1]).bind(x).raise_bad)
        torch.testing.assert_close(packed.segments.sum(probs), torch.ones_like(probs[:3]))
        found = derivatives(packed.segments.clear(probs), weight.reshape(-1)[packed.flat])
        torch.testing.assert_close(found, wanted)


def entmax(x: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    return sp.entmax(x, 1.3, dim, mask=mask)


def entmax_of_rows(x: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    """A different alpha for every row, which has a gradient."""
    return sp.entmax(x, 1.05 + 0.9 * x.sigmoid().mean(dim), dim, mask=mask)


every_mapping = pytest.mark.parametrize("mapping", [sp.sparsemax, sp.entmax15, entmax, entmax_of_rows])


@pytest.mark.usefixtures("_kernels_serve")
@every_mapping
def test_public_functions_in_all_shapes(mapping: Callable[..., Tensor]) -> None:
    """Any dimension, with a mask that broadcasts, and its gradient, against the plain version in double precision."""
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
    mask = torch.rand(3, 1, 5, generator=torch.Generator().manual_seed(1)).to(DEVICE) < 0.8
    weight = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    for dim in range(-4, 4):
        (found,) = torch.autograd.grad((mapping(x, dim, mask=mask) * weight).sum(), x)
        with serving(False):
            exact = x.detach().cpu().double().requires_grad_()
            wanted = mapping(exact, dim, mask=mask.cpu())
            (wanted_gradient,) = torch.autograd.grad((wanted * weight.cpu()).sum(), exact)
        assert_near(mapping(x, dim, mask=mask).detach(), wanted.detach(), torch.float32)
        atol = 3e-6 if mapping is entmax_of_rows else 1e-6  # the gradient of alpha amplifies the rounding of probabilities
        torch.testing.assert_close(found.cpu().double(), wanted_gradient, atol=atol, rtol=0)
    with pytest.raises(TypeError, match="mask must be a tensor of dtype"):
        mapping(x, mask=weight)
    assert mapping(x[:, :0]).shape == (2, 0, 4, 5)
    assert mapping(x[..., 0, :0]).shape == (2, 3, 0)


@pytest.mark.usefixtures("_kernels_serve")
@every_mapping
def test_derivatives_of_the_public_functions(mapping: Callable[..., Tensor]) -> None:
    """Reverse and forward mode and second derivatives, by finite differences, and function transforms."""
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE).requires_grad_()
    mask = torch.arange(3, device=DEVICE) != 1
    assert gradcheck(lambda x: mapping(x, mask=mask), (x,), check_forward_ad=True)
    assert gradgradcheck(mapping, (x,))
    torch.testing.assert_close(torch.func.vmap(lambda x: mapping(x, mask=mask))(x), mapping(x, mask=mask))
    row = x.detach()[0]
    torch.testing.assert_close(torch.func.jacfwd(mapping)(row), torch.func.jacrev(mapping)(row))


@on_gpu
@pytest.mark.parametrize("n", [4096, 8191, 65536, 100_003, 10**6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("exponent", [1, 2, 3, 5])
def test_long_rows(n: int, dtype: torch.dtype, exponent: int) -> None:
    """Rows of each kernel's real size, few and many of whose entries have mass, and the same bits every time."""
    for scale in (1.0, 1e-4):
        x = (scale * torch.randn(5, 1, n, generator=torch.Generator().manual_seed(n))).to("cuda", dtype)
        probs = kernels.simplex_forward(x, None, exponent)
        if dtype == torch.float32:
            torch.testing.assert_close(probs.cpu().double(), expected(x, exponent), atol=1e-6, rtol=1e-4)
        assert constraints.simplex.check(probs.float() if dtype == torch.float32 else probs).all()
        assert torch.equal(probs, kernels.simplex_forward(x, None, exponent))


@on_gpu
def test_more_entries_than_an_int32_counts() -> None:
    """Offsets beyond 2**31."""
    x = torch.zeros(2**31 // 4096 + 2, 1, 4096, dtype=torch.bfloat16, device="cuda")
    x[-1, 0, 7] = 5
    assert kernels.simplex_forward(x, None, 1)[-1, 0, 7] == 1


@on_gpu
@pytest.mark.parametrize("n", [10, 300, 5000, 70_000])
def test_compiled_and_exported(n: int) -> None:
    """A whole graph, with its gradient, and an exported program, as in eager mode."""
    x = torch.randn(4, n, device="cuda", requires_grad=True)
    mask = torch.rand(n, device="cuda") < 0.8
    weight = torch.randn(4, n, device="cuda")
    for mapping in (sp.sparsemax, sp.entmax15, entmax, entmax_of_rows):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, mapping=mapping: mapping(2 * x, mask=mask) + 1, fullgraph=True)
        wanted = mapping(2 * x, mask=mask) + 1
        found = compiled(x)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(
            torch.autograd.grad((found * weight).sum(), x), torch.autograd.grad((wanted * weight).sum(), x)
        )
    program = torch.export.export(sp.Sparsemax(), (x.detach(),))
    torch.testing.assert_close(program.module()(x.detach()), sp.sparsemax(x.detach()))


@on_gpu
@pytest.mark.parametrize("mapping", [sp.sparsemax, entmax])
@pytest.mark.parametrize("n", [10, 300, 5000, 70_000])
def test_captured_in_a_cuda_graph(n: int, mapping: Callable[..., Tensor]) -> None:
    """Forward and backward replayed on new scores, without waiting for the device."""
    x = torch.randn(4, n, device="cuda", requires_grad=True)
    weight = torch.randn(4, n, device="cuda")

    def step() -> tuple[Tensor, Tensor]:
        probs = mapping(x)
        return probs.detach(), torch.autograd.grad((probs * weight).sum(), x)[0]

    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.copy_(torch.randn(4, n, device="cuda"))
    graph.replay()
    torch.testing.assert_close(captured, step())


def test_gradients_of_scores_seen_before() -> None:
    """They need no checks; a transform, a lazy negative, and a shape not seen before do."""
    x = torch.randn(3, 17, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
    with mock.patch.dict(launching.plans, clear=True):
        wanted = sp.entmax15(x)  # on a GPU, it leaves its plan
        if not x.is_cuda:
            assert autograd.apply_again(x, 1.5) is None
            launching.keep_plan(1.5, launching.Plan(mock.MagicMock(), 3, (0, 0, 1), (), ()), x)
        found = autograd.apply_again(x, 1.5)
        assert found is not None
        assert torch.equal(found, wanted)
        assert torch.equal(*(torch.autograd.grad(probs[0, 0], x)[0] for probs in (found, wanted)))
        assert autograd.apply_again(x[:2], 1.5) is None
        assert autograd.apply_again(torch._neg_view(x), 1.5) is None
        assert torch.func.vmap(lambda t: torch.tensor(autograd.apply_again(t, 1.5) is None))(x.unsqueeze(0)).all()
