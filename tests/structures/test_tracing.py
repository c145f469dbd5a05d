"""Tables that structures keep are never those of a trace: graphs and fake tensors leave later calls as they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import sparsum as sp


class Best(torch.nn.Module):
    """The k best, to be exported."""

    def __init__(self, structure: sp.AbstractStructure, k: int) -> None:
        super().__init__()
        self.structure, self.k = structure, k

    def forward(self, scores: Tensor) -> Tensor:
        return self.structure.topk(scores, self.k)


def export(best: Best, scores: Tensor) -> None:
    torch.export.export(best, (scores,))


def fake(best: Best, scores: Tensor) -> None:
    with FakeTensorMode() as mode:
        assert best(mode.from_tensor(scores)).shape[1] == best.k


def trace(best: Best, scores: Tensor) -> None:
    make_fx(best)(scores)


def functionalize(best: Best, scores: Tensor) -> None:
    torch.func.functionalize(best)(scores)


def infer(best: Best, scores: Tensor) -> None:
    with torch.inference_mode():
        best(scores)


OBSERVERS: list[Callable[[Best, Tensor], None]] = [export, fake, trace, functionalize, infer]


# Numbers k that no other test has, so that the tables are made here.
@pytest.mark.parametrize("observe", OBSERVERS)
@pytest.mark.parametrize(
    "structure", [sp.Bits(17), sp.Budget(13, 6), sp.Subset(13, 6), sp.Groups(3, 7)], ids=lambda s: type(s).__name__
)
def test_the_first_call_may_be_traced(structure: sp.AbstractStructure, observe: Callable[[Best, Tensor], None]) -> None:
    k = 23 + OBSERVERS.index(observe)
    scores = torch.randn(2, *structure.score_shape, generator=torch.Generator().manual_seed(0))
    observe(Best(structure, k), scores)
    atoms = structure.topk(scores, k)
    assert type(atoms) is Tensor
    assert len(atoms[0].flatten(1).unique(dim=0)) == k
    q = sp.topk_sparsemax(scores.requires_grad_(), structure, k)  # tables of inference mode would fail in backward
    q.entropy().sum().backward()


def test_tables_of_samplers_may_be_made_in_inference_mode() -> None:
    scores = torch.zeros(1, 11, requires_grad=True)

    def loss(z: Tensor) -> Tensor:
        return z.sum(-1)

    def step() -> list[int]:
        generator = torch.Generator().manual_seed(0)
        estimate = sp.estimators.UnorderedSet(11)(scores, sp.Bits(11), loss, generator=generator)
        bound = sp.estimators.distinct_bound(scores, sp.Bits(11), loss, k=6, generator=generator)
        if torch.is_grad_enabled():
            (estimate.surrogate - bound.surrogate).sum().backward()
        return [*estimate.calls.tolist(), *bound.calls.tolist()]

    with torch.inference_mode():
        first = step()
    assert first == step() == [11, 6]
