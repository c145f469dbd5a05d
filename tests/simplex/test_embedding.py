"""Indices and vectors to embeddings, and indices that do not fit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

import sparsum as sp


def weights(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_groups_with_a_table_each() -> None:
    weight, z = weights(4, 5, 3), torch.randint(0, 5, (7, 4), generator=torch.Generator().manual_seed(0))
    by_index = sp.embed(z, weight)
    by_hand = torch.stack([torch.stack([weight[g, z[i, g]] for g in range(4)]) for i in range(7)])
    torch.testing.assert_close(by_index, by_hand)
    torch.testing.assert_close(sp.embed(sp.Groups(4, 5).vectors(z), weight), by_hand)
    with pytest.raises(ValueError, match=r"z must have shape \(\*batch, 4, 5\) .* got \(7, 5\)"):
        sp.embed(torch.zeros(7, 5), weight)
    with pytest.raises(ValueError, match=r"z must have shape \(\*batch, 4\) .* got \(7, 3\)"):
        sp.embed(z[:, :3], weight)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
@pytest.mark.parametrize("wrong", [-1, 5, 9, -6])
def test_an_index_out_of_range_is_named(wrong: int, dtype: torch.dtype) -> None:
    """Also where the tables of groups lie next to each other, so that it would be an index of a neighbour."""
    for weight, z in (
        (weights(5, 3), torch.tensor([[0, 4], [wrong, 1]])),
        (weights(2, 5, 3), torch.tensor([[0, 4], [wrong, 1]])),
        (weights(2, 5, 3), torch.tensor([[0, 4], [1, wrong]])),
    ):
        with pytest.raises(IndexError) as caught:
            sp.embed(z.to(dtype), weight)
        assert f"z must hold indices from 0 to 4 for weight of shape {tuple(weight.shape)}, got [{wrong}]" in str(
            caught.value
        )


def test_an_index_out_of_range_where_one_may_not_look() -> None:
    """An error of torch itself, never the embedding of another index."""
    for weight, z in ((weights(5, 3), torch.tensor([[0, 4], [1, 5]])), (weights(2, 5, 3), torch.tensor([[0, 4], [5, 1]]))):
        with pytest.raises(IndexError, match="indices from 0 to 4"):
            torch.func.vmap(sp.embed, in_dims=(0, None))(z, weight)
        compiled = torch.compile(sp.embed, backend="eager", fullgraph=True)
        for wrong in (z, torch.where(z == 5, -1, z)):
            with pytest.raises(IndexError):
                compiled(wrong, weight)


def test_transforms_graphs_and_fake_tensors() -> None:
    for weight in (weights(5, 3), weights(2, 5, 3)):
        z = torch.tensor([[0, 4], [3, 1]])
        wanted = sp.embed(z, weight)
        torch.testing.assert_close(torch.func.vmap(sp.embed, in_dims=(0, None))(z, weight), wanted)
        torch.testing.assert_close(torch.compile(sp.embed, backend="aot_eager", fullgraph=True)(z, weight), wanted)
        with FakeTensorMode() as mode:
            assert sp.embed(mode.from_tensor(z), mode.from_tensor(weight)).shape == wanted.shape
        assert sp.embed(z.to("meta"), weight.to("meta")).shape == wanted.shape


def test_derivatives() -> None:
    z = torch.tensor([[0, 4], [3, 1], [0, 0]])
    for weight in (weights(5, 3), weights(2, 5, 3)):
        assert torch.autograd.gradcheck(lambda weight: sp.embed(z, weight), (weight.requires_grad_(),))
