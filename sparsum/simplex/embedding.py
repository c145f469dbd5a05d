"""Embeddings of assignments."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.simplex.arguments import can_look_at


def embed(z: Tensor, weight: Tensor) -> Tensor:
    r"""Embed assignments, given as indices or as (relaxed) vectors: :math:`e_z^\top W` or :math:`z^\top W`.

    Indices are looked up and vectors are multiplied; an index and its one-hot vector give the same result. A loss that uses
    this function accepts both the atoms of exact sums and the relaxed vectors of Gumbel-softmax.

    >>> weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> embed(torch.tensor([1, 0]), weight)
    tensor([[3., 4.],
            [1., 2.]])
    >>> embed(torch.tensor([[0.5, 0.5]]), weight)
    tensor([[2., 3.]])

    Args:
        z: integers of shape (*batch,), or floats or booleans of shape (*batch, n).
        weight: one vector per index, of shape (n, size); or one table per group, of shape (n_groups, n, size), where the
            last dimension of the batch of z is the group.

    Returns:
        A tensor of shape (*batch, size).

    Raises:
        IndexError: if an index is negative or not less than n. On a GPU this is a device-side assertion, as for
            `torch.nn.functional.embedding`: checking the indices would need a host-device synchronization.
        TypeError: if ``weight`` is not a floating-point tensor, or ``z`` is a complex tensor.
        ValueError: if the shapes of ``z`` and ``weight`` do not match.
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
    return _look_up(z.long(), weight, z, weight)


def _embed_groups(
    z: Tensor,  # shape: (*batch, n_groups), or (*batch, n_groups, n)
    weight: Tensor,  # shape: (n_groups, n, size)
) -> Tensor:
    """Embed each group with its own table: (*batch, n_groups, size)."""
    n_groups, n, size = weight.shape
    is_vector = z.is_floating_point() or z.dtype == torch.bool
    wanted = (n_groups, n) if is_vector else (n_groups,)
    if tuple(z.shape[max(z.ndim - len(wanted), 0) :]) != wanted:
        shape = ", ".join(["*batch", *map(str, wanted)])
        raise ValueError(f"z must have shape ({shape}) for weight of shape {tuple(weight.shape)}, got {tuple(z.shape)}")
    if is_vector:
        return torch.einsum("...gn,gns->...gs", z.to(weight.dtype), weight)
    first = torch.arange(n_groups, device=z.device) * n
    # An out-of-range index would read the table of a neighbouring group: move it past the end of all tables.
    places = torch.where((z < 0) | (z >= n), n_groups * n, z.long() + first)
    return _look_up(places, weight.reshape(n_groups * n, size), z, weight)


def _look_up(places: Tensor, table: Tensor, z: Tensor, weight: Tensor) -> Tensor:
    """Look up rows of a table; an error names the indices in ``z`` that are out of range for ``weight``."""
    if torch.compiler.is_compiling():  # the error is raised when the graph runs, outside of this try statement
        return torch.nn.functional.embedding(places, table)
    try:
        return torch.nn.functional.embedding(places, table)
    except IndexError as error:
        n = weight.shape[-2]
        seen = z[(z < 0) | (z >= n)].unique()[:5].tolist() if can_look_at(z) else "others"
        raise IndexError(
            f"z must hold indices from 0 to {n - 1} for weight of shape {tuple(weight.shape)}, got {seen}"
        ) from error
