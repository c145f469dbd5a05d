"""The k best assignments of any structure, by solving it again and again with parts forced and forbidden."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sparsum.structures.parts import Scores, flatten_parts, tensors_of, unflatten_parts

if TYPE_CHECKING:
    from sparsum.structures.abstract import AbstractStructure


def kbest(
    structure: AbstractStructure,
    scores: Scores,  # shape: (n_rows, *score_shape)
    k: int,
    *,
    group_size: int | None = None,
) -> Tensor:
    r"""The k best atoms of each row, best first and all different: (n_rows, n_best, *event_shape).

    The assignments other than the best, :math:`z^1`, fall into disjoint sets, one per part,

    .. math:: Z_j = \{ z \in Z : a_{z,i} = a_{z^1,i} \text{ for } i < j,\ a_{z,j} \ne a_{z^1,j} \} ,

    whose best assignments are found by `argmax` with parts forbidden, by -inf, and forced, by a bonus above all that scores
    can add up to. The second best is the best of these; its set is split in the same way, and so on. In a structure
    of fixed size, j runs over the parts in use alone. Each of the k rounds calls `argmax` once, for all sets of all rows.

    Assignments that use a part forbidden by the scores come after all others. n_best is the largest number found in any
    row; a row of which fewer exist repeats its last atom.

    >>> import sparsum as sp
    >>> kbest(sp.OneOf(4), torch.tensor([[0.3, -torch.inf, 0.9, 0.5]]), k=3)
    tensor([[2, 3, 0]])

    Args:
        structure: one that has 0/1 vectors and an `argmax` that honours -inf.
        scores: the scores of each row, as `structure.rows` gives them.
        k: how many, at least 1.
        group_size: for a structure that uses exactly one part of each group, the number of parts in a group; groups are
            consecutive. A part is then forced by forbidding its rivals, which costs no precision.

    Raises:
        ValueError: if k < 1, or a vector has other entries than 0 and 1.

    References:
        - A procedure for computing the k best solutions to discrete optimization problems (Lawler, 1972),
          https://doi.org/10.1287/mnsc.18.7.401
        - An algorithm for ranking all the assignments in order of increasing cost (Murty, 1968),
          https://doi.org/10.1287/opre.16.3.682
    """
    check_k(k)
    problem = _Problem.of(structure, scores, group_size)
    n_rows, n_parts = problem.flat.shape
    row = torch.arange(n_rows, device=problem.flat.device)
    root = problem.solve(row, torch.zeros(n_rows, n_parts, dtype=torch.int8, device=row.device))
    problem.check_vectors(root.atoms)
    pool = root.map(lambda tensor: tensor.unsqueeze(1))  # shape: (n_rows, n_nodes, ...), best first
    found = [root]
    for n_left in range(k - 1, 0, -1):
        pool = _split(problem, pool, n_left)
        if pool.value.shape[1] == 0:
            break
        found.append(pool.map(lambda tensor: tensor[:, 0]))
    atoms = _collect(found)
    # Floating-point atoms are in the dtype of the scores, which argmax has seen as float64.
    return atoms.to(tensors_of(scores)[0].dtype) if atoms.dtype == torch.float64 else atoms


def check_k(k: int) -> None:
    """Raise unless k is at least 1."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")


@dataclass(frozen=True)
class _Nodes:
    """Sets of assignments, given by the parts that are forced and forbidden, each with its best assignment."""

    value: Tensor  # shape: (...,), the best score; -inf for an empty set
    atoms: Tensor  # shape: (..., *event_shape)
    is_used: Tensor  # shape: (..., n_parts), the vectors of the atoms
    state: Tensor  # shape: (..., n_parts), int8: 1 forced, -1 forbidden, 0 free

    def map(self, function: Callable[..., Tensor], *others: _Nodes) -> _Nodes:
        """Apply a function to each tensor, together with those of other nodes."""
        nodes = (self, *others)
        names = ("value", "atoms", "is_used", "state")
        return _Nodes(*(function(*(getattr(node, name) for node in nodes)) for name in names))


@dataclass(frozen=True)
class _Problem:
    """A structure and its scores, -inf made finite: assignments that use such a part come last, but are found."""

    structure: AbstractStructure
    scores: Scores
    flat: Tensor  # shape: (n_rows, n_parts), float64
    bonus: Tensor  # shape: (n_rows, 1)
    group_size: int | None

    @classmethod
    def of(cls, structure: AbstractStructure, scores: Scores, group_size: int | None) -> _Problem:
        """The problem of some rows."""
        flat = flatten_parts(scores).detach().double()
        is_forbidden = flat == -torch.inf
        flat = torch.where(is_forbidden, -_margin(torch.where(is_forbidden, 0.0, flat)), flat)
        return cls(structure, scores, flat, _margin(flat), group_size)

    def solve(
        self,
        row: Tensor,  # shape: (n,)
        state: Tensor,  # shape: (n, n_parts)
    ) -> _Nodes:
        """The best assignment of each of n sets, by one call of argmax."""
        flat, is_forced, is_forbidden = self.flat[row], state == 1, state == -1
        if self.group_size is None:
            tilted = torch.where(is_forced, flat + self.bonus[row], flat)
        else:
            groups = is_forced.unflatten(-1, (-1, self.group_size))
            is_rival = (groups.any(-1, keepdim=True) & ~groups).flatten(1)
            tilted = torch.where(is_rival, -torch.inf, flat)
        structure = self.structure.select(row)
        atoms = structure.argmax(unflatten_parts(torch.where(is_forbidden, -torch.inf, tilted), like=self.scores))
        is_used = flatten_parts(structure.vectors(atoms)) != 0
        value = torch.where(is_used, flat, 0.0).sum(-1)
        # The argmax over an empty set breaks the set's conditions. A row with a NaN has no best assignment.
        is_empty = torch.where(is_used, is_forbidden, is_forced).any(-1) | value.isnan()
        return _Nodes(torch.where(is_empty, -torch.inf, value), atoms, is_used, state)

    def check_vectors(self, atoms: Tensor) -> None:
        """Raise unless the vectors of atoms, one per row, are 0/1."""
        vectors = flatten_parts(self.structure.vectors(atoms))
        if not bool(((vectors == 0) | (vectors == 1)).all()):
            raise ValueError(f"{self.structure!r} has vectors with entries other than 0 and 1: define its topk(scores, k)")


def _margin(flat: Tensor) -> Tensor:
    """More than the difference of any two assignments' scores, and on their scale: (n_rows, 1)."""
    total = flat.abs().sum(-1, keepdim=True)
    return torch.where(total > 0, 3 * total, 1.0)


def _split(problem: _Problem, pool: _Nodes, n_left: int) -> _Nodes:
    """Split the first set of each row, less its best assignment, and keep the n_left best of all sets, best first."""
    best, rest = pool.map(lambda tensor: tensor[:, 0]), pool.map(lambda tensor: tensor[:, 1:])
    n_rows, n_rest = rest.value.shape
    is_branch = (best.state == 0) & (best.value > -torch.inf).unsqueeze(-1)
    if problem.structure.is_fixed_size:
        is_branch &= best.is_used  # an assignment that keeps all these parts has no room for others
    row, part = is_branch.nonzero(as_tuple=True)
    if len(row) == 0:
        return _without_empty(rest)
    kept = torch.where(best.is_used[row], 1, -1).to(torch.int8)
    position, flipped = torch.arange(is_branch.shape[1], device=part.device), part.unsqueeze(-1)
    state = torch.where(is_branch[row] & (position < flipped), kept, best.state[row])
    children = problem.solve(row, torch.where(position == flipped, -kept, state))
    # Children are packed; columns bring them back to their rows. All nodes: the rest, row after row, then the children.
    column = n_rest + (is_branch.cumsum(-1) - 1)[row, part]
    node = torch.arange(n_rows * n_rest, device=row.device).view(n_rows, n_rest)
    node = torch.cat([node, node.new_zeros(n_rows, int(column.max()) + 1 - n_rest)], 1)
    node[row, column] = torch.arange(len(row), device=row.device) + n_rows * n_rest
    value = torch.nn.functional.pad(rest.value, (0, node.shape[1] - n_rest), value=-torch.inf)
    value[row, column] = children.value
    # Stable: among equals the order of splitting decides, whatever else is in the batch.
    value, order = value.sort(dim=1, descending=True, stable=True)
    node = node.gather(1, order[:, :n_left])
    nodes = rest.map(lambda old, new: torch.cat([old.flatten(0, 1), new])[node], children)
    return _without_empty(dataclasses.replace(nodes, value=value[:, :n_left]))


def _without_empty(nodes: _Nodes) -> _Nodes:
    """Drop the columns at the end that hold empty sets in all rows."""
    n_columns = int((nodes.value > -torch.inf).any(0).sum())
    return nodes.map(lambda tensor: tensor[:, :n_columns])


def _collect(found: list[_Nodes]) -> Tensor:
    """The atoms found, best first; a row with fewer than others repeats its last one."""
    value, atoms = (torch.stack([getattr(nodes, name) for nodes in found], 1) for name in ("value", "atoms"))
    # They come in order but for rounding.
    value, order = value.sort(dim=1, descending=True, stable=True)
    last = (value > -torch.inf).sum(1, keepdim=True) - 1
    order = order.gather(1, torch.minimum(torch.arange(len(found), device=order.device), last.clamp_min(0)))
    return atoms[torch.arange(len(atoms), device=order.device).unsqueeze(1), order]
