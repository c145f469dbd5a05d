"""What reports know of an experiment: one of this package, or of one's own training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparsum_experiments.registry import NAMES, experiment_class
from sparsum_experiments.runs import Run


@dataclass(frozen=True)
class Kind:
    """An experiment.

    Args:
        methods: in the order of tables.
        criterion: the validation metric by which methods are compared; empty if there is none.
        own_criteria: of methods that are chosen by another one.
        sign: 1 if a larger criterion is better, -1 if a smaller one is.
        is_own: whether it is not one of this package.
    """

    methods: tuple[str, ...]
    criterion: str
    own_criteria: Mapping[str, str] = field(default_factory=dict)
    sign: int = 1
    is_own: bool = False

    def criterion_of(self, method: str) -> str:
        """The validation metric by which settings of a method are chosen."""
        return self.own_criteria.get(method, self.criterion)


def kind_of(experiment: str, runs: Sequence[Run]) -> Kind:
    """An experiment by its name; what this package does not know of it, its runs say, the first of them before others."""
    if experiment in NAMES:
        known = experiment_class(experiment)
        return Kind(known.methods, known.criterion, known.own_criteria)
    methods = tuple(dict.fromkeys(run.args["method"] for run in runs))
    measured = [name for run in runs for line in run.lines for name in line["validation"]]
    criterion = next((run.criterion for run in runs if run.criterion), None) or next(iter(measured), "")
    # Runs that name the criterion say which values are better; those that leave it to us may not know it.
    better = next((run.better for run in sorted(runs, key=lambda run: run.criterion != criterion)), "larger")
    return Kind(methods, criterion, sign=-1 if better == "smaller" else 1, is_own=True)
