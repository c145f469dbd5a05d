"""Assignments to vectors."""

from __future__ import annotations

import torch
from torch import Tensor


def embed(z: Tensor, weight: Tensor) -> Tensor:
    r"""Embed assignments, given as indices or as (relaxed) vectors: :math:`e_z^\top W` or :math:`z^\top W`.

    Indices are looked up and vectors are multiplied, with the same result for an index and its one-hot vector. A loss that
    embeds by this function takes the atoms of exact sums as well as the relaxed vectors of Gumbel-softmax.

    >>> weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> embed(torch.tensor([1, 0]), weight)
    tensor([[3., 4.],
            [1., 2.]])
    >>> embed(torch.tensor([[0.5, 0.5]]), weight)
    tensor([[2., 3.]])

    Args:
        z: integers of shape (*batch,), or floats or booleans of shape (*batch, n).
        weight: one vector per index, of shape (n, size); or a table for each of several groups, (n_groups, n, size), where
            the batch of z ends in the groups.

    Returns:
        A tensor of shape (*batch, size).

    Raises:
        TypeError: if ``weight`` is not a floating-point tensor, or ``z`` a complex one.
        ValueError: if the shapes do not fit.
    """
    for name, value in (("z", z), ("weight", weight)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if z.is_complex():
        raise TypeError(f"z must hold integers, booleans or floats, got {z.dtype}")
    if not weight.is_floating_point():
        raise TypeError(f"weight must have a floating-point dtype, got {weight.dtype}")
    if weight.ndim == 3:
        return _embed_groups(z, weight)
    if weight.ndim != 2:
        raise ValueError(f"weight must have shape (n, size) or (n_groups, n, size), got {tuple(weight.shape)}")
    if z.is_floating_point() or z.dtype == torch.bool:
        if z.ndim == 0 or z.shape[-1] != len(weight):
            raise ValueError(
                f"z must have shape (*batch, {len(weight)}) for weight of shape {tuple(weight.shape)}, got {tuple(z.shape)}"
            )
        return z.to(weight.dtype) @ weight
    return torch.nn.functional.embedding(z.long(), weight)


def _embed_groups(
    z: Tensor,  # shape: (*batch, n_groups), or (*batch, n_groups, n)
    weight: Tensor,  # shape: (n_groups, n, size)
) -> Tensor:
    """Each group with its own table: (*batch, n_groups, size)."""
    n_groups, n, size = weight.shape
    is_vector = z.is_floating_point() or z.dtype == torch.bool
    wanted = (n_groups, n) if is_vector else (n_groups,)
    if tuple(z.shape[max(z.ndim - len(wanted), 0) :]) != wanted:
        shape = ", ".join(["*batch", *map(str, wanted)])
        raise ValueError(f"z must have shape ({shape}) for weight of shape {tuple(weight.shape)}, got {tuple(z.shape)}")
    if is_vector:
        return torch.einsum("...gn,gns->...gs", z.to(weight.dtype), weight)
    first = torch.arange(n_groups, device=z.device) * n
    return torch.nn.functional.embedding(z.long() + first, weight.reshape(n_groups * n, size))
