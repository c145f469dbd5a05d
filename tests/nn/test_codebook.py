"""Sparse codebooks against dense computations, and the life of their codes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum.nn import SparseCodebook


def made(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def codebook_of(n_codes: int = 7, dim: int = 6, groups: int = 1, **options: Any) -> SparseCodebook:
    """A codebook in float64 with given codes, none of which is revived at the first step."""
    codebook = SparseCodebook(n_codes, dim, groups, **options).double()
    with torch.no_grad():
        codebook.codes.copy_(made(*codebook.codes.shape, seed=1))
    codebook.age.zero_()
    return codebook


def weights_of(codebook: SparseCodebook, x: Tensor) -> tuple[Tensor, Tensor]:
    """The probability and the squared distance of each code, (n_rows, groups, n_codes), from differences."""
    n_groups, _, size = codebook.codes.shape
    parts = x.reshape(-1, n_groups, 1, size)
    distances = (parts - codebook.codes).square().mean(-1)
    return sp.sparsemax(-distances / codebook.temperature), distances


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("batch", [(), (5,), (2, 3), (0,), (2, 0, 3)])
def test_the_values_are_those_of_a_dense_computation(groups: int, batch: tuple[int, ...]) -> None:
    codebook = codebook_of(groups=groups, temperature=0.7)
    x = made(*batch, 6)
    out = codebook(x)
    weights, distances = weights_of(codebook, x)
    lead = () if groups == 1 else (groups,)
    torch.testing.assert_close(out.vectors, torch.einsum("rgn,gns->rgs", weights, codebook.codes).reshape(x.shape))
    assert torch.equal(out.indices, distances.argmin(-1).reshape((*batch, *lead)))
    assert out.q.batch_shape == batch
    n = max(len(weights), 1)
    usage = weights.sum(0) / n
    torch.testing.assert_close(out.usage, usage.reshape((*lead, 7)))
    torch.testing.assert_close(out.distortion, (weights * distances).sum() / (n * groups))
    entropy = torch.special.entr(usage).sum(-1)
    torch.testing.assert_close(out.perplexity, entropy.exp().reshape(lead))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("max_atoms", [None, 2])
def test_gradients_flow_to_inputs_and_codes(groups: int, max_atoms: int | None) -> None:
    codebook = codebook_of(groups=groups, max_atoms=max_atoms)
    x = made(4, 6).requires_grad_()

    def outputs(x: Tensor, codes: Tensor) -> tuple[Tensor, ...]:
        out = torch.func.functional_call(codebook, {"codes": codes}, (x,))
        return out.vectors, out.distortion, out.usage, out.perplexity

    codebook.eval()
    assert torch.autograd.gradcheck(outputs, (x, codebook.codes))
    gradients = torch.autograd.grad(outputs(x, codebook.codes)[0].square().sum(), (x, codebook.codes))
    assert all(bool((gradient != 0).any()) for gradient in gradients)


def test_the_distortion_moves_an_input_that_has_one_code() -> None:
    codebook = codebook_of(temperature=0.01)
    x = (10 * codebook.codes[0, :1]).detach().requires_grad_()
    out = codebook(x)
    assert float(out.q.saturation) == 1.0
    assert not bool(torch.autograd.grad(out.vectors.sum(), x, retain_graph=True)[0].any())
    torch.testing.assert_close(torch.autograd.grad(out.distortion, x)[0], 2 * (x - codebook.lookup(out.indices)) / 6)


def test_unused_codes_are_drawn_from_the_inputs() -> None:
    codebook = codebook_of(n_codes=4, dim=2, groups=2, revive_after=3)
    with torch.no_grad():
        codebook.codes[:, 2:] += 1000.0  # out of reach
    before = codebook.codes.detach().clone()
    x, generator = made(8, 2), torch.Generator().manual_seed(3)
    for _ in range(3):
        codebook(x)
    assert torch.equal(codebook.codes, before)
    assert codebook.age[:, 2:].tolist() == [[3, 3]] * 2
    codebook(x, generator=generator)
    is_dead = torch.zeros(2, 4, dtype=torch.bool)
    is_dead[:, 2:] = True
    assert torch.equal(codebook.codes[~is_dead], before[~is_dead])
    low, high = x.amin(0).view(2, 1, 1), x.amax(0).view(2, 1, 1)
    revived = codebook.codes[:, 2:]
    assert bool(((low <= revived) & (revived <= high)).all())
    assert codebook.codes.unique().numel() == 8
    assert int(codebook.age.max()) <= 1
    # The same generator draws the same codes.
    again = codebook_of(n_codes=4, dim=2, groups=2, revive_after=3)
    with torch.no_grad():
        again.codes.copy_(before)
        again.age[is_dead] = 3
    again(x, generator=torch.Generator().manual_seed(3))
    assert torch.equal(again.codes, codebook.codes)


def test_codes_start_among_the_inputs() -> None:
    x = 100 + made(50, 6)
    codebook = SparseCodebook(20, 6).double()
    codebook(x)
    assert bool((codebook.codes > 90).all())
    frozen = SparseCodebook(20, 6, revive_after=None).double()
    before = frozen.codes.detach().clone()
    frozen(x)
    assert torch.equal(frozen.codes, before)


def test_steps_may_be_accumulated() -> None:
    """Two steps before one backward, of which the second revives codes."""
    codebook = codebook_of(revive_after=1)
    codebook.codes.data[0, 3:] += 1000.0
    first, second = codebook(made(3, 6)), codebook(made(3, 6, seed=2))
    (first.distortion + second.distortion).backward()
    assert codebook.codes.grad is not None
    assert bool(codebook.codes.grad.isfinite().all())


def test_evaluation_changes_nothing_and_may_use_the_nearest_code() -> None:
    codebook = SparseCodebook(7, 6, 2, hard_eval=True).double().eval()
    state = copy.deepcopy(codebook.state_dict())
    x = made(5, 6)
    first, second = codebook(x), codebook(x)
    assert torch.equal(first.vectors, second.vectors)
    torch.testing.assert_close(first.vectors, codebook.lookup(first.indices))
    torch.testing.assert_close(first.distortion, (x - first.vectors).square().mean())
    assert all(torch.equal(value, state[name]) for name, value in codebook.state_dict().items())
    codebook.hard_eval = False
    assert not torch.allclose(codebook(x).vectors, first.vectors)


def test_the_state_is_saved() -> None:
    codebook = codebook_of(groups=2, revive_after=5)
    codebook(made(2, 6))
    other = SparseCodebook(7, 6, 2, revive_after=5).double()
    other.load_state_dict(codebook.state_dict())
    assert set(codebook.state_dict()) == {"codes", "age"}
    assert torch.equal(other.age, codebook.age)
    assert int(other.age.max()) == 1
    assert torch.equal(other(made(4, 6)).vectors, codebook(made(4, 6)).vectors)


def test_nan_raises_and_leaves_the_codes_alone() -> None:
    codebook = SparseCodebook(7, 6).double()
    x = torch.full((3, 6), torch.nan, dtype=torch.float64)
    with pytest.raises(sp.NoDistribution, match="row 0 has a NaN"):
        codebook(x)
    assert bool(codebook.codes.isfinite().all())
    x = made(3, 6)
    x[1] = torch.inf
    with pytest.raises(sp.NoDistribution, match="row 1"):
        codebook(x)


@pytest.mark.parametrize("groups", [1, 2])
def test_whole_graphs(groups: int) -> None:
    """Training steps of a compiled module are those of the module."""
    torch.compiler.reset()
    ours, theirs = (codebook_of(groups=groups, max_atoms=3, revive_after=2) for _ in range(2))
    for codebook in (ours, theirs):
        codebook.codes.data[:, 5:] += 1000.0
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for seed in range(4):
        results = []
        for module in (compiled, theirs):
            torch.manual_seed(seed)
            out = module(made(5, 6, seed=seed))
            (out.vectors.square().sum() + out.distortion).backward()
            results.append((out.vectors, out.indices, out.distortion, out.usage, out.perplexity))
        for our, their in zip(*results, strict=True):
            torch.testing.assert_close(our, their)
    torch.testing.assert_close(ours.codes.grad, theirs.codes.grad)
    torch.testing.assert_close(ours.codes, theirs.codes)
    assert torch.equal(ours.age, theirs.age)
    assert bool((ours.codes < 100).all())  # codes were revived


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_distances_in_float32(dtype: torch.dtype) -> None:
    codebook, x = codebook_of().float(), made(5, 6).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        out = codebook(x)
    wanted = codebook(x.float())
    assert out.vectors.dtype == dtype
    assert torch.equal(out.vectors, wanted.vectors.to(dtype))
    assert torch.equal(out.q.probs, wanted.q.probs)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_codes": 0}, ValueError, "n_codes must be at least 1"),
        ({"dim": 6.0}, TypeError, "dim must be an int"),
        ({"groups": 4}, ValueError, "dim must be a multiple of groups, 4, got 6"),
        ({"temperature": 0.0}, ValueError, "temperature must be finite and larger than 0"),
        ({"max_atoms": 0}, ValueError, "max_atoms must be at least 1"),
        ({"revive_after": 0}, ValueError, "revive_after must be at least 1"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SparseCodebook(**{"n_codes": 7, "dim": 6, **options})


def test_bad_inputs() -> None:
    codebook = SparseCodebook(7, 6)
    with pytest.raises(ValueError, match=r"x must have shape \(\*batch, 6\), got \(2, 5\)"):
        codebook(torch.zeros(2, 5))
    with pytest.raises(TypeError, match="x must have a floating-point dtype"):
        codebook(torch.zeros(2, 6, dtype=torch.int64))
    with pytest.raises(TypeError, match="generator must be"):
        codebook(torch.zeros(2, 6), generator=3)
