"""Properties of the layers in `sparsum.nn`, and of captured steps."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

import sparsum as sp
from tests.properties.drawing import DTYPES, WIDE, Draw, replaced
from tests.properties.registry import about


@about("nn.ScoreNorm", weight=5)
def normalized_scores(draw: Draw) -> None:
    """Finite scores stay finite, others are returned as they are and change no others; evaluation uses averages."""
    n_rows, n, dtype = draw.integer(0, 5), draw.integer(1, 5), draw.choice(DTYPES)
    norm = sp.nn.ScoreNorm(n, learn_temperature=draw.flag())
    x = draw.table(n_rows, n, dtype, most=1e15)
    leaf = x.clone().requires_grad_()
    y = norm(leaf)
    assert y.shape == x.shape
    assert y.dtype == dtype
    assert bool(y.isfinite().all()), x
    (gradient,) = torch.autograd.grad(y.double().sum(), leaf, allow_unused=True)
    assert bool(gradient.isfinite().all()), x
    assert all(bool(buffer.isfinite().all()) for buffer in norm.buffers())
    wide = x.double()
    if n_rows > 1 and dtype in WIDE and float(wide.var(0, correction=0).mean()) > 1e-2 and wide.abs().amax() < 1e3:
        assert abs(float(y.double().detach().square().mean().sqrt()) - 0.5) < 0.05
    if n_rows:
        row, value = draw.integer(0, n_rows - 1), draw.choice([torch.nan, torch.inf, -torch.inf])
        odd = norm(replaced(x, row, value))
        kept = torch.ones_like(x, dtype=torch.bool)
        kept[row, 0] = False
        assert torch.equal(odd[row, 0], torch.tensor(value, dtype=dtype)) or value != value
        assert bool(odd[kept].isfinite().all())
    norm.eval()
    torch.testing.assert_close(norm(x)[:1], norm(x[:1]), equal_nan=True)


@about("nn.Router", weight=5)
def routers(draw: Draw) -> None:
    """With candidates, the choice among the options that are listed; a NaN is named; usage counts every query."""
    dtype, n_options, dim, n_rows = draw.choice(DTYPES), draw.integer(1, 5), draw.integer(1, 3), draw.integer(0, 4)
    router = sp.nn.Router(dim, n_options, max_atoms=draw.choice([None, 1, 2]))
    with torch.no_grad():
        router.weight.copy_(draw.table(n_options, dim, torch.float32, most=1e3))
    # Products in half precision must not overflow.
    x = draw.table(n_rows, dim, dtype, most=1e3 if dtype in WIDE else 20.0)
    q = router(x)
    assert q.batch_shape == (n_rows,)
    assert q.probs.dtype == dtype
    if n_rows:
        assert abs(float(router.usage.sum()) - 1) < 0.05
        assert 1 - 1e-3 <= float(router.perplexity) <= n_options + 1e-3 or dtype in DTYPES[2:]
    candidates = torch.randint(-1, n_options, (n_rows, 3), generator=draw.generator())
    candidates[:, 0] = torch.randint(n_options, (n_rows,), generator=draw.generator())
    few = router(x, candidates)
    for row in range(n_rows):
        assert set(few.atoms[few.row == row].tolist()) <= set(candidates[row].tolist()) - {-1}
    if n_rows:
        row = draw.integer(0, n_rows - 1)
        with pytest.raises(sp.NoDistribution, match=f"row {row} has a NaN"):
            router(replaced(x, row, torch.nan))


@about("nn.SparseCodebook", "nn.Quantized", weight=4)
def codebooks(draw: Draw) -> None:
    """Means of codes, finite, in the dtype of the inputs; indices are those of the nearest codes."""
    groups, n_codes, dtype = draw.integer(1, 2), draw.integer(1, 4), draw.choice(DTYPES)
    codebook = sp.nn.SparseCodebook(n_codes, 2 * groups, groups, max_atoms=draw.choice([None, 1, 2]))
    x = draw.table(draw.integer(0, 4), 2 * groups, dtype, most=1e3)
    leaf = x.clone().requires_grad_()
    if draw.flag():
        codebook.eval()
    out = codebook(leaf, generator=draw.generator())
    assert out.vectors.shape == x.shape
    assert out.vectors.dtype == dtype
    assert bool(out.vectors.isfinite().all())
    (gradient,) = torch.autograd.grad(out.vectors.double().sum() + out.distortion.double(), leaf)
    assert bool(gradient.isfinite().all())
    assert float(out.distortion.detach()) >= -1e-3 * (1 + float(x.double().square().sum()))
    parts = x.double().reshape(len(x), groups, 2)
    distances = (parts.unsqueeze(2) - codebook.codes.double()).square().sum(-1).detach()
    nearest = distances.amin(-1)
    found = distances.gather(-1, out.indices.reshape(len(x), groups, 1)).squeeze(-1)
    size = 1 + parts.square().sum(-1) + codebook.codes.double().square().sum(-1).amax()
    assert bool((found <= nearest + 1e-4 * size).all())


@about("nn.SaturationMonitor", weight=1)
def monitors(draw: Draw) -> None:
    """A distribution passes unchanged; a warning comes once, after as many saturated steps."""
    patience, n_steps = draw.integer(1, 4), draw.integer(1, 12)
    monitor, n_warnings = sp.nn.SaturationMonitor(patience), 0
    alive = torch.rand(n_steps, generator=draw.generator()) < 0.3
    for is_alive in alive.tolist():
        q = sp.SparseDistribution.from_dense(torch.tensor([[0.5, 0.5]] if is_alive else [[1.0, 0.0]]))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert monitor(q) is q
        n_warnings += len(caught)
    assert n_warnings <= 1
    if not alive.any() and n_steps >= patience:
        assert n_warnings == 1


@about("capture", weight=1)
def captured_steps_on_a_cpu(draw: Draw) -> None:
    """A captured step is the eager step."""
    n = draw.integer(1, 4)
    batches = [draw.table(3, n, torch.float32, most=1e3) for _ in range(draw.integer(1, 3))]

    def train(*, is_captured: bool) -> Tensor:
        weight = torch.nn.Parameter(torch.ones(n))
        optimizer = torch.optim.SGD([weight], 1e-3)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = sp.sparsemap(x * weight, sp.OneOf(n)).entropy().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = sp.capture(step) if is_captured else step
        return torch.stack([run(x) for x in batches] + [weight.detach().sum()])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(train(is_captured=True), train(is_captured=False))
