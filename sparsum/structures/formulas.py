"""Propositional formulas over bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from sparsum.arguments import check_int, kind_of

T = TypeVar("T")

#: Combines the values of the operands of a formula: its kind, its number, and the values.
Combine = Callable[[str, int, list[T]], T]


@dataclass(frozen=True, eq=False)
class Formula:
    """A propositional formula: built from `variables` by Python's operators.

    ``a & b``, ``a | b`` and ``~a`` are and, or and not; ``a ^ b`` is true if exactly one of them is; ``a >> b`` means that a
    implies b; ``a.equals(b)``, that both are the same. `all_of`, `any_of` and `exactly` take any number of formulas.

    >>> a, b, c = Formula.variables(3)
    >>> (a >> b) & Formula.exactly(2, [a, b, ~c])
    Formula(3 variables, 5 operations)
    """

    kind: Literal["variable", "not", "and", "or", "xor", "exactly"]
    number: int = 0  # of the variable, or of the operands that are true
    operands: tuple[Formula, ...] = ()

    @classmethod
    def variables(cls, n: int) -> list[Formula]:
        """The formulas of n bits: that a bit is 1."""
        check_int("n", n, least=1)
        return [cls("variable", number) for number in range(n)]

    @classmethod
    def all_of(cls, formulas: Iterable[Formula]) -> Formula:
        """Whether all formulas are true; true for none."""
        return cls("and", operands=_checked(formulas))

    @classmethod
    def any_of(cls, formulas: Iterable[Formula]) -> Formula:
        """Whether one or more of the formulas are true; false for none."""
        return cls("or", operands=_checked(formulas))

    @classmethod
    def exactly(cls, k: int, formulas: Iterable[Formula]) -> Formula:
        """Whether k of the formulas are true."""
        operands = _checked(formulas)
        check_int("k", k, least=0, most=len(operands))
        return cls("exactly", k, operands)

    @classmethod
    def of_clauses(cls, clauses: Sequence[Sequence[int]]) -> Formula:
        """A conjunction of clauses as in DIMACS files: i stands for bit i - 1 being 1, and -i for its being 0."""
        literals = [[_literal(number) for number in clause] for clause in clauses]
        return cls.all_of(cls.any_of(clause) for clause in literals)

    def __and__(self, other: Formula) -> Formula:
        return Formula.all_of((self, other))

    def __or__(self, other: Formula) -> Formula:
        return Formula.any_of((self, other))

    def __invert__(self) -> Formula:
        return Formula("not", operands=(self,))

    def __xor__(self, other: Formula) -> Formula:
        return Formula("xor", operands=_checked((self, other)))

    def __rshift__(self, other: Formula) -> Formula:
        return ~self | other

    def equals(self, other: Formula) -> Formula:
        """Whether both formulas are true, or both are false."""
        return ~(self ^ other)

    def __bool__(self) -> bool:
        raise TypeError("the truth of a formula depends on bits: write &, | and ~ instead of and, or and not")

    def __repr__(self) -> str:
        parts = self._parts()
        names = {part.number for part in parts if part.kind == "variable"}
        return f"Formula({len(names)} variables, {sum(part.kind != 'variable' for part in parts)} operations)"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy a list of all formulas, without recursion."""
        parts = self._parts()
        places = {id(part): place for place, part in enumerate(parts)}
        rows = [(part.kind, part.number, tuple(places[id(each)] for each in part.operands)) for part in parts]
        return _joined, (rows,)

    @property
    def n_variables(self) -> int:
        """One more than the number of the last variable; 0 without any."""
        return max((part.number + 1 for part in self._parts() if part.kind == "variable"), default=0)

    def fold(self, combine: Combine[T]) -> T:
        """Compute a value from the values of the operands, each formula once, without recursion."""
        values: dict[int, T] = {}
        for part in self._parts():
            values[id(part)] = combine(part.kind, part.number, [values[id(each)] for each in part.operands])
        return values[id(self)]

    def _parts(self) -> list[Formula]:
        """All formulas in this one, operands first."""
        found: dict[int, Formula] = {}
        waiting: list[tuple[Formula, bool]] = [(self, False)]
        while waiting:
            part, is_ready = waiting.pop()
            if id(part) in found:
                continue
            if is_ready:
                found[id(part)] = part
            else:
                waiting.append((part, True))
                waiting.extend((each, False) for each in part.operands)
        return list(found.values())


def _joined(rows: list[tuple[Any, int, tuple[int, ...]]]) -> Formula:
    """The last of several formulas, each with the places of its operands before it."""
    parts: list[Formula] = []
    for kind, number, places in rows:
        parts.append(Formula(kind, number, tuple(parts[place] for place in places)))
    return parts[-1]


def _checked(formulas: Iterable[Any]) -> tuple[Formula, ...]:
    operands = tuple(formulas)
    for operand in operands:
        if not isinstance(operand, Formula):
            hint = "; for equality, write a.equals(b) instead of a == b" if kind_of(operand) == "bool" else ""
            raise TypeError(f"a formula must consist of formulas such as Formula.variables(3), got {kind_of(operand)}{hint}")
    return operands


def _literal(number: int) -> Formula:
    check_int("an entry of a clause", number)
    if number == 0:
        raise ValueError("clauses must have entries from 1, or from -1 for bits that are 0, got 0")
    variable = Formula("variable", abs(number) - 1)
    return variable if number > 0 else ~variable
