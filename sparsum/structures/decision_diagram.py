"""Bit vectors that satisfy a formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsum.arguments import check_int, kind_of
from sparsum.structures.dag import Graph
from sparsum.structures.formulas import Formula
from sparsum.structures.walks import AbstractBitWalks

#: Results of operations that are kept while a diagram is built.
_CACHE_SIZE = 2**16


class DecisionDiagram(AbstractBitWalks):
    r"""The vectors of n bits that satisfy a propositional formula.

    .. math:: a_z^\top t = z^\top t, \quad z \in \{0, 1\}^n, \; z \text{ satisfies the formula}

    Scores have shape (*batch, n). Atoms are 0/1 vectors in the dtype of the scores, (n_atoms, n).

    >>> import sparsum as sp
    >>> a, b, c = sp.Formula.variables(3)
    >>> rule = DecisionDiagram(3, (a >> b) & (b ^ c))  # a implies b, and either b or c
    >>> sp.Gibbs(torch.zeros(3), rule).mean  # of the vectors 010, 110 and 001
    tensor([0.3333, 0.6667, 0.3333])
    >>> rule.argmax(torch.tensor([2.0, -1.0, 0.5]))
    tensor([1., 1., 0.])

    The formula is compiled to an ordered binary decision diagram by the package ``oxidd``, which the extra ``logic`` of this
    package installs. Its bits are decided in the order of their numbers, on which the size of the diagram depends: bits that
    depend on each other should be close. The paths of the diagram, as in `sparsum.Paths`, are the vectors, so that best
    ones, sums and samples take time in proportion to its size.

    Args:
        n: the number of bits, at least 1.
        formula: a `sparsum.Formula`, or a list of clauses, each a list of numbers: i for bit i - 1 being 1, -i for its being
            0. All of the clauses must have one that is true.
        most_nodes: the largest size of the diagram, also while it is built.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if the formula has more variables than n, if no vector satisfies it, or if the diagram is too large.
        ImportError: if ``oxidd`` is not installed.

    References:
        - Graph-based algorithms for Boolean function manipulation (Bryant, 1986), https://doi.org/10.1109/TC.1986.1676819
        - A semantic loss function for deep learning with symbolic knowledge (Xu, Zhang, Friedman, Liang & Van den Broeck,
          2018), on its log-partition function, https://arxiv.org/abs/1711.11157
    """

    def __init__(
        self,
        n: int,
        formula: Formula | Sequence[Sequence[int]],
        *,
        most_nodes: int = 2**18,
    ) -> None:
        check_int("n", n, least=1)
        check_int("most_nodes", most_nodes, least=1)
        what, first = "formula must have variables below", 0
        if isinstance(formula, (list, tuple)):
            what, first, formula = "clauses must have entries up to", 1, Formula.of_clauses(formula)
        if not isinstance(formula, Formula):
            hint = "; for equality, write a.equals(b) instead of a == b" if kind_of(formula) == "bool" else ""
            raise TypeError(f"formula must be a Formula or a list of clauses, got {kind_of(formula)}{hint}")
        if formula.n_variables > n:
            raise ValueError(f"{what} n, {n}, got {formula.n_variables - 1 + first}")
        self._n, self._formula = n, formula
        self._graph = Graph.of(*_edges_of(_compiled(n, formula, most_nodes), n, most_nodes))

    def __repr__(self) -> str:
        return f"DecisionDiagram({self._n} bits, {self._graph.n_vertices} nodes)"

    def __eq__(self, other: object) -> bool:
        """Whether the same vectors satisfy both formulas: diagrams of the same vectors are the same."""
        if not isinstance(other, DecisionDiagram):
            return NotImplemented
        pairs = zip(self._described(), other._described(), strict=True)
        return self._n == other._n and all(torch.equal(ours, theirs) for ours, theirs in pairs)

    def _described(self) -> tuple[Tensor, Tensor, Tensor]:
        assert self._graph.parts is not None
        return self._graph.tails, self._graph.heads, self._graph.parts

    def __hash__(self) -> int:
        return hash((DecisionDiagram, self._n, self._graph.n_edges))

    @property
    def score_shape(self) -> tuple[int]:
        """(n,)."""
        return (self._n,)

    @property
    def graph(self) -> Graph:
        """Vertices are nodes of the diagram, one level for each bit; of two edges, one sets the bit."""
        return self._graph

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms, n)
    ) -> Tensor:
        """Whether atoms are bits that satisfy the formula: (n_atoms,)."""
        bits, every = (atoms == 1).unbind(-1), torch.ones(len(atoms), dtype=torch.bool, device=atoms.device)

        def combine(kind: str, number: int, values: list[Tensor]) -> Tensor:
            if kind == "variable":
                return bits[number]
            if kind == "not":
                return ~values[0]
            if kind == "xor":
                return values[0] ^ values[1]
            if kind == "and":
                return torch.stack([every, *values]).all(0)
            n_true = torch.stack([~every, *values]).sum(0)
            return n_true == number if kind == "exactly" else n_true > 0

        return self._formula.fold(combine) & ((atoms == 0) | (atoms == 1)).all(-1)


def _compiled(n: int, formula: Formula, most_nodes: int) -> Any:
    """The function of a formula in OxiDD, whose nodes are decided in the order of bits."""
    try:
        from oxidd.bdd import BDDManager
        from oxidd.util import DDMemoryError
    except ImportError as error:
        raise ImportError("DecisionDiagram needs oxidd, which is not installed: pip install 'sparsum[logic]'") from error
    try:
        manager = BDDManager(most_nodes, _CACHE_SIZE, 1)
        manager.add_vars(n)
        true, false = manager.true(), manager.false()

        def combine(kind: str, number: int, values: list[Any]) -> Any:
            if kind == "variable":
                return manager.var(number)
            if kind == "not":
                return ~values[0]
            if kind == "xor":
                return values[0] ^ values[1]
            if kind == "exactly":
                return _exactly(number, values, true, false)
            found = true if kind == "and" else false
            for value in values:
                found = found & value if kind == "and" else found | value
            return found

        function = formula.fold(combine)
    except DDMemoryError as error:
        raise ValueError(_too_large(most_nodes)) from error
    if not function.satisfiable():
        raise ValueError("formula must be satisfied by at least one bit vector, got one that is always false")
    return function


def _exactly(number: int, values: list[Any], true: Any, false: Any) -> Any:
    """Whether so many of the values are true: from the last to the first, how many of the rest are."""
    counts = [true, *[false] * number]  # whether as many of the values so far are true
    for value in values:
        lower = [false, *counts[:-1]]
        counts = [value.ite(one_less, same) for one_less, same in zip(lower, counts, strict=True)]
    return counts[number]


def _edges_of(function: Any, n: int, most_nodes: int) -> tuple[Tensor, Tensor]:
    """The edges of a diagram in which no path skips a bit, and the bit that each sets, or n."""
    edges, parts = [], []
    level, n_nodes = {function: 0}, 1
    for bit in range(n):
        following: dict[Any, int] = {}
        for node, vertex in level.items():
            is_decided = node.node_level() == bit
            for part, child in zip((bit, n), node.cofactors() if is_decided else (node, node), strict=True):
                if not child.satisfiable():
                    continue
                if child not in following:
                    following[child] = n_nodes
                    n_nodes += 1
                edges.append((vertex, following[child]))
                parts.append(part)
        level = following
        if n_nodes > most_nodes:
            raise ValueError(_too_large(most_nodes))
    return torch.tensor(edges, device="cpu"), torch.tensor(parts, device="cpu")


def _too_large(most_nodes: int) -> str:
    return (
        f"formula must have a diagram of at most {most_nodes} nodes, also while it is built: number bits that depend on "
        "each other close together, or raise most_nodes"
    )
