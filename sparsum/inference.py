"""From scores to a sparse distribution over the assignments of a structure."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sparsum.distribution import SparseDistribution
from sparsum.simplex import sparsemax
from sparsum.simplex.blocks import support
from sparsum.solvers import AbstractSolver
from sparsum.solvers.default import default_solver
from sparsum.structures import AbstractStructure, OneOf
from sparsum.structures.bad_rows import is_unusable, raise_bad_rows
from sparsum.structures.parts import Scores, flatten_parts, tensors_of


def sparsemap(
    scores: Scores,  # shape: (*batch, *score_shape)
    structure: AbstractStructure,
    *,
    solver: AbstractSolver | None = None,
) -> SparseDistribution:
    r"""The sparse distribution whose mean vector is closest to the scores.

    .. math:: \arg\min_{\xi \in \triangle} \Bigl\lVert \sum_{z \in Z} \xi(z) a_z - t \Bigr\rVert^2

    For the bits of symmetric structures, both of whose states are scored, (t + 1) / 2 takes the place of t.
    The mean vector ``q.mean`` is unique; the distribution that has it as its mean is not, except over `OneOf`, where it is
    `sparsemax`. Which one comes out, and with it the expectation of a loss, depends on the solver: see
    `sparsum.solvers.Nested`, `sparsum.solvers.Systematic` and `sparsum.solvers.ActiveSet`.

    >>> import sparsum as sp
    >>> q = sp.sparsemap(torch.tensor([[1.0, 0.8, -0.5]]), sp.OneOf(3))
    >>> q.atoms, q.probs
    (tensor([0, 1]), tensor([0.6000, 0.4000]))
    >>> q = sp.sparsemap(torch.tensor([[0.5, -0.5]]), sp.Bits(2))
    >>> q.mean
    tensor([[0.7500, 0.2500]])

    Args:
        scores: one score per part of the structure; -inf forbids, +inf is an error (except over `OneOf`).
        structure: the set of assignments.
        solver: by default a closed form where there is one, else `sparsum.solvers.ActiveSet`.

    Returns:
        The distribution, differentiable in the scores, with probabilities in their dtype. ``is_exact`` is False for rows
        that a solver gave up on, which only one with ``strict=False`` returns.

    Raises:
        TypeError: if the scores are not floating-point, or the solver does not take the structure.
        ValueError: if the shape of the scores does not fit, or rows hold a NaN or +inf or allow nothing; rows are named.
        NotConverged: if a solver runs out of steps.

    References:
        - SparseMAP: differentiable sparse structured inference (Niculae, Martins, Blondel & Cardie, 2018), equation 5,
          https://arxiv.org/abs/1802.04223
    """
    check_structure(structure)
    if solver is not None and not isinstance(solver, AbstractSolver):
        raise TypeError(f"solver must be a solver such as sparsum.solvers.ActiveSet(), got {_kind(solver)}")
    bound, rows, batch_shape = structure.rows(scores)
    solution = (default_solver(structure) if solver is None else solver).solve(rows, bound)
    return SparseDistribution._from_segments(
        solution.atoms,
        solution.probs,
        solution.segments,
        batch_shape,
        bound,
        is_exact=solution.is_solved.reshape(batch_shape),
    )


def topk_sparsemax(
    scores: Scores,  # shape: (*batch, *score_shape)
    structure: AbstractStructure,
    k: int,
) -> SparseDistribution:
    r"""The sparse distribution of at most k atoms that is closest to the scores of all assignments.

    .. math:: \arg\min_{\xi \in \triangle, \lVert \xi \rVert_0 \le k} \sum_{z \in Z} (\xi(z) - a_z^\top t)^2

    It is the `sparsemax` of the k best scores. Where fewer than k atoms come out, or where k is at least the number of
    assignments, it is the sparsemax over all of Z: ``is_exact`` says so for each row.

    >>> import sparsum as sp
    >>> q = sp.topk_sparsemax(torch.tensor([[1.0, 0.8, 0.7], [3.0, 0.0, 0.0]]), sp.OneOf(3), k=2)
    >>> q.probs, q.is_exact
    (tensor([0.6000, 0.4000, 1.0000]), tensor([False,  True]))

    Args:
        scores: one score per part of the structure; -inf forbids, +inf is an error (except over `OneOf`).
        structure: any structure; its own `topk` is used, or a search that needs its `argmax` alone.
        k: the largest number of atoms per row, at least 1.

    Returns:
        The distribution, differentiable in the scores, atoms in order of their probability.

    Raises:
        TypeError: if the scores are not floating-point or k is not an int.
        ValueError: if the shape of the scores does not fit, k < 1, or rows hold a NaN or +inf or allow nothing.

    References:
        - Efficient marginalization of discrete and structured latent variables via sparsity (Correia, Niculae, Aziz &
          Martins, 2020), section 3.1, https://arxiv.org/abs/2007.01919
    """
    check_structure(structure)
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"k must be an int, got {type(k).__name__}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    bound, rows, batch_shape = structure.rows(scores)
    dtype = tensors_of(rows)[0].dtype
    # OneOf knows what to do with +inf; elsewhere sums of it would say nothing.
    flat = flatten_parts(rows)
    is_bad = flat.isnan().any(-1) if isinstance(bound, OneOf) else is_unusable(flat)
    best, values = best_assignments(bound, rows, k)
    n_best = values.shape[1]
    probs = sparsemax(values).to(dtype)
    packed, n_bad = support(probs.detach(), is_bad)
    lengths = packed.segments.lengths
    if n_bad:
        raise_bad_rows(is_bad | (lengths == 0), flat)
    is_all = n_best < k or bound.log_count() <= math.log(n_best) + 1e-9
    return SparseDistribution._from_segments(
        best.flatten(0, 1)[packed.flat],
        packed.segments.clear_padding(probs.reshape(-1).index_select(0, packed.flat)),
        packed.segments,
        batch_shape,
        bound,
        is_exact=((lengths < n_best) | is_all).reshape(batch_shape),
    )


def best_assignments(structure: AbstractStructure, rows: Scores, k: int) -> tuple[Tensor, Tensor]:
    """The k best atoms of each row, (n_rows, n_best, *event_shape), and their scores, (n_rows, n_best).

    Where a row allows fewer, the scores of the rest are -inf. Scores have a gradient, and are in double precision: they are
    sums, and what counts is their difference.
    """
    with torch.no_grad():
        best, is_valid = structure.kbest(_without_nan(rows), k)
    n_rows, n_best = is_valid.shape
    row = torch.arange(n_rows, device=best.device).repeat_interleave(n_best, output_size=n_rows * n_best)
    values = structure.score(_map(Tensor.double, rows), best.flatten(0, 1), row).reshape(n_rows, n_best)
    return best, values.masked_fill(~is_valid, -torch.inf)


def check_structure(structure: AbstractStructure) -> None:
    """Raise a TypeError unless it is one."""
    if not isinstance(structure, AbstractStructure):
        raise TypeError(f"structure must be an AbstractStructure such as OneOf(n), got {_kind(structure)}")


def _kind(value: object) -> str:
    return f"the class {value.__name__}; make an instance of it" if isinstance(value, type) else type(value).__name__


def _without_nan(rows: Scores) -> Scores:
    """The scores with 0 for NaN, so that a search in one row cannot stumble; the row is reported afterwards."""
    return _map(lambda tensor: tensor.nan_to_num(0.0, torch.inf, -torch.inf), rows)


def _map(function: Callable[[Tensor], Tensor], rows: Scores) -> Scores:
    return tuple(map(function, rows)) if isinstance(rows, tuple) else function(rows)
