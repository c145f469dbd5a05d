"""Decision diagrams against truth tables."""

from __future__ import annotations

import itertools
import math
import pickle
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import sparsum as sp
from sparsum import Formula


def is_true(formula: Formula, bits: tuple[int, ...]) -> bool:
    """By the definition, with recursion."""
    values = [is_true(operand, bits) for operand in formula.operands]
    return {
        "variable": lambda: bits[formula.number] == 1,
        "not": lambda: not values[0],
        "and": lambda: all(values),
        "or": lambda: any(values),
        "xor": lambda: values[0] != values[1],
        "exactly": lambda: sum(values) == formula.number,
    }[formula.kind]()


def vectors(n: int, formula: Formula) -> Tensor:
    found = [bits for bits in itertools.product((0, 1), repeat=n) if is_true(formula, bits)]
    return torch.tensor(found, dtype=torch.float64).reshape(-1, n)


@st.composite
def formulas(draw: st.DrawFn) -> Formula:
    def wider(inner: st.SearchStrategy[Formula]) -> st.SearchStrategy[Formula]:
        several = st.lists(inner, max_size=3)
        return st.one_of(
            inner.map(lambda f: ~f),
            st.tuples(inner, inner).map(lambda fs: fs[0] ^ fs[1]),
            st.tuples(inner, inner).map(lambda fs: fs[0] >> fs[1]),
            st.tuples(inner, inner).map(lambda fs: fs[0].equals(fs[1])),
            several.map(Formula.all_of),
            several.map(Formula.any_of),
            st.tuples(st.integers(0, 3), several).map(lambda pair: Formula.exactly(min(pair[0], len(pair[1])), pair[1])),
        )

    return draw(st.recursive(st.sampled_from(Formula.variables(4)), wider, max_leaves=8))


@given(formulas(), st.lists(st.floats(-5, 5), min_size=4, max_size=4))
def test_any_formula_against_its_truth_table(formula: Formula, entries: list[float]) -> None:
    members = vectors(4, formula)
    if not len(members):
        with pytest.raises(ValueError, match="satisfied by at least one bit vector"):
            sp.DecisionDiagram(4, formula)
        return
    structure, scores = sp.DecisionDiagram(4, formula), torch.tensor([entries], dtype=torch.float64)
    assert round(math.exp(structure.log_count())) == len(members)
    every = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)), dtype=torch.float64)
    assert torch.equal(every[structure.contains(every)], members)
    values = scores @ members.T
    torch.testing.assert_close(structure.log_partition(scores), values.logsumexp(-1))
    torch.testing.assert_close(sp.Gibbs(scores, structure).mean, values.softmax(-1) @ members)
    found = structure.topk(scores, 20)[0]
    assert found.shape == members.shape
    torch.testing.assert_close(found @ scores[0], values[0].sort(descending=True).values)
    assert len(found.unique(dim=0)) == len(members)


def test_operators_mean_what_they_say() -> None:
    a, b = Formula.variables(2)
    tables = {"&": a & b, "|": a | b, "^": a ^ b, "implies": a >> b, "equals": a.equals(b), "not": ~a}
    seen = {name: [is_true(f, bits) for bits in ((0, 0), (0, 1), (1, 0), (1, 1))] for name, f in tables.items()}
    assert seen == {
        "&": [False, False, False, True],
        "|": [False, True, True, True],
        "^": [False, True, True, False],
        "implies": [True, True, False, True],
        "equals": [True, False, False, True],
        "not": [True, True, False, False],
    }


def test_clauses_are_formulas() -> None:
    a, b, c = Formula.variables(3)
    by_clauses, by_formula = sp.DecisionDiagram(3, [[1, -2], [3]]), sp.DecisionDiagram(3, (a | ~b) & c)
    assert by_clauses == by_formula == pickle.loads(pickle.dumps(by_formula)) != sp.DecisionDiagram(3, [[1, 2], [3]])
    assert hash(by_clauses) == hash(by_formula)


def test_long_formulas_and_many_bits() -> None:
    x = Formula.variables(300)
    parity = x[0]
    for bit in x[1:]:
        parity = parity ^ bit
    structure = sp.DecisionDiagram(300, parity)
    torch.testing.assert_close(structure.log_count(), 299 * math.log(2))
    best = structure.topk(torch.randn(2, 300, generator=torch.Generator().manual_seed(0)), 3)
    assert (best.sum(-1) % 2 == 1).all()
    half = sp.DecisionDiagram(60, Formula.exactly(30, x[:60]))
    scores = torch.randn(2, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(half.log_partition(scores), sp.Subset(60, 30).log_partition(scores))
    torch.testing.assert_close(sp.Gibbs(scores, half).mean, sp.Gibbs(scores, sp.Subset(60, 30)).mean)


def test_wrong_arguments_are_named() -> None:
    x = Formula.variables(40)
    with pytest.raises(ValueError, match="got one that is always false"):
        sp.DecisionDiagram(2, [[1], [-1]])
    with pytest.raises(ValueError, match="at most 1000 nodes, also while it is built"):
        sp.DecisionDiagram(40, Formula.all_of(x[i].equals(x[39 - i]) for i in range(20)), most_nodes=1000)
    with pytest.raises(ValueError, match="at most 30 nodes"):
        sp.DecisionDiagram(40, x[39], most_nodes=30)
    with pytest.raises(ValueError, match="variables below n, 2, got 2"):
        sp.DecisionDiagram(2, x[2])
    with pytest.raises(ValueError, match="clauses must have entries up to n, 3, got 4"):
        sp.DecisionDiagram(3, [[4, 1]])
    with pytest.raises(TypeError, match="formula must be a Formula or a list of clauses, got"):
        sp.DecisionDiagram(2, "a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must consist of formulas"):
        x[0] & True  # type: ignore[operator]
    with pytest.raises(ValueError, match="k must be from 0 to 2, got 3"):
        Formula.exactly(3, x[:2])
    with pytest.raises(ValueError, match="got 0"):
        Formula.of_clauses([[0]])
    with pytest.raises(TypeError, match="instead of and, or and not"):
        bool(x[0] and x[1])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "oxidd.bdd", None)
    with pytest.raises(ImportError, match=r"pip install 'sparsum\[logic\]'"):
        sp.DecisionDiagram(1, [[1]])
