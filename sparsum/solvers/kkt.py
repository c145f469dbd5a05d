r"""The equality-constrained problem on given atoms, batched: the linear algebra of the active set method.

For the columns A of one row (the vectors of its atoms) and weights w, the problem is

.. math:: \max_\xi\; b^\top A \xi - \tfrac12 \xi^\top A^\top W A \xi \quad\text{subject to}\quad 1^\top \xi = 1.

Its solution moves with :math:`c = A^\top b` by the *reduced inverse* :math:`K = S - S 1 1^\top S / (1^\top S 1)`, where
:math:`S = (A^\top W A + 1 1^\top)^{-1}`: :math:`\xi = p + K A^\top (b - W A p)` for every p that sums to 1. K is the block
of the atoms in the inverse of the bordered KKT matrix, and K 1 = 0: adding a constant to all vectors does not change it.
Unlike the Gram matrix, which is singular when the zero vector is an atom, :math:`A^\top W A + 1 1^\top` is regular exactly
when the atoms are affinely independent where w > 0.

All functions take rows padded to the same number of slots; an empty slot is marked by ``is_active``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: A pivot below this fraction of its diagonal entry counts as 0: the atom depends on those before it.
_DEPENDENT = 1e-10
#: From this number of entries on, it takes longer to copy a matrix than to start another product.
_LARGE = 2**20


def multiply(
    matrix: Tensor,  # shape: (n_rows, n_slots, n_columns)
    x: Tensor,  # shape: (n_rows, n_columns)
) -> Tensor:
    """Matrix-vector product per row: (n_rows, n_slots). A row times the transpose is several times faster on the CPU."""
    return torch.bmm(x.unsqueeze(1), matrix.mT).squeeze(1)


def multiply_transposed(
    matrix: Tensor,  # shape: (n_rows, n_slots, n_columns)
    x: Tensor,  # shape: (n_rows, n_slots)
) -> Tensor:
    """Matrix-vector product with the transpose per row: (n_rows, n_columns)."""
    return torch.bmm(x.unsqueeze(1), matrix).squeeze(1)


def multiply_transposed_rows(
    matrix: Tensor,  # shape: (n_rows, n_slots, n_columns)
    x: Tensor,  # shape: (n_rows, n_slots)
    index: Tensor,  # shape: (n,), rows
) -> Tensor:
    """`multiply_transposed` for some rows: (n, n_columns). Large matrices are not copied, but processed one by one."""
    if matrix.is_cuda or not len(index) or matrix[0].numel() < _LARGE:
        return multiply_transposed(matrix[index], x[index])
    return torch.stack([torch.mv(matrix[row].mT, x[row]) for row in index.tolist()])


def gap(
    vectors: Tensor,  # shape: (n_rows, n_slots, n_parts), A
    probs: Tensor,  # shape: (n_rows, n_slots)
    best: Tensor,  # shape: (n_rows, n_parts), a
    residual: Tensor,  # shape: (n_rows, n_parts), r
) -> Tensor:
    r"""The Frank-Wolfe gap :math:`\sum_z \xi_z \langle a - a_z, r \rangle` of each row: (n_rows,).

    If a is the best atom, no term is negative: unlike in :math:`\langle a - A \xi, r \rangle`, nothing cancels.
    """
    level = (best * residual).sum(-1, keepdim=True)
    return (probs * (level - multiply(vectors, residual))).sum(-1)


def lifted_gram(
    vectors: Tensor,  # shape: (n_rows, n_slots, n_parts)
    weight: Tensor,  # shape: (n_parts,)
    is_active: Tensor,  # shape: (n_rows, n_slots)
) -> Tensor:
    """A'WA + 11', with the identity in empty slots: (n_rows, n_slots, n_slots)."""
    ones = is_active.to(vectors.dtype).unsqueeze(-1)
    gram = torch.bmm(vectors * weight, vectors.mT).add_(1).mul_(ones).mul_(ones.mT)
    gram.diagonal(dim1=-2, dim2=-1).add_(1 - ones.squeeze(-1))
    return gram


@dataclass(frozen=True)
class Tangent:
    """The reduced inverse K of each row in factored form."""

    lower: Tensor  # shape: (n_rows, n_slots, n_slots), the Cholesky factor of A'WA + 11'
    level: Tensor  # shape: (n_rows, n_slots), S 1
    ones: Tensor  # shape: (n_rows, n_slots), 1 for atoms and 0 for empty slots

    @classmethod
    def attempt(cls, gram: Tensor, is_active: Tensor) -> tuple[Tangent, Tensor]:
        """Factor lifted Gram matrices, and return which are singular up to rounding; their factors are meaningless."""
        lower, info = torch.linalg.cholesky_ex(gram)
        ones = is_active.to(gram.dtype)
        return cls(lower, _solve(lower, ones) * ones, ones), info > 0

    @classmethod
    def factor(cls, gram: Tensor, is_active: Tensor) -> Tangent:
        """Factor lifted Gram matrices.

        Adds a small ridge to matrices that are singular up to rounding: this slows down iterative refinement, but does not
        change its fixed point.
        """
        tangent, is_singular = cls.attempt(gram, is_active)
        if bool(is_singular.any()):
            diagonal = gram.diagonal(dim1=-2, dim2=-1)
            ridge = torch.where(is_singular.unsqueeze(-1), 1e-12 * diagonal.sum(-1, keepdim=True), 0.0)
            tangent, _ = cls.attempt(gram + torch.diag_embed(ridge.expand_as(diagonal)), is_active)
        return tangent

    def solve(
        self,
        gradient: Tensor,  # shape: (n_rows, n_slots)
    ) -> Tensor:
        """K times a gradient A'(b - W mu): the change of the probabilities, with sum 0; differentiable in the gradient."""
        moved = _solve(self.lower, gradient * self.ones)
        return moved - self.level * (moved.sum(-1, keepdim=True) / self.level.sum(-1, keepdim=True))

    def inverse(self) -> Tensor:
        """K, with 0 in the rows and columns of empty slots: (n_rows, n_slots, n_slots)."""
        ones = self.ones.unsqueeze(-1)
        eye = torch.eye(self.lower.shape[-1], dtype=ones.dtype, device=ones.device)
        half = torch.linalg.solve_triangular(
            self.lower, eye, upper=False
        )  # torch.cholesky_inverse processes one row at a time on a GPU
        inverse = torch.bmm(half.mT, half) * ones * ones.mT
        level = self.level.unsqueeze(-1)
        return inverse - level * (level / level.sum(-2, keepdim=True)).mT


def _solve(
    lower: Tensor,  # shape: (n_rows, n_slots, n_slots)
    x: Tensor,  # shape: (n_rows, n_slots)
) -> Tensor:
    """The inverse of L L' times a vector per row: (n_rows, n_slots)."""
    column = x.unsqueeze(-1)
    if not x.is_cuda:
        return torch.cholesky_solve(column, lower).squeeze(-1)
    # As fast, and supports CUDA-graph capture with every linear algebra backend.
    half = torch.linalg.solve_triangular(lower, column, upper=False)
    solved: Tensor = torch.linalg.solve_triangular(lower.mT, half, upper=True)
    return solved.squeeze(-1)


def independent(
    gram: Tensor,  # shape: (n_rows, n_slots, n_slots), lifted
    is_active: Tensor,  # shape: (n_rows, n_slots)
) -> Tensor:
    """Which atoms are affinely independent of the active ones before them, by elimination: (n_rows, n_slots)."""
    rest, kept = gram.clone(), torch.zeros_like(is_active)
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    for slot in range(gram.shape[-1]):
        column = rest[:, :, slot].clone()
        pivot = column[:, slot]
        kept[:, slot] = is_active[:, slot] & (pivot > _DEPENDENT * diagonal[:, slot])
        scale = torch.where(kept[:, slot], -1 / torch.where(kept[:, slot], pivot, 1.0), 0.0)
        rest.addcmul_(column.unsqueeze(-1), (column * scale.unsqueeze(-1)).unsqueeze(-2))
    return kept
