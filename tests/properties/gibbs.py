"""Properties of distributions: Gibbs, sparse and uniform ones."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import kl_divergence

import sparsum as sp
from sparsum.structures.scores import flatten
from tests.properties.drawing import WIDE, Draw
from tests.properties.registry import about
from tests.properties.structures import STRUCTURES, case_of, some_rows

SUMMED = [name for name, structure in STRUCTURES.items() if structure.has_partition]


@about("Gibbs", "Potentials", weight=10)
def gibbs_distributions(draw: Draw) -> None:
    """Log-probabilities, entropy, marginals, divergence and samples against sums over all members."""
    case, dtype = case_of(draw.choice(SUMMED)), draw.choice(WIDE)
    n_rows = draw.integer(0, 3)
    flat = some_rows(draw, case, n_rows, dtype)
    leaf = flat.clone().requires_grad_()
    p = sp.Gibbs(case.scores(leaf), case.structure)
    n = len(case.atoms)
    row = torch.arange(n_rows).repeat_interleave(n)
    every = case.atoms.repeat(n_rows, *[1] * (case.atoms.ndim - 1))
    found = p.log_prob_of(every.to(dtype) if every.is_floating_point() else every, row).reshape(n_rows, n)
    mean, entropy = flatten(p.mean), p.entropy()
    assert mean.shape == flat.shape
    assert entropy.shape == (n_rows,)
    assert mean.dtype == entropy.dtype == dtype
    (gradient,) = torch.autograd.grad(entropy.sum() + mean.sum(), leaf)
    assert bool(gradient.isfinite().all()), (case.name, flat)
    drawn = case.index(p.sample((3,), generator=draw.generator()))
    assert drawn.shape == (3, n_rows)
    assert bool((drawn >= 0).all()), (case.name, flat)
    assert bool((entropy >= 0).all())
    assert bool((entropy <= case.structure.log_count() + 1e-5).all())
    assert bool((mean.detach() >= -1e-6).all() if case.is_binary else mean.isfinite().all())
    divergence = kl_divergence(p, p)
    for i in range(n_rows):
        below, rounding = case.below(flat[i].double()), case.rounding(flat[i].double())
        assert bool((below[drawn[:, i]] > -torch.inf).all()), (case.name, flat[i])
        eps = torch.finfo(dtype).eps
        # Sums of several large scores are only known up to their rounding.
        limit = 16 * (rounding / torch.finfo(torch.float64).eps * eps if case.structure.is_chain else rounding)
        if limit > 1e-3:
            continue
        truth = below.log_softmax(-1)
        probs = truth.exp()
        limit += 64 * eps * (1 + case.n_parts)
        is_allowed = truth > -1e20
        off = (found[i].detach().double() - truth)[is_allowed].abs()
        assert bool((off <= limit * (1 + truth[is_allowed].abs())).all()), (case.name, flat[i], found[i], truth)
        assert bool((found[i][truth == -torch.inf] == -torch.inf).all())
        largest = 1 + float(case.vectors.abs().amax())
        torch.testing.assert_close(mean[i].detach().double(), probs @ case.vectors, atol=16 * limit * largest, rtol=0)
        wanted = torch.special.entr(probs).sum()
        # It is a sum of probabilities times scores, in which large scores that are common to all parts cancel.
        size = 1 + float(flat[i].masked_fill(flat[i] == -torch.inf, 0.0).abs().amax())
        error = abs(float(entropy[i].detach()) - float(wanted))
        assert error <= 4 * limit * (16 + size), (case.name, flat[i], entropy[i], wanted)
        assert abs(float(divergence[i].detach())) <= 64 * limit


@about("SparseDistribution", weight=6)
def sparse_distributions(draw: Draw) -> None:
    """Expectations, entropy, mean, variance, mode, samples and parts of a batch are those of the dense table."""
    dtype = draw.choice(WIDE)
    n_rows, n = draw.integer(0, 4), draw.integer(1, 6)
    probs = sp.sparsemax(draw.table(n_rows, n, dtype))
    q = sp.SparseDistribution.from_dense(probs)
    losses = torch.randn(n_rows, n, dtype=dtype, generator=draw.generator())
    eps = torch.finfo(dtype).eps

    def loss(z: Tensor, row: Tensor) -> Tensor:
        return losses[row, z]

    def same(found: Tensor, wanted: Tensor) -> None:
        torch.testing.assert_close(found, wanted, atol=32 * eps, rtol=32 * eps)

    same(q.expect(loss), (probs * losses).sum(-1))
    same(q.expect(loss, chunk_size=draw.integer(1, 5)), (probs * losses).sum(-1))
    assert isinstance(q.mean, Tensor)
    assert isinstance(q.variance, Tensor)
    same(q.mean, probs)
    same(q.variance, probs * (1 - probs))
    same(q.entropy(), torch.special.entr(probs).sum(-1))
    assert torch.equal(probs.gather(-1, q.mode.unsqueeze(-1)).squeeze(-1), probs.amax(-1))
    every = torch.arange(n).unsqueeze(-1).expand(n, n_rows)
    same(q.log_prob(every).exp(), probs.T)
    drawn = q.sample((4,), generator=draw.generator())
    assert bool((probs.expand(4, n_rows, n).gather(-1, drawn.unsqueeze(-1)) > 0).all())
    assert torch.equal(q.n_atoms_per_row, (probs > 0).sum(-1))
    same(kl_divergence(q, q), torch.zeros(n_rows, dtype=dtype))
    again = sp.SparseDistribution(q.atoms, q.probs, q.row, batch_shape=(n_rows,), structure=q.structure)
    assert torch.equal(again.mean, q.mean)
    assert torch.equal(q.expand((2, n_rows)).mean[1], q.mean)
    if n_rows:
        index = torch.randint(n_rows, (draw.integer(0, 4),), generator=draw.generator())
        assert torch.equal(q[index].mean, q.mean[index])
        few = q.truncate(draw.integer(1, n))
        same(few.expect(lambda z: torch.ones(len(z), dtype=dtype)), torch.ones(n_rows, dtype=dtype))
        other = q.with_atoms(n - 1 - q.atoms, sp.OneOf(n))
        assert torch.equal(other.mean, q.mean.flip(-1))


@about("UniformOver", weight=2)
def uniform_distributions(draw: Draw) -> None:
    """Every member has the same probability, others none; divergences to it are log n minus the entropy."""
    case = case_of(draw.choice([name for name in STRUCTURES if "transitions" not in name]))
    n_rows = draw.integer(0, 3)
    flat = some_rows(draw, case, n_rows, torch.float64, most=1e3)
    p = sp.UniformOver(case.structure)
    atoms = case.atoms.double() if case.atoms.is_floating_point() else case.atoms
    wanted = torch.full((len(atoms),), -case.structure.log_count(), dtype=torch.float64)
    torch.testing.assert_close(p.log_prob(atoms).double(), wanted, atol=1e-5, rtol=0)
    drawn = case.index(p.sample((5,), generator=draw.generator()))
    assert bool((drawn >= 0).all())
    q = sp.topk_sparsemax(case.scores(flat), case.structure, draw.integer(1, 4))
    wanted = case.structure.log_count() - q.entropy()
    torch.testing.assert_close(kl_divergence(q, p.expand(q.batch_shape)), wanted, atol=1e-9, rtol=0)


@about(
    "distributed.sparsemax",
    "distributed.entmax15",
    "distributed.entmax",
    "distributed.sparsemap",
    "distributed.ShardedDistribution",
    "distributed.all_reduce_sum",
    weight=1,
)
def sharded_mappings_of_one_process(draw: Draw) -> None:
    """With one process, they are those of whole scores."""
    x = draw.table(draw.integer(1, 3), draw.integer(1, 6), torch.float64)
    alpha = draw.choice([2.0, 1.5, 1.3])
    torch.distributed.init_process_group(
        "gloo",
        store=torch.distributed.HashStore(),  # type: ignore[attr-defined]
        rank=0,
        world_size=1,
    )
    try:
        calls = {2.0: sp.distributed.sparsemax, 1.5: sp.distributed.entmax15}
        found = calls[alpha](x) if alpha in calls else sp.distributed.entmax(x, alpha)
        q = sp.distributed.sparsemap(x, alpha=alpha)
        total, expected = q.entropy(), q.expect(lambda z, row: x[row, z].clamp(-1e3, 1e3))
        assert torch.equal(sp.distributed.all_reduce_sum(x), x)
    finally:
        torch.distributed.destroy_process_group()
    wanted = sp.entmax(x, alpha)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    torch.testing.assert_close(total, torch.special.entr(wanted).sum(-1), atol=1e-9, rtol=0)
    torch.testing.assert_close(expected, (wanted * x.clamp(-1e3, 1e3)).sum(-1), atol=1e-9, rtol=1e-9)
