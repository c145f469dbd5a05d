"""Estimators run as they are inside of compiled functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum.estimators import Estimate
from sparsum.estimators.problem import Problem
from sparsum.estimators.uncompiled import leave_uncompiled

# The compiler itself looks at it.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


class Watched(sp.estimators.ScoreFunction):
    """Notes for each estimate whether the compiler is tracing it."""

    def __init__(self) -> None:
        super().__init__()
        self.was_compiled: list[bool] = []

    def estimate(self, problem: Problem) -> Estimate:
        self.was_compiled.append(torch.compiler.is_compiling())
        return super().estimate(problem)


def graphs_of(function: Callable[[Tensor], Tensor], sizes: range, *, fullgraph: bool = False) -> list[list[str]]:
    """The operations of all graphs that are compiled for a function, which is called with scores of several sizes."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    torch.compiler.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=fullgraph)
    for size in sizes:
        compiled(torch.zeros(4, size, requires_grad=True))
    return graphs


def step_of(estimator: sp.estimators.AbstractEstimator) -> Callable[[Tensor], Tensor]:
    def step(scores: Tensor) -> Tensor:
        return estimator(2 * scores, sp.Bits(scores.shape[-1]), lambda z, row: z.square().sum(-1)).surrogate

    return step


def test_a_compiled_step_breaks_at_the_estimator() -> None:
    estimator = Watched()
    assert graphs_of(step_of(estimator), range(3, 4)) == [["<built-in function mul>"]]
    assert estimator.was_compiled == [False]


def test_it_breaks_there_also_once_the_compiler_gives_up() -> None:
    """After some recompilations the compiler leaves a function alone, and must leave the estimator alone there too."""
    estimator, n = Watched(), 2 * torch._dynamo.config.recompile_limit
    graphs = graphs_of(step_of(estimator), range(2, 2 + n))
    assert all(graph == ["<built-in function mul>"] for graph in graphs)
    assert estimator.was_compiled == [False] * n


def test_a_method_is_not_compiled_at_its_first_call_either() -> None:
    """Which is when it is decorated."""

    class Sine(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin()

    leave_uncompiled(Sine, "forward")
    first, module = Sine.forward, Sine()
    for _ in range(2):
        assert graphs_of(lambda x: module(x + 1) * 2, range(3, 4)) == [
            ["<built-in function add>"],
            ["<built-in function mul>"],
        ]
        assert Sine.forward is not first
        assert Sine.forward.__name__ == "forward"


def test_a_full_graph_is_refused_by_name() -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"AbstractEstimator\.forward"):
        graphs_of(step_of(Watched()), range(3, 4), fullgraph=True)
