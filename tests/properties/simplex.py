"""Properties of mappings to the simplex, their losses and modules."""

from __future__ import annotations

import torch
from torch import Tensor

import sparsum as sp
from tests.properties.drawing import DTYPES, WIDE, Draw, replaced
from tests.properties.registry import about

ALPHAS = (2.0, 1.5, 1.0, 1.05, 1.3, 1.75, 2.5, 4.0)


def mapping(x: Tensor, alpha: float, dim: int = -1, **options: Tensor | None) -> Tensor:
    """The mapping of an alpha, by its own function where it has one."""
    if alpha == 2:
        return sp.sparsemax(x, dim, **options)  # type: ignore[arg-type]
    return sp.entmax15(x, dim, **options) if alpha == 1.5 else sp.entmax(x, alpha, dim, **options)


def precision(dtype: torch.dtype) -> float:
    """The precision of results; those of float64 may come from iterations."""
    return max(torch.finfo(dtype).eps, 1e-14)


def check_optimal(probs: Tensor, x: Tensor, alpha: float) -> None:
    """The conditions of the optimum, for rows of finite scores or -inf that allow something.

    With z = x - max x, they are p_i^(alpha - 1) = ((alpha - 1) z_i - tau)_+ for some tau, and a sum of 1.
    """
    p, wide, dtype = probs.double(), x.double(), probs.dtype
    eps, smallest = precision(dtype), torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    assert bool((p >= 0).all())
    n = x.shape[-1]
    # Where p is steep in tau, the sum cannot be better than its precision.
    steep = eps ** min(1.0, 1 / (alpha - 1)) if alpha > 1 else eps
    assert bool(((p.sum(-1) - 1).abs() <= 4 * n * (eps + steep)).all()), p.sum(-1)
    assert not bool(p[x == -torch.inf].any())
    z = wide - wide.amax(-1, keepdim=True)
    if alpha == 1:
        torch.testing.assert_close(p, z.softmax(-1), atol=8 * eps + smallest, rtol=8 * eps)
        return
    error = (eps + smallest / p.clamp_min(smallest)).clamp_max(1.0)
    power = p ** (alpha - 1)
    tau = (alpha - 1) * z - power
    slack = 8 * (power * (alpha - 1) * error + eps * (1 + power))
    of_first = tau.gather(-1, p.argmax(-1, keepdim=True)).squeeze(-1).unsqueeze(-1)
    slack = slack + slack.gather(-1, p.argmax(-1, keepdim=True))
    is_used = p > 0
    assert bool(((tau - of_first).abs() <= slack)[is_used].all()), (probs, x, alpha)
    tolerance = slack + 4 * smallest ** (alpha - 1)
    assert bool(((alpha - 1) * z <= of_first + tolerance)[~is_used].all()), (probs, x, alpha)


def with_mask(draw: Draw, x: Tensor) -> Tensor | None:
    """A mask that allows something in every row, or None."""
    if not draw.flag() or not x.numel():
        return None
    mask = torch.rand(x.shape, generator=draw.generator()) < 0.6
    mask[..., draw.integer(0, x.shape[-1] - 1)] = True
    return mask


@about("sparsemax", "entmax15", "entmax", weight=20)
def mappings_are_optimal(draw: Draw) -> None:
    """Conditions of the optimum for every alpha, dtype, dimension, mask and layout; a mask is -inf."""
    alpha, dtype = draw.choice(ALPHAS), draw.choice(DTYPES)
    n_rows, n = draw.integer(0, 4), draw.choice([1, 2, 3, 5, 8, 17, 70])
    x = draw.table(n_rows, n, dtype)
    mask = with_mask(draw, x)
    there = draw.laid_out(x)
    found = mapping(there, alpha, mask=mask)
    assert found.shape == x.shape
    assert found.dtype == dtype
    masked = x if mask is None else x.masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(mapping(masked, alpha), found, atol=8 * precision(dtype), rtol=1e-3)
    check_optimal(found, masked, alpha)
    first = mapping(x.T.contiguous(), alpha, 0, mask=None if mask is None else mask.T)
    torch.testing.assert_close(first.T, found, atol=8 * precision(dtype), rtol=1e-3)


@about("sparsemax", "entmax15", "entmax", weight=6)
def mappings_do_not_mix_rows(draw: Draw) -> None:
    """NaN, +inf and only -inf in one row change no other row, and give what is documented in theirs."""
    alpha, dtype = draw.choice(ALPHAS), draw.choice(DTYPES)
    n_rows, n = draw.integer(1, 4), draw.integer(1, 6)
    x = draw.table(n_rows, n, dtype)
    row, column = draw.integer(0, n_rows - 1), draw.integer(0, n - 1)
    others = [i for i in range(n_rows) if i != row]
    plain = mapping(x, alpha)
    nan = mapping(replaced(x, row, torch.nan, column), alpha)
    assert bool(nan[row].isnan().all())
    infinite = mapping(replaced(x, row, torch.inf, column), alpha)
    assert infinite[row, column] == 1
    masked = x.clone()
    masked[row] = -torch.inf
    empty = mapping(masked, alpha)
    assert not bool(empty[row].any())
    # Iterations for any alpha go on until all rows have converged, which may round others once more.
    limit = 0.0 if alpha in (1.0, 1.5, 2.0) else max(4 * torch.finfo(dtype).eps, precision(dtype))
    for changed in (nan, infinite, empty):
        torch.testing.assert_close(changed[others], plain[others], atol=limit, rtol=limit)


@about("sparsemax", "entmax15", "entmax", weight=6)
def gradients_of_mappings(draw: Draw) -> None:
    """The gradient is s (g - mean of g under s) with s = p^(2 - alpha), 0 outside of the support, and finite."""
    alpha, dtype = draw.choice([a for a in ALPHAS if a <= 2]), draw.choice(WIDE)
    x = draw.table(draw.integer(0, 3), draw.integer(1, 8), dtype)
    mask = with_mask(draw, x)
    leaf = x.clone().requires_grad_()
    probs = mapping(leaf, alpha, mask=mask)
    weight = torch.randn(x.shape, dtype=dtype, generator=draw.generator())
    (found,) = torch.autograd.grad(probs, leaf, weight)
    p, g = probs.detach().double(), weight.double()
    s = torch.where(p > 0, p ** (2 - alpha), 0.0)
    wanted = s * (g - (s * g).sum(-1, keepdim=True) / s.sum(-1, keepdim=True))
    torch.testing.assert_close(found.double(), wanted, atol=64 * torch.finfo(dtype).eps, rtol=64 * torch.finfo(dtype).eps)


@about("sparsemax", weight=3)
def sparsemax_of_the_k_best(draw: Draw) -> None:
    """With k, it is the sparsemax of the k largest scores."""
    dtype = draw.choice(DTYPES)
    n_rows, n = draw.integer(0, 4), draw.integer(1, 8)
    x, k = draw.table(n_rows, n, dtype), draw.integer(1, 9)
    found = sp.sparsemax(x, k=k)
    assert bool(((found > 0).sum(-1) <= k).all())
    wanted = sp.sparsemax(x.sort(-1, descending=True).values[:, :k])
    ordered = found.sort(-1, descending=True).values[:, :k]
    torch.testing.assert_close(ordered, wanted.sort(-1, descending=True).values)
    check_optimal(wanted, x.sort(-1, descending=True).values[:, :k], 2.0)


@about("sparsemax", "entmax15", "entmax", "Sparsemax", "Entmax15", "Entmax", "BoundedAlpha", weight=4)
def modules_and_temperatures(draw: Draw) -> None:
    """A module is its function; a temperature divides the scores; a bounded alpha stays in its bounds."""
    dtype = draw.choice(DTYPES)
    x, temperature = (
        draw.table(draw.integer(0, 3), draw.integer(1, 6), dtype, most=1e4),
        draw.choice([0.01, 0.5, 1.0, 3.0, 1e3]),
    )
    quotient = (x.double() / temperature).to(torch.float64 if dtype == torch.float64 else torch.float32)
    for module, alpha in ((sp.Sparsemax(temperature=temperature), 2.0), (sp.Entmax15(temperature=temperature), 1.5)):
        found = module(x)
        assert torch.equal(found, mapping(x, alpha, temperature=temperature))  # type: ignore[arg-type]
        limit = 1e-5 if dtype in WIDE else 1e-2
        torch.testing.assert_close(found, mapping(quotient, alpha).to(dtype), atol=limit, rtol=0)
    low = draw.choice([1.01, 1.2, 1.5])
    alphas = sp.BoundedAlpha(low + 0.1, (low, 2.0))
    with torch.no_grad():
        alphas.logit.copy_(draw.table(1, 1, torch.float32)[0, 0])
    assert low - 1e-6 <= float(alphas().detach()) <= 2.0
    found = sp.Entmax(alpha=float(alphas().detach()))(x)
    assert torch.equal(found, sp.entmax(x, float(alphas().detach())))
    learned = sp.Entmax(low + 0.1, bounds=(low, 2.0))(x)
    torch.testing.assert_close(learned, sp.entmax(x, low + 0.1).to(learned.dtype), atol=1e-2, rtol=0)


LOSSES = {
    2.0: (sp.sparsemax_loss, sp.SparsemaxLoss),
    1.5: (sp.entmax15_loss, sp.Entmax15Loss),
}


@about("sparsemax_loss", "entmax15_loss", "entmax_loss", "SparsemaxLoss", "Entmax15Loss", "EntmaxLoss", weight=8)
def losses_of_mappings(draw: Draw) -> None:
    """Not negative, 0 where the mapping is the target, the formula in float64, with the gradient p - y."""
    alpha, dtype = draw.choice([a for a in ALPHAS if a <= 2]), draw.choice(WIDE)
    n_rows, n = draw.integer(0, 4), draw.integer(1, 6)
    x = draw.table(n_rows, n, dtype, most=1e25)
    target = torch.randint(n, (n_rows,), generator=draw.generator())
    is_ignored = torch.rand(n_rows, generator=draw.generator()) < 0.2
    target[is_ignored] = -100
    leaf = x.clone().requires_grad_()
    function = LOSSES[alpha][0] if alpha in LOSSES else None
    each = function(leaf, target, reduction="none") if function else sp.entmax_loss(leaf, target, alpha, reduction="none")
    module = LOSSES[alpha][1](reduction="none") if alpha in LOSSES else sp.EntmaxLoss(alpha, reduction="none")
    assert torch.equal(module(x, target), each.detach())
    assert each.shape == (n_rows,)
    assert each.dtype == dtype
    assert bool((each >= 0).all())
    assert not bool(each[is_ignored].any())
    (found,) = torch.autograd.grad(each.sum(), leaf)
    p, wide = mapping(x.double(), alpha), x.double()
    y = torch.nn.functional.one_hot(target.clamp_min(0), n).double()
    counted = ~is_ignored.unsqueeze(-1)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), torch.where(counted, p - y, 0.0), atol=64 * eps, rtol=64 * eps)
    entropy = (p - p**alpha).sum(-1) / (alpha * (alpha - 1)) if alpha > 1 else torch.special.entr(p).sum(-1)
    below = wide - wide.amax(-1, keepdim=True)
    wanted = (p * below).sum(-1) + entropy - (y * below).sum(-1)
    torch.testing.assert_close(each.double(), torch.where(is_ignored, 0.0, wanted), atol=64 * eps, rtol=64 * eps)
    if alpha > 1 and n_rows:
        soft = sp.entmax_loss(x, mapping(x, alpha), alpha, reduction="none")
        assert bool((soft <= 64 * eps * (1 + below.abs().amax(-1).clamp_max(1e3))).all()), soft


@about("embed", weight=2)
def embeddings(draw: Draw) -> None:
    """An index, its one-hot vector and its boolean vector give the same; in groups, too."""
    n, size, dtype = draw.integer(1, 5), draw.integer(1, 3), draw.choice(WIDE)
    n_groups = draw.integer(0, 3)
    batch = (draw.integer(0, 3), max(n_groups, 1))
    tables = draw.table(max(n_groups, 1) * n, size, dtype).reshape(max(n_groups, 1), n, size)
    weight = tables if n_groups else tables[0]
    z = torch.randint(n, batch, generator=draw.generator())
    hot = torch.nn.functional.one_hot(z, n)
    wanted = tables[torch.arange(batch[1]), z] if n_groups else weight[z]
    for given in (z, hot.to(dtype), hot.bool()):
        torch.testing.assert_close(sp.embed(given, weight), wanted, atol=0, rtol=0)
