"""Some cases of every property at each run, a table of what they are about, and what they have found before."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

import sparsum as sp
from tests.properties import fuzz
from tests.properties.drawing import Draw
from tests.properties.every import PROPERTIES
from tests.properties.registry import public_names


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_few_cases(name: str) -> None:
    """The same cases at every run; ``make fuzz`` tries more."""
    each = PROPERTIES[name]

    @hypothesis.settings(max_examples=4 + 5 * each.weight, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(st.data())
    def attempt(data: st.DataObject) -> None:
        each.check(Draw(data))

    attempt()


def test_every_public_name_has_a_property() -> None:
    """A new name needs a property, and a removed one leaves none behind."""
    covered = frozenset().union(*(each.names for each in PROPERTIES.values()))
    assert public_names() - covered == set(), "public names without a property in tests/properties"
    assert covered - public_names() == set(), "properties of names that are not public"
    assert len(covered) > 90


def test_a_run_counts_its_cases_and_names_what_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """A property that does not hold is reported with its smallest case, and in the exit status."""
    assert fuzz.main(["--cases", "20", "--only", "embeddings", "monitors"]) == 0
    text = capsys.readouterr().out
    assert "embeddings" in text
    assert "cases of 2 properties with seed 0" in text

    def wrong(draw: Draw) -> None:
        """No integer is larger than 3."""
        assert draw.integer(0, 100) <= 3

    n, _, reason = fuzz.run("wrong", PROPERTIES["monitors"].__class__(wrong, frozenset(), 1), 100, seed=1)
    assert n >= 5
    assert reason is not None
    assert "Draw 1: 4" in reason


def test_the_k_best_trees_where_low_and_large_scores_compete() -> None:
    """Sums of scores of 1e30 and -1e30 beside zeros: the order is that of the sums."""
    t = torch.tensor([[2.0, 0.0, -2.0], [1.0, -1.0, -1.0], [0.0, 1.0, -1.0]], dtype=torch.float64)
    wanted = sp.Tree(3).topk(t, 7)
    for size in (1e15, 1e16, 1e30, 2.0**200):
        assert torch.equal(sp.Tree(3).topk(size * t, 7)[:3], wanted[:3])


def test_the_k_best_of_several_low_scores() -> None:
    """Two parts at -1e30 are better than one at -5e30; assignments without low parts keep their order before these."""
    t = torch.tensor([[1.0, 2.0, -5e30], [0.5, 0.25, -1e30], [0.0, -1e30, 3.0]], dtype=torch.float64)
    for structure in (sp.Tree(3), sp.Tree(3, single_root=True)):
        atoms = structure.topk(t, 16)
        values = structure.score(t[None], atoms, torch.zeros(len(atoms)).long())
        assert bool((values.diff() <= 1e15).all())
        few = structure.topk(t, 2)
        assert torch.equal(few, atoms[:2])


def test_an_empty_batch_of_indices_is_a_distribution() -> None:
    """As `from_dense` makes it."""
    q = sp.SparseDistribution.from_dense(torch.zeros(0, 3))
    again = sp.SparseDistribution(q.atoms, q.probs, q.row, batch_shape=(0,), structure=sp.OneOf(3))
    assert again.mean.shape == (0, 3)
