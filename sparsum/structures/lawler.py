"""The k best assignments of any structure, by repeated `argmax` with parts forced and forbidden."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.structures.scores import BoundScores, check_atoms, check_vectors, flatten


def kbest(bound: BoundScores, k: int) -> Tensor:
    r"""The k best atoms of each row, best first and distinct: (n_rows, n_best, *event_shape).

    The assignments other than the best, :math:`z^1`, are partitioned into disjoint sets, one per part,

    .. math:: Z_j = \{ z \in Z : a_{z,i} = a_{z^1,i} \text{ for } i < j,\ a_{z,j} \ne a_{z^1,j} \} ,

    `argmax` finds the best assignment of each set, with some parts forbidden by -inf and others forced by a bonus larger
    than any sum of scores. The second best assignment is the best of these; its set is split in the same way, and so on.
    Each of the k rounds calls `argmax` once, for all sets of all rows. In a structure of fixed size, j only runs over the
    parts in use, because an assignment that keeps all of them cannot use others. In other structures, where one vector may
    contain another, it runs over all parts.

    In a structure with a ``group_size``, a part is forced by forbidding the rest of its group, without loss of precision.

    Assignments that use a part forbidden by the scores come after all others. n_best is the largest number found in any
    row; a row with fewer assignments repeats its last atom.

    >>> import sparsum as sp
    >>> kbest(sp.OneOf(4).bind(torch.tensor([[0.3, -torch.inf, 0.9, 0.5]])), k=3)
    tensor([[2, 3, 0]])

    Args:
        bound: rows of scores over a structure with 0/1 vectors and an `argmax` that respects -inf.
        k: the number of atoms, at least 1.

    Raises:
        ValueError: if k < 1, or a vector has entries other than 0 and 1.

    References:
        - A procedure for computing the k best solutions to discrete optimization problems (Lawler, 1972),
          https://doi.org/10.1287/mnsc.18.7.401
        - An algorithm for ranking all the assignments in order of increasing cost (Murty, 1968),
          https://doi.org/10.1287/opre.16.3.682
    """
    check_int("k", k, least=1)
    flat = bound.flat.detach().double()
    nearer = _compressed(flat)
    atoms = _found(_Search.of(bound, nearer), k)
    # Which assignments use parts that were brought nearer: the last ones, but their order is that of logarithms.
    is_low = nearer != flat
    if bool(is_low.any()):
        again = (_rank(bound, atoms, is_low) == 1).any(-1).nonzero().squeeze(-1)
        if len(again):
            atoms[again] = _in_order(bound.select(again), atoms[again], is_low[again], k)
    # Convert floating-point atoms back to the dtype of the scores; argmax received the scores as float64.
    return atoms.to(bound.dtype) if atoms.dtype == torch.float64 else atoms


def _found(search: _Search, k: int) -> Tensor:
    """The k best atoms of each row: (n_rows, n_best, *event_shape)."""
    n_rows, n_parts = search.flat.shape
    row = torch.arange(n_rows, device=search.flat.device)
    root = search.solve(row, torch.zeros(n_rows, n_parts, dtype=torch.int8, device=row.device))
    search.check_vectors(root.atoms)
    pool = root.map(lambda tensor: tensor.unsqueeze(1))  # shape: (n_rows, n_nodes, ...), best first
    found = [root]
    for n_left in range(k - 1, 0, -1):
        pool = _split(search, pool, n_left)
        if pool.value.shape[1] == 0:
            break
        found.append(pool.map(lambda tensor: tensor[:, 0]))
    return _collect(found)


def _in_order(
    bound: BoundScores,
    atoms: Tensor,  # shape: (n_rows, n_best, *event_shape)
    is_low: Tensor,  # shape: (n_rows, n_parts)
    k: int,
) -> Tensor:
    """The same number of best atoms, of which those with low parts are in the order of the scores."""
    other = _found(_Search.of(bound, bound.flat.detach().double()), k)
    order = _rank(bound, other, is_low).argsort(dim=1, stable=True)
    place = torch.arange(atoms.shape[1], device=atoms.device).clamp_max(other.shape[1] - 1)
    every = torch.arange(len(atoms), device=atoms.device).unsqueeze(-1)
    is_low_one = (_rank(bound, atoms, is_low) == 1).reshape(*atoms.shape[:2], *[1] * (atoms.ndim - 2))
    return torch.where(is_low_one, other[every, order[:, place]], atoms)


def _rank(bound: BoundScores, atoms: Tensor, is_low: Tensor) -> Tensor:
    """2 for atoms, (n_rows, n, *event_shape), with forbidden parts, 1 for those with low parts, else 0: (n_rows, n)."""
    row = bound.row(atoms.shape[1])
    used = flatten(bound.structure.select(row).vectors(atoms.flatten(0, 1))) != 0
    is_forbidden = (used & (bound.flat[row] == -torch.inf)).any(-1)
    return torch.where(is_forbidden, 2, (used & is_low[row]).any(-1).long()).reshape(atoms.shape[:2])


#: Scores below minus this are very low.
_LOW = 1e15


@dataclass(frozen=True)
class _Nodes:
    """Sets of assignments, defined by forced and forbidden parts, each with its best assignment."""

    value: Tensor  # shape: (...,), the best score; -inf for an empty set
    atoms: Tensor  # shape: (..., *event_shape)
    is_used: Tensor  # shape: (..., n_parts), the vectors of the atoms
    state: Tensor  # shape: (..., n_parts), int8: 1 forced, -1 forbidden, 0 free

    def map(self, function: Callable[..., Tensor], *others: _Nodes) -> _Nodes:
        """Apply a function to each tensor, together with the corresponding tensors of other nodes."""
        nodes = (self, *others)
        names = ("value", "atoms", "is_used", "state")
        return _Nodes(*(function(*(getattr(node, name) for node in nodes)) for name in names))


@dataclass(frozen=True)
class _Search:
    """Rows of scores with -inf replaced by finite values: assignments that use a forbidden part come last, but are found."""

    bound: BoundScores
    flat: Tensor  # shape: (n_rows, n_parts), float64
    bonus: Tensor  # shape: (n_rows, 1)

    @classmethod
    def of(cls, bound: BoundScores, flat: Tensor) -> _Search:
        """Create the search over bound scores, for which others stand in float64, (n_rows, n_parts)."""
        is_forbidden = flat == -torch.inf
        flat = torch.where(is_forbidden, -_margin(torch.where(is_forbidden, 0.0, flat)), flat)
        return cls(bound, flat, _margin(flat))

    def solve(
        self,
        row: Tensor,  # shape: (n,)
        state: Tensor,  # shape: (n, n_parts)
    ) -> _Nodes:
        """Find the best assignment of each of n sets with one call of argmax."""
        flat, is_forced, is_forbidden = self.flat[row], state == 1, state == -1
        group_size = self.bound.structure.group_size
        if group_size is None:
            tilted = torch.where(is_forced, flat + self.bonus[row], flat)
        else:
            groups = is_forced.unflatten(-1, (-1, group_size))
            is_rival = (groups.any(-1, keepdim=True) & ~groups).flatten(1)
            tilted = torch.where(is_rival, -torch.inf, flat)
        nodes = self.bound.select(row).with_flat(torch.where(is_forbidden, -torch.inf, tilted))
        atoms = nodes.argmax()
        check_atoms(nodes.structure, atoms, nodes.n_rows)
        vectors = nodes.structure.vectors(atoms)
        check_vectors(nodes.structure, vectors, flat.shape[-1])
        is_used = flatten(vectors) != 0
        value = torch.where(is_used, flat, 0.0).sum(-1)
        # The argmax over an empty set violates the conditions of the set. A row with a NaN does not have a best assignment.
        is_empty = torch.where(is_used, is_forbidden, is_forced).any(-1) | value.isnan()
        return _Nodes(torch.where(is_empty, -torch.inf, value), atoms, is_used, state)

    def check_vectors(self, atoms: Tensor) -> None:
        """Raise a ValueError unless the vectors of atoms, one per row, are 0/1."""
        structure = self.bound.structure
        vectors = flatten(structure.vectors(atoms))
        if not bool(((vectors == 0) | (vectors == 1)).all()):
            raise ValueError(f"{structure!r} has vectors with entries other than 0 and 1: define its topk(scores, k)")


def _compressed(flat: Tensor) -> Tensor:
    """Scores that are lower than any sum of the others, brought nearer: next to them, sums would lose all digits."""
    is_low = (flat < -_LOW) & (flat > -torch.inf)
    rest = torch.where(flat < -_LOW, 0.0, flat)
    is_beside = (rest != 0).any(-1, keepdim=True) & ~(is_low & (flat >= -_margin(rest))).any(-1, keepdim=True)
    nearer = -_margin(rest) * (1 + (-flat / _LOW).clamp(1.0, torch.finfo(flat.dtype).max).log10())
    return torch.where(is_low & is_beside, nearer, flat)


def _margin(flat: Tensor) -> Tensor:
    """A number larger than the score difference of any two assignments, and on the scale of the scores: (n_rows, 1)."""
    total = flat.abs().sum(-1, keepdim=True)
    return torch.where(total > 0, 3 * total, 1.0)


def _split(search: _Search, pool: _Nodes, n_left: int) -> _Nodes:
    """Split the first set of each row, without its best assignment, and keep the n_left best sets, best first."""
    best, rest = pool.map(lambda tensor: tensor[:, 0]), pool.map(lambda tensor: tensor[:, 1:])
    n_rows, n_rest = rest.value.shape
    is_branch = (best.state == 0) & (best.value > -torch.inf).unsqueeze(-1)
    if search.bound.structure.is_fixed_size:
        is_branch &= best.is_used  # an assignment that keeps all these parts cannot use others
    row, part = is_branch.nonzero(as_tuple=True)
    if len(row) == 0:
        return _without_empty(rest)
    kept = torch.where(best.is_used[row], 1, -1).to(torch.int8)
    position, flipped = torch.arange(is_branch.shape[1], device=part.device), part.unsqueeze(-1)
    state = torch.where(is_branch[row] & (position < flipped), kept, best.state[row])
    children = search.solve(row, torch.where(position == flipped, -kept, state))
    # Children are packed; `column` maps them back to their rows. Order of all nodes: the rest row by row, then the children.
    column = n_rest + (is_branch.cumsum(-1) - 1)[row, part]
    node = torch.arange(n_rows * n_rest, device=row.device).view(n_rows, n_rest)
    node = torch.cat([node, node.new_zeros(n_rows, int(column.max()) + 1 - n_rest)], 1)
    node[row, column] = torch.arange(len(row), device=row.device) + n_rows * n_rest
    value = torch.nn.functional.pad(rest.value, (0, node.shape[1] - n_rest), value=-torch.inf)
    value[row, column] = children.value
    # Stable: ties keep the order of splitting, independent of the rest of the batch.
    value, order = value.sort(dim=1, descending=True, stable=True)
    node = node.gather(1, order[:, :n_left])
    nodes = rest.map(lambda old, new: torch.cat([old.flatten(0, 1), new])[node], children)
    return _without_empty(dataclasses.replace(nodes, value=value[:, :n_left]))


def _without_empty(nodes: _Nodes) -> _Nodes:
    """Drop trailing columns that contain empty sets in all rows."""
    n_columns = int((nodes.value > -torch.inf).any(0).sum())
    return nodes.map(lambda tensor: tensor[:, :n_columns])


def _collect(found: list[_Nodes]) -> Tensor:
    """Stack the atoms found, best first; a row with fewer atoms than others repeats its last one."""
    value, atoms = (torch.stack([getattr(nodes, name) for nodes in found], 1) for name in ("value", "atoms"))
    # They are already sorted, up to rounding.
    value, order = value.sort(dim=1, descending=True, stable=True)
    last = (value > -torch.inf).sum(1, keepdim=True) - 1
    order = order.gather(1, torch.minimum(torch.arange(len(found), device=order.device), last.clamp_min(0)))
    return atoms[torch.arange(len(atoms), device=order.device).unsqueeze(1), order]
