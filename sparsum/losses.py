r"""Losses for scores of a structure: of observed assignments, or of a distribution that scores should stay close to.

The Fenchel-Young loss of SparseMAP, whose mean is :math:`\mu(t) = \arg\max_\mu t^\top \mu - \Omega(\mu)`, is

.. math:: L(t, y) = \Omega^*(t) + \Omega(y) - t^\top y \ge 0 , \quad \Omega^*(t) = \max_\mu t^\top \mu - \Omega(\mu) ,

which is convex in t, 0 if and only if :math:`\mu(t) = y`, and has the gradient :math:`\mu(t) - y`. This gradient does not
vanish where the distribution is a single assignment, unlike that of any function of the distribution.

References:
    - Learning with Fenchel-Young losses (Blondel, Martins & Niculae, 2020), equation 14, https://arxiv.org/abs/1901.02324
    - SparseMAP: differentiable sparse structured inference (Niculae, Martins, Blondel & Cardie, 2018), section 4,
      https://arxiv.org/abs/1802.04223
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from sparsum.arguments import check_floating
from sparsum.gibbs import Gibbs
from sparsum.inference import check_solver, require_structure, sparsemap_of
from sparsum.simplex.arguments import can_look_at
from sparsum.simplex.losses import check_reduction, reduce_rows
from sparsum.solvers import AbstractSolver
from sparsum.solvers.rounding import centred
from sparsum.structures import AbstractStructure, BoundScores, Scores
from sparsum.structures.bits import AbstractBits
from sparsum.structures.ragged import AbstractRagged
from sparsum.structures.scores import as_tuple, flatten
from sparsum.structures.sized import AbstractSized
from sparsum.structures.walks import AbstractBitWalks
from sparsum.tensors import at_least_float32

_SHOWN_ROWS = 5


def sparsemap_loss(
    scores: Scores,  # shape: (*batch, *score_shape)
    structure: AbstractStructure,
    target: Scores,  # shape: (*batch, *event_shape), or that of scores
    *,
    cost: Scores | None = None,  # shape: broadcasts to that of scores
    mask: Scores | None = None,  # shape: broadcasts to that of scores
    solver: AbstractSolver | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""Fenchel-Young loss of `sparsemap`, the counterpart of `sparsemax_loss` for structures.

    .. math:: L(t, y) = \Omega^*(t) + \Omega(y) - t^\top y \ge 0 , \quad \nabla_t L = \mu(t) - y ,

    where :math:`\mu` is the mean of `sparsemap`, :math:`\Omega(\mu) = \frac12 \lVert \mu \rVert^2`, and for the bits of
    symmetric structures :math:`\frac12 \lVert \mu \rVert^2 + \frac12 \lVert 1 - \mu \rVert^2`. The loss is exactly 0 once
    the target is the only assignment with mass.

    >>> import sparsum as sp
    >>> scores = torch.tensor([[2.0, 0.5, -3.0]], requires_grad=True)
    >>> sparsemap_loss(scores, sp.Bits(3), torch.tensor([[1, 0, 0]])).backward()
    >>> scores.grad  # the margin is 1: the first and the third bit meet it
    tensor([[0.0000, 0.7500, 0.0000]])

    With the mean of a prior as target it keeps scores alive: a bit whose score is outside of the window from -1 to 1 is the
    same in all atoms and receives a gradient from no function of the distribution, but from this loss; see docs/collapse.md.

    >>> sparsemap_loss(scores.detach(), sp.Bits(3), torch.full((1, 3), 0.5))
    tensor(2.0625)

    Args:
        scores: one score per part of the structure, as for `sparsemap`; -inf forbids a part.
        structure: the set of assignments, with ``lengths`` if examples have different sizes.
        target: the observed assignments, or mean vectors. Integers and booleans are atoms, one per example:
            (*batch, *event_shape). Floating-point numbers are mean vectors, in the form and shape of the scores, and may
            require a gradient. Bits are their own vectors, so both are the same. A mean vector must be the mean of some
            distribution over the structure, 0 in padding. This is checked for bits that are all 0 or 1; the loss of other
            vectors that are no means has no meaning.
        cost: added to the scores of the parts, so that the target has to win by more than this. Mistakes cost more with
            ``1 - structure.vectors(target)`` if every assignment has the same number of parts, and with
            ``1 - 2 * target`` for bits: Hamming distances. If scores are a tuple, a tuple whose entries may be None.
        mask: True where a part is allowed; see `AbstractStructure.bind`. The loss of a target that uses a forbidden part is
            infinite, with a finite gradient.
        solver: as for `sparsemap`; the loss does not depend on it.
        reduction: "mean" (0 for an empty batch), "sum" or "none".

    Returns:
        A scalar, or a tensor of shape (*batch,) if ``reduction`` is "none". Twice differentiable.

    Raises:
        TypeError: if the scores or the target have a wrong type, or the solver does not support the structure.
        ValueError: if shapes do not match, if rows of the scores contain NaN or +inf or are fully masked, if ``reduction``
            is unknown, or, on the CPU, if the target contains NaN or values that are not assignments.
        NotConverged: if the solver reaches its maximum number of steps.
    """
    require_structure(structure)
    check_solver(solver)
    check_reduction(reduction)
    bound = _bind(scores, structure, cost, mask)
    wanted = _flat_target(target, bound).to(bound.dtype)
    mean = _rows(sparsemap_of(bound, solver).mean, bound)
    linear, weight = bound.structure.quadratic(_shift_invariant(bound))
    loss = _FenchelYoung.apply(linear, wanted.double(), mean.double(), weight)
    return _reduced(loss, bound, scores, reduction)


def structured_nll(
    scores: Scores,  # shape: (*batch, *score_shape)
    structure: AbstractStructure,
    target: Scores,  # shape: (*batch, *event_shape), or that of scores
    *,
    cost: Scores | None = None,  # shape: broadcasts to that of scores
    mask: Scores | None = None,  # shape: broadcasts to that of scores
    reduction: str = "mean",
) -> Tensor:
    r"""Negative log-likelihood of assignments under `Gibbs`: cross-entropy for structures, the loss of a CRF.

    .. math:: L(t, y) = \log \sum_{z \in Z} \exp(a_z^\top t) - t^\top y \ge 0

    The gradient is the mean of `Gibbs` minus the vector of the target. For a mean vector y, L is the expectation over any
    distribution with this mean.

    >>> import sparsum as sp
    >>> scores, target = torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([1])
    >>> structured_nll(scores, sp.OneOf(3), target), torch.nn.functional.cross_entropy(scores, target)
    (tensor(1.4076), tensor(1.4076))

    Args:
        scores: one score per part of the structure; -inf forbids a part.
        structure: a set of assignments that `Gibbs` supports.
        target: atoms or mean vectors, as for `sparsemap_loss`.
        cost: added to the scores of the parts, as for `sparsemap_loss`: the softmax-margin loss.
        mask: as for `sparsemap_loss`.
        reduction: "mean" (0 for an empty batch), "sum" or "none".

    Returns:
        A scalar, or a tensor of shape (*batch,) if ``reduction`` is "none". Twice differentiable.

    Raises:
        TypeError: if the scores or the target have a wrong type, or `Gibbs` does not support the structure.
        ValueError: as for `sparsemap_loss`.

    References:
        - Conditional random fields (Lafferty, McCallum & Pereira, 2001)
        - Softmax-margin CRFs (Gimpel & Smith, 2010), for costs, https://aclanthology.org/N10-1112
    """
    require_structure(structure)
    check_reduction(reduction)
    bound = _bind(scores, structure, cost, mask)
    gibbs = Gibbs.from_bound(bound)
    wanted = _flat_target(target, bound)
    if _holds_atoms(target):  # as a sum of conditional log-probabilities, without cancellation
        loss = -gibbs.log_prob_of(_atoms(target, bound), bound.row(1))
    else:
        # A forbidden part that the target does not use contributes 0; 0 * -inf would be NaN.
        flat = bound.flat.double()
        gain = wanted * flat.masked_fill((flat == -torch.inf) & (wanted == 0), 0.0)
        loss = gibbs.model.log_partition.double() - gain.sum(-1)
    return _reduced(loss, bound, scores, reduction)


class SparsemapLoss(torch.nn.Module):
    """Module form of `sparsemap_loss`, with its arguments.

    >>> import sparsum as sp
    >>> SparsemapLoss(sp.Bits(2))(torch.tensor([[1.0, -1.0]]), torch.tensor([[1, 0]]))
    tensor(0.)
    """

    def __init__(
        self, structure: AbstractStructure, *, solver: AbstractSolver | None = None, reduction: str = "mean"
    ) -> None:
        super().__init__()
        require_structure(structure)
        check_solver(solver)
        check_reduction(reduction)
        self.structure, self.solver, self.reduction = structure, solver, reduction

    def forward(
        self, scores: Scores, target: Scores, *, cost: Scores | None = None, mask: Scores | None = None, lengths: Any = None
    ) -> Tensor:
        """Compute the loss for atoms or mean vectors; ``lengths`` are those of this batch."""
        structure = _sized(self.structure, lengths)
        return sparsemap_loss(scores, structure, target, cost=cost, mask=mask, solver=self.solver, reduction=self.reduction)

    def extra_repr(self) -> str:
        """Format the arguments for printing."""
        return f"{self.structure!r}, solver={self.solver!r}, reduction={self.reduction!r}"


class StructuredNLL(torch.nn.Module):
    """Module form of `structured_nll`, with its arguments.

    >>> import sparsum as sp
    >>> StructuredNLL(sp.Bits(2))(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(1.3863)
    """

    def __init__(self, structure: AbstractStructure, *, reduction: str = "mean") -> None:
        super().__init__()
        require_structure(structure)
        check_reduction(reduction)
        self.structure, self.reduction = structure, reduction

    def forward(
        self, scores: Scores, target: Scores, *, cost: Scores | None = None, mask: Scores | None = None, lengths: Any = None
    ) -> Tensor:
        """Compute the loss for atoms or mean vectors; ``lengths`` are those of this batch."""
        structure = _sized(self.structure, lengths)
        return structured_nll(scores, structure, target, cost=cost, mask=mask, reduction=self.reduction)

    def extra_repr(self) -> str:
        """Format the arguments for printing."""
        return f"{self.structure!r}, reduction={self.reduction!r}"


class _FenchelYoung(torch.autograd.Function):
    r"""The loss of each row, :math:`b^\top (\mu - y) - \frac12 \sum_i w_i (\mu_i^2 - y_i^2)`, given the maximizer mu.

    The gradient with respect to b is mu - y by the envelope theorem; differentiating through mu would add a term that is 0
    only up to rounding. A second backward differentiates mu - y, mu included.
    """

    @staticmethod
    def forward(ctx: Any, linear: Tensor, target: Tensor, mean: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(linear, target, mean, weight)
        # A part on which both agree contributes nothing, not even if it is forbidden: 0 * -inf would be NaN.
        terms = (mean - target) * (linear - weight * (mean + target) / 2)
        return torch.where(mean == target, 0.0, terms).sum(-1).clamp_min(0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        linear, target, mean, weight = ctx.saved_tensors
        slope = None
        if ctx.needs_input_grad[1]:
            slope = grad.unsqueeze(-1) * torch.where(linear == -torch.inf, 0.0, weight * target - linear)
        return grad.unsqueeze(-1) * (mean - target), slope, None, None


def _bind(scores: Scores, structure: AbstractStructure, cost: Scores | None, mask: Scores | None) -> BoundScores:
    """Scores plus costs, in at least float32, bound to their structure."""
    if cost is not None:
        structure.check_scores(scores)
        tensors, costs = as_tuple(scores), as_tuple(cost)
        if len(costs) > len(tensors):
            raise ValueError(f"cost must have at most as many tensors as scores, {len(tensors)}, got {len(costs)}")
        added = tuple(map(_plus, tensors, costs)) + tensors[len(costs) :]
        scores = added if isinstance(scores, tuple) else added[0]
    return structure.bind(scores, mask=mask).map(at_least_float32)


def _plus(scores: Tensor, cost: Tensor | None) -> Tensor:
    if cost is None:
        return scores
    if not isinstance(cost, Tensor):
        raise TypeError(f"cost must be a torch.Tensor, got {type(cost).__name__}")
    # The last dimensions keep their shape. Transitions need not have those of the batch, which their costs may have.
    try:
        total = scores + cost.to(scores.dtype)
    except RuntimeError:
        total = cost
    if total.shape[total.ndim - scores.ndim :] != scores.shape:
        raise ValueError(f"cost must broadcast to the shape of scores, {tuple(scores.shape)}, got {tuple(cost.shape)}")
    return total


def _holds_atoms(target: Scores) -> bool:
    """Whether a target holds atoms, and not mean vectors."""
    return isinstance(target, Tensor) and not target.is_floating_point()


def _flat_target(target: Scores, bound: BoundScores) -> Tensor:
    """The vector or mean vector of each row: (n_rows, n_parts)."""
    if _holds_atoms(target):
        atoms = _atoms(target, bound)
        return flatten(bound.structure.vectors(atoms)).to(bound.dtype)
    pieces = as_tuple(target)
    if len(pieces) != len(bound.tensors):
        raise ValueError(f"target must have as many tensors as scores, {len(bound.tensors)}, got {len(pieces)}")
    for piece, rows in zip(pieces, bound.tensors, strict=True):
        if not isinstance(piece, Tensor):
            raise TypeError(f"target must be a torch.Tensor, got {type(piece).__name__}")
        check_floating("target", piece)
        shape = bound.batch_shape + rows.shape[1:]
        if piece.shape != shape:
            raise ValueError(
                f"target of mean vectors must have the shape of the scores, {tuple(shape)}, got {tuple(piece.shape)}; "
                "atoms must have an integer dtype"
            )
    flat = _rows(target, bound)
    if can_look_at(flat):
        _raise_for(flat.detach().isnan().any(-1), "target must not contain NaN")
        if isinstance(bound.structure, AbstractBits | AbstractBitWalks):
            is_vertex = ((flat == 0) | (flat == 1)).all(-1)
            is_wrong = is_vertex & ~bound.structure.contains(flat.detach())
            _raise_for(is_wrong, f"target of zeros and ones must hold assignments of {bound.structure!r}")
    return flat


def _atoms(target: Tensor, bound: BoundScores) -> Tensor:
    """The atoms of each row, checked: (n_rows, *event_shape)."""
    event_shape = bound.argmax().shape[1:]
    if target.shape != bound.batch_shape + event_shape:
        raise ValueError(
            f"target of atoms must have shape {tuple(bound.batch_shape + event_shape)} for {bound.structure!r}, "
            f"got {tuple(target.shape)}"
        )
    atoms = target.reshape(bound.n_rows, *event_shape)
    atoms = atoms.to(bound.dtype) if bound.structure.bit_counts() is not None else atoms.long()
    if can_look_at(atoms):
        is_wrong = ~bound.structure.contains(atoms)
        _raise_for(is_wrong, f"target must hold assignments of {bound.structure!r}")
    return atoms


def _raise_for(is_wrong: Tensor, what: str) -> None:
    """Raise a ValueError that names the wrong rows, if there are any."""
    if bool(is_wrong.any()):
        rows = is_wrong.nonzero().squeeze(-1).tolist()
        shown = ", ".join(map(str, rows[:_SHOWN_ROWS])) + (", ..." if len(rows) > _SHOWN_ROWS else "")
        raise ValueError(f"{what}; not so in {len(rows)} of {len(is_wrong)} rows: {shown}")


def _rows(parts: Scores, bound: BoundScores) -> Tensor:
    """Tensors in the form and shape of the scores as flat rows: (n_rows, n_parts)."""
    return torch.cat(
        [tensor.reshape(rows.shape).flatten(1) for tensor, rows in zip(as_tuple(parts), bound.tensors, strict=True)], -1
    )


def _shift_invariant(bound: BoundScores) -> Tensor:
    """The scores in float64, less what all assignments have in common, so that large scores do not absorb others."""
    has_shared = bound.structure.group_sizes is not None or bound.structure.is_fixed_size
    return centred(bound) if has_shared else bound.flat.double()


def _reduced(loss: Tensor, bound: BoundScores, scores: Scores, reduction: str) -> Tensor:
    return reduce_rows(bound.shaped(loss), reduction).to(as_tuple(scores)[0].dtype)


def _sized(structure: AbstractStructure, lengths: Any) -> AbstractStructure:
    """The structure with the lengths of a batch."""
    if lengths is None:
        return structure
    if not isinstance(structure, AbstractSized | AbstractRagged):
        raise TypeError(f"lengths must be None for {structure!r}, whose examples all have the same size")
    return dataclasses.replace(structure, lengths=lengths)
