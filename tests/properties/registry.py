"""Which properties there are, and which public names they are about.

A property is a function of a `Draw` that raises if it does not hold. `python -m tests.properties.fuzz` tries many cases.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass

import sparsum as sp
from tests.properties.drawing import Draw

Check = Callable[[Draw], None]


@dataclass(frozen=True)
class Property:
    """A check, the public names that it is about, and its share of the cases."""

    check: Check
    names: frozenset[str]
    weight: int


PROPERTIES: dict[str, Property] = {}

#: What the tables of public names are read from, and what stands in front of the names.
PLACES = {
    "": sp,
    "estimators.": sp.estimators,
    "solvers.": sp.solvers,
    "nn.": sp.nn,
    "testing.": sp.testing,
    "distributed.": sp.distributed,
}


def about(*names: str, weight: int = 1) -> Callable[[Check], Check]:
    """Register a property of public names."""

    def register(check: Check) -> Check:
        PROPERTIES[check.__name__] = Property(check, frozenset(names), weight)
        return check

    return register


def public_names() -> set[str]:
    """The names of all that users import."""
    found = set()
    for prefix, place in PLACES.items():
        listed = getattr(place, "__all__", vars(place))
        found |= {
            prefix + name
            for name in listed
            if not name.startswith("_") and not isinstance(vars(place)[name], types.ModuleType)
        }
    return found


def summary(check: Check) -> str:
    """What a property says."""
    return (inspect.getdoc(check) or "").splitlines()[0]
