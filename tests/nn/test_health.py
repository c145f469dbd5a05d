"""The monitor counts saturated steps in a row, and warns once."""

from __future__ import annotations

import warnings

import pytest
import torch

import sparsum as sp
from sparsum.nn import SaturationMonitor

SATURATED = torch.tensor([[5.0, 0.0, 0.0], [0.0, 9.0, 0.0]])
ALIVE = torch.tensor([[5.0, 0.0, 0.0], [0.0, 0.1, 0.0]])


def made(scores: torch.Tensor) -> sp.SparseDistribution:
    return sp.sparsemap(scores, sp.OneOf(3))


def test_one_warning_after_many_saturated_steps_in_a_row() -> None:
    monitor = SaturationMonitor(patience=5)
    for _ in range(4):
        monitor(made(SATURATED))
    monitor(made(ALIVE))  # the fifth step, at which the count is read
    assert monitor.check() == 0
    for _ in range(4):
        monitor(made(SATURATED))
    q = made(SATURATED)
    with pytest.warns(UserWarning, match="in the last 5 steps every row had a single atom.*ScoreNorm") as caught:
        found = monitor(q)
    assert found is q
    assert len(caught) == 1
    for _ in range(20):  # warnings are errors here, and there is no second one
        monitor(made(SATURATED))
    assert monitor.check() == 25


def test_what_is_not_counted() -> None:
    monitor = SaturationMonitor(patience=2)
    for _ in range(10):
        monitor(made(SATURATED[:0]))
    monitor.eval()
    for _ in range(10):
        monitor(made(SATURATED))
    assert monitor.check() == 0
    assert monitor.state_dict() == {}


def test_padded_tables_have_rows_of_one_atom() -> None:
    """With ``max_atoms`` entries without mass fill the rows, and are not atoms."""
    monitor = SaturationMonitor(patience=100)
    monitor(sp.sparsemap(SATURATED, sp.OneOf(3), max_atoms=2))
    assert monitor.check() == 1
    monitor(sp.sparsemap(ALIVE, sp.OneOf(3), max_atoms=2))
    assert monitor.check() == 0


def test_a_compiled_model_counts_and_is_checked_outside() -> None:
    torch.compiler.reset()
    monitor = SaturationMonitor(patience=3)

    def step(scores: torch.Tensor) -> torch.Tensor:
        q: sp.SparseDistribution = monitor(sp.sparsemap(scores, sp.OneOf(3), max_atoms=2))
        return q.entropy()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            compiled(SATURATED)
    with pytest.warns(UserWarning, match="in the last 4 steps"):
        assert monitor.check() == 4


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="patience must be at least 1"):
        SaturationMonitor(0)
    with pytest.raises(TypeError, match="q must be a SparseDistribution, got Tensor"):
        SaturationMonitor()(torch.zeros(3))
