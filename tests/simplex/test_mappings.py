"""The mappings: values against independent solvers, identities, and inputs of every shape, dtype and oddity."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from torch import Tensor

import sparsum as sp
from sparsum.simplex import blocks, thresholds
from tests.reference import entmax_by_root_finding, simplex_projection_by_qp, sparsemax_by_sorting

Mapping = Callable[..., Tensor]

MAPPINGS: dict[str, Mapping] = {
    "sparsemax": sp.sparsemax,
    "entmax15": sp.entmax15,
    "entmax-1": lambda x, dim=-1, mask=None: sp.entmax(x, 1, dim, mask=mask),
    "entmax-1.2": lambda x, dim=-1, mask=None: sp.entmax(x, 1.2, dim, mask=mask),
    "entmax-3": lambda x, dim=-1, mask=None: sp.entmax(x, 3.0, dim, mask=mask),
    "entmax-tensor": lambda x, dim=-1, mask=None: sp.entmax(x, torch.tensor(1.7), dim, mask=mask),
}
every_mapping = pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS.keys())
# Below and above the sizes at which another algorithm takes over: 32 (pairs to steps) and 8192 (steps to blocks).
SIZES = [1, 2, 10, 32, 33, 100, 1000, 8191, 8192, 8200, 20001]

finite = st.floats(-20, 20, allow_subnormal=False)
vectors = st.one_of(
    st.lists(finite, min_size=1, max_size=60),
    st.lists(st.integers(-4, 4).map(lambda n: n / 4), min_size=1, max_size=60),  # ties, also at the threshold
)


@given(vectors)
def test_sparsemax_agrees_with_a_sort(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(sp.sparsemax(x), sparsemax_by_sorting(x), atol=1e-14, rtol=0)


@given(st.lists(finite, min_size=1, max_size=6))
def test_sparsemax_agrees_with_a_generic_qp_solver(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(sp.sparsemax(x), simplex_projection_by_qp(x), atol=1e-6, rtol=0)


@given(vectors, st.sampled_from([1.05, 1.3, 1.5, 1.9, 2.0, 2.5, 4.0]))
def test_entmax_agrees_with_root_finding(values: list[float], alpha: float) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    expected = entmax_by_root_finding(x, alpha)
    # Beyond alpha = 2, the slope at the threshold is infinite: the last digit of the threshold is not the last of p.
    tolerance = 1e-13 if alpha <= 2 else 1e-4
    torch.testing.assert_close(sp.entmax(x, alpha), expected, atol=tolerance, rtol=0)
    torch.testing.assert_close(sp.entmax(x, torch.tensor(alpha, dtype=torch.float64)), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("alpha", [2.5, 4.0, 10.0])
def test_entmax_beyond_two_satisfies_the_optimality_conditions(alpha: float, generator: torch.Generator) -> None:
    """On the support, x - p^(alpha-1) / (alpha-1) is one constant, and no other score exceeds it."""
    x = torch.randn(200, 9, generator=generator, dtype=torch.float64)
    probs = sp.entmax(x, alpha)
    marginal = x - probs ** (alpha - 1) / (alpha - 1)
    level = torch.where(probs > 0, marginal, -torch.inf).amax(-1, keepdim=True)
    assert torch.where(probs > 0, level - marginal, 0.0).max() < 1e-11
    assert (torch.where(probs == 0, x, -torch.inf) <= level + 1e-11).all()


@given(vectors)
def test_entmax_at_one_is_softmax(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    expected = torch.from_numpy(softmax(x.numpy()))
    for alpha in (1.0, torch.tensor(1.0), torch.tensor(1 + 1e-12, dtype=torch.float64)):
        torch.testing.assert_close(sp.entmax(x, alpha), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 10.0])
def test_fast_ways_agree_with_the_sort_on_rows_of_every_length(size: int, scale: float, generator: torch.Generator) -> None:
    """The eager ways (pairs, steps, blocks) against the traceable one, which sorts."""
    x = scale * torch.randn(3, size, generator=generator, dtype=torch.float64)
    shifted = x - x.amax(-1, keepdim=True)
    for exponent, mapping in ((1, sp.sparsemax), (2, sp.entmax15)):
        torch.testing.assert_close(mapping(x), thresholds.solve_traceable(shifted, exponent), atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [33, 1000, 8000])
def test_the_steps_of_a_gpu_suffice(size: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    """A number of steps that is fixed beforehand ends where the steps that look at their progress end."""
    normal = torch.randn(50, size, generator=generator, dtype=dtype)
    for x in (normal, 1e-4 * normal, 0 * normal, -normal.abs().pow(8), normal.round()):
        for exponent in (1, 2):
            z = (x - x.amax(-1, keepdim=True)) / exponent
            enough = thresholds.threshold_by_enough_steps(z, exponent)
            torch.testing.assert_close(
                enough, thresholds.step_until_done(z, exponent)[1], atol=8 * torch.finfo(dtype).eps, rtol=0
            )


def test_long_rows_are_packed_only_where_the_support_is_small(generator: torch.Generator) -> None:
    sparse = torch.randn(2, 10_000, generator=generator)
    dense = torch.zeros(2, 10_000)
    for x, is_packed in ((sparse, True), (dense, False)):
        assert (blocks.solve_long(x, blocks.block_peaks(x), 1) is not None) == is_packed
    torch.testing.assert_close(sp.sparsemax(dense), torch.full((2, 10_000), 1e-4), atol=0, rtol=1e-6)


@every_mapping
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 3, 7, 33, 1000, 9000])
def test_results_are_distributions_in_the_dtype_of_the_scores(
    mapping: Mapping, dtype: torch.dtype, size: int, generator: torch.Generator
) -> None:
    for scale in (0.0, 0.1, 1.0, 5.0):
        x = (scale * torch.randn(50, size, generator=generator)).to(dtype)
        probs = mapping(x)
        assert probs.dtype == dtype
        assert probs.shape == x.shape
        assert torch.distributions.constraints.simplex.check(probs).all()
        torch.distributions.Categorical(probs=probs, validate_args=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_the_rounded_single_precision(dtype: torch.dtype, generator: torch.Generator) -> None:
    x = torch.randn(100, 30, generator=generator).to(dtype)
    error = (sp.sparsemax(x).float() - sp.sparsemax(x.float())).abs()
    assert (error <= 1.5 * torch.finfo(dtype).eps * sp.sparsemax(x.float()) + 1e-7).all()


@every_mapping
def test_every_dimension(mapping: Mapping, generator: torch.Generator) -> None:
    x = torch.randn(3, 4, 5, 6, generator=generator, dtype=torch.float64)
    for dim in range(-4, 4):
        expected = mapping(x.movedim(dim, -1).contiguous()).movedim(-1, dim)
        torch.testing.assert_close(mapping(x, dim), expected, atol=1e-15, rtol=0)
    vector = x[0, 0, 0]
    torch.testing.assert_close(mapping(vector), mapping(vector[None])[0], atol=1e-15, rtol=0)


@every_mapping
def test_strided_scores(mapping: Mapping, generator: torch.Generator) -> None:
    x = torch.randn(4, 20, generator=generator)
    for view in (x.t(), x[::2, ::3], x[:, :1].expand(4, 9)):
        torch.testing.assert_close(mapping(view), mapping(view.contiguous()), atol=1e-7, rtol=0)
    long = torch.randn(9000, 3, generator=generator).t()
    torch.testing.assert_close(mapping(long), mapping(long.contiguous()), atol=1e-7, rtol=0)


@every_mapping
@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5), (0, 9000), (3, 0), (0, 0), (0,)])
def test_empty_batches_and_rows(mapping: Mapping, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, requires_grad=True)
    probs = mapping(x)
    assert probs.shape == shape
    probs.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == shape


@every_mapping
def test_rows_of_one_entry_are_certain(mapping: Mapping) -> None:
    assert torch.equal(mapping(torch.tensor([[3.0], [-1e30], [1e30]])), torch.ones(3, 1))


@every_mapping
@pytest.mark.parametrize("offset", [-1000.0, 1e4])
@pytest.mark.parametrize("size", [5, 100, 9000])
def test_shift_invariance(mapping: Mapping, offset: float, size: int, generator: torch.Generator) -> None:
    x = (torch.randn(5, size, generator=generator) * 64).round() / 64  # so that the shift itself is exact
    torch.testing.assert_close(mapping(x + offset), mapping(x), atol=1e-6, rtol=0)


@every_mapping
@pytest.mark.parametrize("size", [4, 100, 9000])
def test_huge_and_equal_scores(mapping: Mapping, size: int) -> None:
    x = torch.full((2, size), -1000.0)
    torch.testing.assert_close(mapping(x), torch.full_like(x, 1 / size), atol=1e-9, rtol=1e-5)
    x = torch.full((2, size), -1e30)
    x[:, 1] = x[:, 3] = 1e30
    expected = torch.zeros_like(x)
    expected[:, 1] = expected[:, 3] = 0.5
    torch.testing.assert_close(mapping(x), expected, atol=1e-6, rtol=0)


@every_mapping
@pytest.mark.parametrize("size", [4, 40, 9000])
def test_infinities_and_nan(mapping: Mapping, size: int, generator: torch.Generator) -> None:
    x = torch.randn(6, size, generator=generator)
    plain = mapping(x)
    x[1, 0] = torch.nan
    x[2, 1] = torch.inf
    x[3, :2] = torch.inf
    x[4] = -torch.inf
    x.requires_grad_()
    probs = mapping(x)
    torch.testing.assert_close(probs[[0, 5]], plain[[0, 5]], atol=1e-6, rtol=0)
    assert probs[1].isnan().all()
    assert probs[2].tolist() == [float(i == 1) for i in range(size)]
    assert probs[3].tolist() == [0.5 * (i < 2) for i in range(size)]
    assert not probs[4].any()
    (probs * torch.randn(size, generator=generator)).sum().backward()
    assert x.grad is not None
    assert x.grad[[0, 2, 3, 4, 5]].isfinite().all()
    assert x.grad[1].isnan().all()  # as for softmax, so that nobody overlooks it
    assert not x.grad[4].any()


@every_mapping
@pytest.mark.parametrize("size", [5, 40, 9000])
def test_a_mask_is_the_same_as_leaving_entries_out(mapping: Mapping, size: int, generator: torch.Generator) -> None:
    x = torch.randn(4, size, generator=generator, dtype=torch.float64)
    mask = torch.rand(size, generator=generator) < 0.5
    mask[0] = True
    probs = mapping(x, mask=mask)
    assert not probs[:, ~mask].any()
    torch.testing.assert_close(probs[:, mask], mapping(x[:, mask]), atol=1e-12, rtol=0)
    torch.testing.assert_close(mapping(x.masked_fill(~mask, -torch.inf)), probs, atol=1e-15, rtol=0)
    assert not mapping(x, mask=torch.zeros(4, 1, dtype=torch.bool)).any()


@given(vectors, st.integers(1, 60))
def test_topk_is_the_sparsemax_of_the_best_scores(values: list[float], k: int) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    k = min(k, len(x))
    probs = sp.sparsemax(x, k=k)
    assert (probs > 0).sum() <= k
    torch.testing.assert_close(probs.sort(descending=True).values[:k], sp.sparsemax(x.topk(k).values), atol=1e-15, rtol=0)
    if (probs > 0).sum() < k:  # the certificate
        torch.testing.assert_close(probs, sp.sparsemax(x), atol=1e-14, rtol=0)


def test_topk_in_any_dimension_with_a_mask(generator: torch.Generator) -> None:
    x = torch.randn(6, 4, generator=generator)
    mask = torch.tensor([True, False, True, True, False, True])[:, None]
    probs = sp.sparsemax(x, 0, k=2, mask=mask)
    assert ((probs > 0).sum(0) <= 2).all()
    assert not probs[[1, 4]].any()
    torch.testing.assert_close(probs.sum(0), torch.ones(4))


def test_alpha_broadcasts_to_rows(generator: torch.Generator) -> None:
    x = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    alpha = 1 + torch.rand(2, 3, generator=generator, dtype=torch.float64)
    expected = torch.stack([torch.stack([sp.entmax(x[i, j], alpha[i, j].item()) for j in range(3)]) for i in range(2)])
    for form in (alpha, alpha[..., None]):
        torch.testing.assert_close(sp.entmax(x, form), expected, atol=1e-12, rtol=0)
    moved = sp.entmax(x.movedim(-1, 1), alpha, 1).movedim(1, -1)
    torch.testing.assert_close(moved, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(sp.entmax(x, alpha[0])[0], expected[0], atol=1e-12, rtol=0)


def test_nothing_is_sorted_in_eager_mode(generator: torch.Generator) -> None:
    """For alpha above 2, the few candidates for the support are."""
    for size in (10, 100, 9000):
        x = torch.randn(4, size, generator=generator, requires_grad=True)
        for name, mapping in MAPPINGS.items():
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
                mapping(x).square().sum().backward()
            sorts = [event for event in profile.events() if "sort" in event.name or "topk" in event.name]
            if name != "entmax-3":
                assert not sorts
            elif size > 10:
                assert all(event.name == "aten::topk" and int(event.concrete_inputs[1]) < size / 2 for event in sorts)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype, generator: torch.Generator) -> None:
    x = torch.randn(4, 20, generator=generator)
    layer = torch.nn.Linear(20, 20)
    with torch.autocast("cpu", dtype=dtype):
        scores = layer(x)
        assert scores.dtype == dtype
        for mapping in MAPPINGS.values():
            probs = mapping(scores)
            assert probs.dtype == dtype
            assert torch.distributions.constraints.simplex.check(probs).all()
            torch.testing.assert_close(mapping(x), mapping(x.double()).float(), atol=1e-6, rtol=0)


def test_modules_are_the_functions(generator: torch.Generator) -> None:
    x, target = torch.randn(4, 6, generator=generator), torch.tensor([0, 1, -100, 3])
    mask = x > -1
    assert torch.equal(sp.Sparsemax(dim=0)(x), sp.sparsemax(x, 0))
    assert torch.equal(sp.Sparsemax(k=2)(x, mask), sp.sparsemax(x, k=2, mask=mask))
    assert torch.equal(sp.Entmax15()(x, mask), sp.entmax15(x, mask=mask))
    assert torch.equal(sp.Entmax(1.3)(x), sp.entmax(x, 1.3))
    assert torch.equal(sp.SparsemaxLoss(reduction="sum")(x, target), sp.sparsemax_loss(x, target, reduction="sum"))
    assert torch.equal(sp.Entmax15Loss()(x, target), sp.entmax15_loss(x, target))
    assert torch.equal(sp.EntmaxLoss(1.3)(x, target), sp.entmax_loss(x, target, 1.3))
    assert "k=2" in repr(sp.Sparsemax(k=2))
    learned = sp.Entmax(torch.nn.Parameter(torch.tensor(1.3)))
    assert [name for name, _ in learned.named_parameters()] == ["alpha"]
    assert list(sp.Entmax(torch.tensor([1.3, 1.5])).state_dict()) == ["alpha"]


def test_plateaus_sum_to_one() -> None:
    """The rounding of a threshold must not add up over many equal entries."""
    for size in (1000, 8191, 100_000, 1_000_000):
        x = torch.zeros(1, size)
        x[0, 0] = 0.5
        for mapping in (sp.sparsemax, sp.entmax15):
            torch.testing.assert_close(mapping(x).double().sum(-1), torch.ones(1).double(), atol=1e-6, rtol=0)
            torch.testing.assert_close(mapping(x), mapping(x.double()).float(), atol=1e-9, rtol=1e-4)


def test_many_short_rows_do_not_compare_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would need 32 times the memory of the scores."""
    x = torch.randn(20_000, 32, generator=torch.Generator().manual_seed(0))
    few = sp.sparsemax(x[:5])
    monkeypatch.setattr(thresholds, "threshold_by_pairs", None)
    torch.testing.assert_close(sp.sparsemax(x)[:5], few, atol=1e-6, rtol=0)


def test_deterministic_algorithms_are_respected() -> None:
    x = torch.randn(2, 9000, generator=torch.Generator().manual_seed(0), requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        sp.sparsemax(x).square().sum().backward()
        sp.sparsemap(x, sp.OneOf(9000)).entropy().sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_k_beyond_the_row_is_the_row() -> None:
    """Bit for bit, with its gradient, along any dimension, and for empty rows."""
    x, mask = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)), torch.arange(5) != 1
    for dim, k in ((0, 3), (0, 4), (1, 5), (1, 512)):
        assert torch.equal(sp.sparsemax(x, dim, k=k), sp.sparsemax(x, dim))
        assert torch.equal(sp.sparsemax(x, dim, k=k, mask=mask), sp.sparsemax(x, dim, mask=mask))
        assert torch.equal(sp.sparsemax(x, dim, k=k, temperature=3.0), sp.sparsemax(x, dim, temperature=3.0))
        gradients = [torch.func.grad(lambda x, k=k, dim=dim: sp.sparsemax(x, dim, k=k).square().sum())(x) for k in (k, None)]
        assert torch.equal(*gradients)
    assert sp.Sparsemax(k=7)(x[:, :0]).shape == (3, 0)


def test_topk_makes_the_row_of_a_nan_nan() -> None:
    x = torch.tensor([[torch.nan, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]])
    probs = sp.sparsemax(x, k=2)
    assert probs[0].isnan().all()
    assert probs[1].tolist() == [0.0, 0.0, 0.0, 1.0]


def test_embed_looks_up_indices_and_multiplies_vectors(generator: torch.Generator) -> None:
    weight = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    z = torch.tensor([[4, 0], [2, 2]])
    one_hot = torch.nn.functional.one_hot(z, 5)
    assert torch.equal(sp.embed(z, weight), weight[z])
    torch.testing.assert_close(sp.embed(one_hot.double(), weight), weight[z])
    torch.testing.assert_close(sp.embed(one_hot.bool(), weight), weight[z])
    assert sp.embed(z.to(torch.uint8), weight).shape == (2, 2, 3)


X = torch.randn(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: sp.sparsemax(torch.arange(3)),
            TypeError,
            "x must have a floating-point dtype, got torch.int64; convert it, e.g. to torch.float32",
        ),
        (lambda: sp.sparsemax([1.0, 2.0]), TypeError, "x must be a torch.Tensor, got list"),  # type: ignore[arg-type]
        (lambda: sp.sparsemax(torch.tensor(1.0)), ValueError, "x must have at least one dimension"),
        (lambda: sp.entmax15(torch.zeros(2, dtype=torch.complex64)), TypeError, "got torch.complex64"),
        (lambda: sp.sparsemax(X, 2), ValueError, "dim must be between -2 and 1 for x of shape (2, 3), got 2"),
        (lambda: sp.sparsemax(X, 1.0), TypeError, "dim must be an int, got float"),  # type: ignore[arg-type]
        (lambda: sp.sparsemax(X, k=0), ValueError, "k must be at least 1, got 0"),
        (lambda: sp.sparsemax(X, k=True), TypeError, "k must be an int, got bool"),
        (lambda: sp.sparsemax(X, mask=torch.ones(2, 3)), TypeError, "mask must be a tensor of dtype torch.bool"),
        (lambda: sp.sparsemax(X, mask=torch.zeros(2, 3)), TypeError, "float32; add a mask of 0 and -inf to the scores"),
        (lambda: sp.sparsemax(X, mask=torch.ones(2, 2) > 0), ValueError, "broadcast to the shape of x, (2, 3), got (2, 2)"),
        (lambda: sp.entmax(X, 0.9), ValueError, "alpha must be a finite number of at least 1, got 0.9"),
        (lambda: sp.entmax(X, math.nan), ValueError, "got nan"),
        (lambda: sp.entmax(X, math.inf), ValueError, "got inf"),
        (lambda: sp.entmax(X, "2"), TypeError, "alpha must be a number or a tensor, got str"),  # type: ignore[arg-type]
        (lambda: sp.entmax(X, torch.tensor([1.5, 0.5])), ValueError, "at least 1 everywhere, got a smallest value of 0.5"),
        (lambda: sp.entmax(X, torch.tensor([1.5, torch.inf])), ValueError, "alpha must be finite everywhere, got inf"),
        (lambda: sp.entmax(X, torch.tensor(2)), TypeError, "alpha must have a floating-point dtype, got torch.int64"),
        (lambda: sp.entmax(X, torch.ones(3)), ValueError, "alpha must broadcast to the rows of x, (2,)"),
        (
            lambda: sp.entmax(torch.zeros(2, 4, 5, 6), torch.full((4, 1, 1), 1.5)),
            ValueError,
            "and dim 3; for one per entry of dimension 1 of the rows, use shape (4, 1)",
        ),
        (lambda: sp.embed([0], X), TypeError, "z must be a torch.Tensor, got list"),  # type: ignore[arg-type]
        (lambda: sp.embed(torch.zeros(2, 4), X), ValueError, "z must have shape (*batch, 2)"),
        (
            lambda: sp.embed(torch.zeros(2), torch.zeros(3)),
            ValueError,
            "weight must have shape (n, size) or (n_groups, n, size), got (3,)",
        ),
        (lambda: sp.embed(torch.zeros(2), torch.ones(2, 2).long()), TypeError, "weight must have a floating-point dtype"),
    ],
)
def test_bad_input_is_named(call: Callable[[], Tensor], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
