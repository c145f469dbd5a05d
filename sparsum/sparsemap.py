"""From scores to a sparse distribution over the assignments of a structure."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsum.distribution import SparseDistribution
from sparsum.distribution._packing import validates
from sparsum.simplex import sparsemax
from sparsum.simplex._blocks import support
from sparsum.simplex._packed import packed_sparsemax
from sparsum.structures import AbstractStructure, OneOf


def sparsemap(
    scores: Tensor,  # shape: (*batch, *score_shape)
    structure: AbstractStructure,
    *,
    validate_args: bool | None = None,
) -> SparseDistribution:
    r"""The sparse distribution whose mean vector is closest to the scores.

    .. math:: \arg\min_{\xi \in \triangle} \Bigl\lVert \sum_{z \in Z} \xi(z) a_z - t \Bigr\rVert^2

    Over `OneOf(n)` this is `sparsemax`, handed out as atoms and probabilities, and the solution is unique.

    >>> import sparsum as sp
    >>> q = sp.sparsemap(torch.tensor([[1.0, 0.8, -0.5]]), sp.OneOf(3))
    >>> q.atoms, q.probs
    (tensor([0, 1]), tensor([0.6000, 0.4000]))

    Args:
        scores: one score per part of the structure; -inf forbids.
        structure: the set of assignments; `OneOf` so far.
        validate_args: whether to raise on rows that have no distribution; by default True.

    Returns:
        The distribution, differentiable in the scores, with probabilities in their dtype.

    Raises:
        TypeError: if the scores are not floating-point, or for a structure without a solver.
        ValueError: if the shape of the scores does not fit, or rows hold a NaN or allow nothing; rows are named.

    References:
        - SparseMAP: differentiable sparse structured inference (Niculae, Martins, Blondel & Cardie, 2018), equation 5,
          https://arxiv.org/abs/1802.04223
    """
    _check_structure(structure)
    if not isinstance(structure, OneOf):
        raise TypeError(f"sparsemap has a solver for OneOf only, got {structure!r}; topk_sparsemax takes any with a topk")
    rows, batch_shape = _rows(scores, structure)
    packed, probs, n_empty = packed_sparsemax(rows)
    if n_empty and validates(validate_args):
        _raise_bad_rows(packed.segments.lengths == 0, rows)
    atoms = packed.flat % structure.n
    return SparseDistribution._from_segments(
        atoms, probs, packed.segments, batch_shape, structure, validate_args=validate_args
    )


def topk_sparsemax(
    scores: Tensor,  # shape: (*batch, *score_shape)
    structure: AbstractStructure,
    k: int,
    *,
    validate_args: bool | None = None,
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
        scores: one score per part of the structure; -inf forbids.
        structure: any structure with a `topk`.
        k: the largest number of atoms per row, at least 1.
        validate_args: whether to raise on rows that have no distribution; by default True.

    Returns:
        The distribution, differentiable in the scores, atoms in order of their probability.

    Raises:
        TypeError: if the scores are not floating-point or k is not an int.
        ValueError: if the shape of the scores does not fit, k < 1, or rows hold a NaN or allow nothing; rows are named.

    References:
        - Efficient marginalization of discrete and structured latent variables via sparsity (Correia, Niculae, Aziz &
          Martins, 2020), section 3.1, https://arxiv.org/abs/2007.01919
    """
    _check_structure(structure)
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"k must be an int, got {type(k).__name__}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    rows, batch_shape = _rows(scores, structure)
    with torch.no_grad():
        best = structure.topk(rows, k)  # shape: (n_rows, n_best, *event_shape)
    n_rows, n_best = best.shape[:2]
    row = torch.arange(n_rows, device=rows.device).repeat_interleave(n_best, output_size=n_rows * n_best)
    atoms = best.flatten(0, 1)
    probs = sparsemax(structure.score(rows, atoms, row).reshape(n_rows, n_best))
    packed, n_empty = support(probs.detach())
    lengths = packed.segments.lengths
    if n_empty and validates(validate_args):
        _raise_bad_rows(lengths == 0, rows)
    is_all = n_best < k or structure.log_count() <= math.log(n_best) + 1e-9
    return SparseDistribution._from_segments(
        atoms[packed.flat],
        probs.reshape(-1).index_select(0, packed.flat),
        packed.segments,
        batch_shape,
        structure,
        is_exact=((lengths < k) | is_all).reshape(batch_shape),
        validate_args=validate_args,
    )


def _check_structure(structure: AbstractStructure) -> None:
    if not isinstance(structure, AbstractStructure):
        raise TypeError(f"structure must be an AbstractStructure such as OneOf(n), got {type(structure).__name__}")


def _rows(scores: Tensor, structure: AbstractStructure) -> tuple[Tensor, torch.Size]:
    """The scores with the batch flattened into rows, and the shape of the batch."""
    structure.check_scores(scores)
    n_batch = scores.ndim - structure.score_ndim
    return scores.reshape(-1, *scores.shape[n_batch:]), scores.shape[:n_batch]


def _raise_bad_rows(is_bad: Tensor, rows: Tensor) -> None:
    bad = is_bad.nonzero().squeeze(-1).tolist()
    kinds = [f"row {row} {'has a NaN' if bool(rows[row].isnan().any()) else 'allows nothing'}" for row in bad[:5]]
    more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    raise ValueError(f"scores must give every row a distribution; {', '.join(kinds)}{more} (of {len(is_bad)})")
