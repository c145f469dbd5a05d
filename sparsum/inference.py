"""Map scores to a sparse distribution over the assignments of a structure."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsum.arguments import check_int, kind_of
from sparsum.distribution import SparseDistribution
from sparsum.segments import is_any
from sparsum.simplex import sparsemax
from sparsum.simplex.blocks import support
from sparsum.solvers import AbstractSolver
from sparsum.solvers.default import default_solver
from sparsum.solvers.rounding import WIDE, centred, relative_to
from sparsum.structures import AbstractStructure, BoundScores, Scores
from sparsum.structures.scores import as_tuple, flatten


def sparsemap(
    scores: Scores,  # shape: (*batch, *score_shape)
    structure: AbstractStructure,
    *,
    solver: AbstractSolver | None = None,
    mask: Scores | None = None,  # shape: broadcasts to that of scores
    temperature: float | Tensor | None = None,  # shape: broadcasts to (*batch,)
    max_atoms: int | None = None,
) -> SparseDistribution:
    r"""The sparse distribution whose mean vector is closest to the scores.

    .. math:: \arg\min_{\xi \in \triangle} \Bigl\lVert \sum_{z \in Z} \xi(z) a_z - t \Bigr\rVert^2

    Here t are the scores and :math:`a_z` is the vector of assignment z. For the bits of symmetric structures, which score
    both states of a bit, t is replaced by (t + 1) / 2.

    The mean vector ``q.mean`` is unique. The distribution with this mean is not, except over `OneOf`, where it is
    `sparsemax`. The solver determines which distribution is returned, and therefore the expectation of a loss: see
    `sparsum.solvers.Nested`, `sparsum.solvers.Systematic`, `sparsum.solvers.Pulled` and `sparsum.solvers.ActiveSet`.

    >>> import sparsum as sp
    >>> q = sp.sparsemap(torch.tensor([[1.0, 0.8, -0.5]]), sp.OneOf(3))
    >>> q.atoms, q.probs
    (tensor([0, 1]), tensor([0.6000, 0.4000]))
    >>> q = sp.sparsemap(torch.tensor([[0.5, -0.5]]), sp.Bits(2))
    >>> q.mean
    tensor([[0.7500, 0.2500]])

    Args:
        scores: one score per part of the structure; -inf forbids a part, +inf is an error (except over `OneOf`).
        structure: the set of assignments.
        solver: by default, a closed form if one exists, otherwise `sparsum.solvers.Pulled` for structures that define their
            facets, and `sparsum.solvers.ActiveSet` for all others.
        mask: True where a part is allowed, equivalent to scores of -inf elsewhere; see `AbstractStructure.bind`.
        temperature: divides the scores; a positive number, or one per example.
        max_atoms: the largest number of atoms per row; by default unlimited. Rows with more keep the most probable ones,
            renormalized, as in `SparseDistribution.truncate`. Their mean is no longer the closest to the scores.

    Returns:
        The distribution, differentiable with respect to the scores, with probabilities in their dtype. ``is_exact`` is
        False for rows that lost atoms to ``max_atoms``, and for those on which the solver did not converge; only a solver
        with ``strict=False`` returns the latter.

    Within `torch.compile`, reading the number of atoms breaks the graph. With ``max_atoms`` and a closed form (the default
    solvers of `OneOf`, `Bits`, `Groups`, `Budget` and `Subset`) there is nothing to read, and ``fullgraph=True`` works:
    each row then has exactly ``max_atoms`` entries, of which those beyond its support repeat an atom with probability 0;
    ``q.probs.view(*batch, max_atoms)`` is a table. Rows of scores without a distribution have NaN probabilities there,
    because a graph cannot raise an error.

    Raises:
        TypeError: if the scores are not floating-point, or the solver does not support the structure.
        ValueError: if the scores have the wrong shape, or if rows contain NaN or +inf or are fully masked; the message lists
            these rows.
        NotConverged: if the solver reaches its maximum number of steps.

    References:
        - SparseMAP: differentiable sparse structured inference (Niculae, Martins, Blondel & Cardie, 2018), equation 5,
          https://arxiv.org/abs/1802.04223
    """
    require_structure(structure)
    check_solver(solver)
    check_max_atoms(max_atoms)
    forbid_vmap("sparsemap", scores)
    return sparsemap_of(structure.bind(scores, mask=mask, temperature=temperature), solver, max_atoms)


def sparsemap_of(
    bound: BoundScores, solver: AbstractSolver | None = None, max_atoms: int | None = None
) -> SparseDistribution:
    """`sparsemap` for scores that are already bound to their structure."""
    solver = default_solver(bound.structure) if solver is None else solver
    solution = solver.solve(bound) if max_atoms is None else solver.solve_truncated(bound, max_atoms)
    return SparseDistribution.from_segments(
        solution.atoms,
        solution.probs,
        solution.segments,
        bound.batch_shape,
        bound.structure,
        is_exact=bound.shaped(solution.is_exact),
    )


def topk_sparsemax(
    scores: Scores,  # shape: (*batch, *score_shape)
    structure: AbstractStructure,
    k: int,
    *,
    mask: Scores | None = None,  # shape: broadcasts to that of scores
    temperature: float | Tensor | None = None,  # shape: broadcasts to (*batch,)
) -> SparseDistribution:
    r"""The sparse distribution with at most k atoms that is closest to the scores of all assignments.

    .. math:: \arg\min_{\xi \in \triangle, \lVert \xi \rVert_0 \le k} \sum_{z \in Z} (\xi(z) - a_z^\top t)^2

    It is the `sparsemax` of the k highest assignment scores. If fewer than k atoms have mass, or if k is at least the number
    of assignments, it equals the sparsemax over all of Z; ``is_exact`` marks these rows.

    >>> import sparsum as sp
    >>> q = sp.topk_sparsemax(torch.tensor([[1.0, 0.8, 0.7], [3.0, 0.0, 0.0]]), sp.OneOf(3), k=2)
    >>> q.probs, q.is_exact
    (tensor([0.6000, 0.4000, 1.0000]), tensor([False,  True]))

    Args:
        scores: one score per part of the structure; -inf forbids a part, +inf is an error (except over `OneOf`).
        structure: any structure. Its own `topk` is used if it has one, otherwise a search that only needs its `argmax`.
        k: the maximum number of atoms per row, at least 1.
        mask: True where a part is allowed, equivalent to scores of -inf elsewhere; see `AbstractStructure.bind`.
        temperature: divides the scores; a positive number, or one per example.

    Returns:
        The distribution, differentiable with respect to the scores, with atoms in descending order of probability.

    Raises:
        TypeError: if the scores are not floating-point or k is not an int.
        ValueError: if the scores have the wrong shape, if k < 1, or if rows contain NaN or +inf or are fully masked.

    References:
        - Efficient marginalization of discrete and structured latent variables via sparsity (Correia, Niculae, Aziz &
          Martins, 2020), section 3.1, https://arxiv.org/abs/2007.01919
    """
    require_structure(structure)
    check_int("k", k, least=1)
    forbid_vmap("topk_sparsemax", scores)
    return topk_sparsemax_of(structure.bind(scores, mask=mask, temperature=temperature), k)


def topk_sparsemax_of(bound: BoundScores, k: int) -> SparseDistribution:
    """`topk_sparsemax` for scores that are already bound to their structure."""
    # A sum that contains +inf cannot be compared. If assignments are single parts there is no sum, and sparsemax handles it.
    is_single = bound.flat.shape[-1] == bound.structure.group_size
    is_bad = bound.flat.isnan().any(-1) if is_single else bound.is_unusable
    best, values = best_assignments(bound if is_single else _comparable(bound), k)
    if bound.structure.bit_counts() is not None:
        values = _relative(values, best, bound.flat)
    n_best = values.shape[1]
    probs = sparsemax(values).to(bound.dtype)
    packed = support(probs.detach(), is_bad=is_bad, on_bad=bound.raise_bad)
    is_all = n_best < k or bound.structure.log_count() <= math.log(n_best) + 1e-9
    return SparseDistribution.from_segments(
        packed.take(best.to(bound.dtype) if best.is_floating_point() else best),
        packed.take(probs),
        packed.segments,
        bound.batch_shape,
        bound.structure,
        is_exact=bound.shaped((packed.segments.lengths < n_best) | is_all),
    )


def _comparable(bound: BoundScores) -> BoundScores:
    """Scores that change all sums of a row by the same number, so that a large score does not absorb the others.

    If exactly one part of each group is used, they are relative to the largest score of each group. If groups compete, so
    that the best assignment may not have these, rows with large scores are relative to it.
    """
    structure = bound.structure
    if structure.group_sizes is None:
        return bound
    rows = bound.with_flat(centred(bound))
    flat = rows.flat.detach()
    is_wide = ((flat.abs() > WIDE) & (flat > -torch.inf)).any(-1, keepdim=True)
    if (structure.group_size is not None and structure.is_chain) or not is_any(is_wide):
        return rows
    vectors = flatten(structure.vectors(rows.with_flat(flat.nan_to_num()).argmax()))
    # From the scores themselves, so that each difference is rounded once.
    return rows.with_flat(torch.where(is_wide, relative_to(bound.flat.double(), vectors, rows), rows.flat))


def _relative(
    values: Tensor,  # shape: (n_rows, n_best)
    best: Tensor,  # shape: (n_rows, n_best, n), 0/1
    flat: Tensor,  # shape: (n_rows, n)
) -> Tensor:
    """The scores of bit vectors, in rows with large scores relative to the best, of bits that differ alone."""
    is_wide = ((flat.detach().abs() > WIDE) & (flat.detach() > -torch.inf)).any(-1, keepdim=True)
    if not (flat.is_cuda or bool(is_wide.any())):  # does not synchronize with a GPU
        return values
    flat, change = flat.double(), (best - best[:, :1]).double()
    relative = torch.where(change == 0, 0.0, change * flat.unsqueeze(1)).sum(-1)
    return torch.where(is_wide & (values > -torch.inf), relative, values)


def best_assignments(bound: BoundScores, k: int) -> tuple[Tensor, Tensor]:
    """The k best atoms of each row, (n_rows, n_best, *event_shape), and their scores, (n_rows, n_best).

    If a row allows fewer than k assignments, the remaining scores are -inf. The scores are differentiable. They are computed
    in double precision because they are sums of which only the differences matter.
    """
    with torch.no_grad():
        # NaN in one row must not break the search; the row is reported afterwards.
        best, is_valid = bound.map(lambda tensor: tensor.nan_to_num(0.0, torch.inf, -torch.inf)).kbest(k)
    values = bound.map(Tensor.double).score(best.flatten(0, 1), bound.row(best.shape[1])).reshape(is_valid.shape)
    return best, values.masked_fill(~is_valid, -torch.inf)


def forbid_vmap(name: str, scores: Scores) -> None:
    """Raise a RuntimeError within `torch.vmap`, which requires that shapes do not depend on values."""
    if torch.compiler.is_compiling():  # tensors are not wrapped in a graph, and the tracer knows nothing of wrappers
        return
    for tensor in as_tuple(scores):
        # What is not a tensor is reported by `AbstractStructure.bind`, which knows how many tensors are expected.
        while isinstance(tensor, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            if torch._C._functorch.is_batchedtensor(tensor):
                raise RuntimeError(
                    f"{name} does not support torch.vmap, because the number of atoms depends on the scores; pass all "
                    "examples as one batch, with shape (*batch, *score_shape)"
                )
            tensor = torch._C._functorch.get_unwrapped(tensor)


def require_structure(structure: AbstractStructure) -> None:
    """Raise a TypeError unless ``structure`` is a structure."""
    if not isinstance(structure, AbstractStructure):
        raise TypeError(f"structure must be an AbstractStructure such as OneOf(n), got {kind_of(structure)}")


def check_solver(solver: AbstractSolver | None) -> None:
    """Raise a TypeError unless ``solver`` is a solver or None."""
    if solver is not None and not isinstance(solver, AbstractSolver):
        raise TypeError(f"solver must be a solver such as sparsum.solvers.ActiveSet(), got {kind_of(solver)}")


def check_max_atoms(max_atoms: int | None) -> int | None:
    """Return the largest number of atoms per row after checking that it is None or a positive int."""
    return None if max_atoms is None else check_int("max_atoms", max_atoms, least=1)
