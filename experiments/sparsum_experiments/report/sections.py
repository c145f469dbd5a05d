"""Runs that can be compared: those of one experiment on one data set, with one number of bits where there are bits."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sparsum_experiments.errors import UsageError
from sparsum_experiments.registry import place_options, used_config
from sparsum_experiments.report.columns import Column, columns_of
from sparsum_experiments.report.summary import (
    Kind,
    Summary,
    best_by_method,
    criteria_text,
    grouped,
    kind_of,
    options_text,
    summarise,
)
from sparsum_experiments.runs import Run, read_runs, rounded


@dataclass(frozen=True)
class Section:
    """All runs of an experiment on a data set, with one number of bits where there are bits."""

    experiment: str
    data: str
    criterion: str  # the validation metric by which methods are compared
    summaries: list[Summary]  # one for each method and setting that has measured something, those of a method together
    runs: list[Run]
    bits: int | None = None  # of the latent variable; None where it has none

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.experiment} on {self.data}" + ("" if self.bits is None else f", {self.bits} bits")

    @property
    def kind(self) -> Kind:
        """What is known of the experiment."""
        return kind_of(self.experiment, self.runs)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of its table."""
        return columns_of(self.experiment, self.runs)

    @property
    def best(self) -> list[Summary]:
        """The best setting of each method."""
        return best_by_method(self.summaries, self.experiment)

    @property
    def criteria(self) -> str:
        """What the best settings are chosen by, in words."""
        return criteria_text(self.experiment, self.summaries)


def read_sections(places: Iterable[pathlib.Path]) -> tuple[list[Section], list[str]]:
    """The sections of all runs in or below some folders, and what could not be read.

    Raises:
        UsageError: if there is no run at all.
    """
    places = list(places)
    runs, problems = read_runs(places)
    if not runs and not problems:
        raise UsageError(f"there is no run in or below {', '.join(map(str, places))}")
    groups = grouped(_comparable(runs), lambda run: (run.experiment, run.args["data"], run.args.get("bits")))
    sections = []
    for (experiment, data, bits), members in sorted(groups.items(), key=lambda item: (*item[0][:2], item[0][2] or 0)):
        kept, repeated = without_repetitions(_with_variants(members))
        problems += repeated
        criterion = kind_of(experiment, kept).criterion
        sections.append(Section(experiment, data, criterion, summaries_by_setting(kept), kept, bits))
    here = f"{pathlib.Path.cwd()}/"  # which means nothing to a reader elsewhere
    return sections, [text.replace(here, "") for text in problems]


def _comparable(runs: list[Run]) -> list[Run]:
    """The runs as records of today have them: all options, numbers of few digits, data without the folders above it.

    Where several folders have the same name, the data sets keep their folders: they may not be the same.
    """
    folders = grouped(runs, lambda run: (run.experiment, _data_name(run)))
    found = []
    for run in runs:
        name, args = _data_name(run), rounded(used_config(run.experiment, run.args))
        is_clear = len({same.args["data"] for same in folders[run.experiment, name]} - {name}) < 2
        found.append(replace(run, args=args | {"data": name} if is_clear else args))
    return found


def _data_name(run: Run) -> str:
    return pathlib.Path(run.args["data"]).name or run.args["data"]


def _with_variants(runs: list[Run]) -> list[Run]:
    """The runs, those in folders under the name that the records of the same setting have for it, if it is a single one."""
    names = {key: {run.variant for run in members if run.is_record} for key, members in grouped(runs, config_key).items()}
    known = {key: next(iter(found)) for key, found in names.items() if len(found) == 1}
    return [run if run.is_record else replace(run, variant=known.get(config_key(run), "")) for run in runs]


def config_key(run: Run, *, with_seed: bool = False) -> str:
    """The same for runs of the same config, wherever they were made."""
    hidden = place_options(run.experiment) - ({"seed"} if with_seed else set())
    return repr(sorted((name, value) for name, value in run.args.items() if name not in hidden and value is not None))


def without_repetitions(runs: list[Run]) -> tuple[list[Run], list[str]]:
    """One run for each method, setting and seed: a second one would make errors look smaller than they are.

    It is the longest, and an evaluated one before others. A folder and its record are the same run and not a problem.
    """
    kept, problems = set(), []
    for members in grouped(runs, lambda run: (run.variant, config_key(run, with_seed=True))).values():
        first = min(members, key=lambda run: (-len(run.lines), not run.test))
        kept.add(id(first))
        problems += [
            f"{run.path}: {first.path} has the same config and seed, and at least as many epochs"
            for run in members
            if run is not first and run.is_record == first.is_record
        ]
    return [run for run in runs if id(run) in kept], problems


def summaries_by_setting(runs: list[Run]) -> list[Summary]:
    """One for each method and setting that has measured something; a setting is all options that differ among the runs."""
    differing = differing_options(runs)
    found = []
    for (method, variant, _), members in grouped(runs, lambda run: (run.args["method"], *_setting_key(run))).items():
        setting: dict[str, Any] = {"variant": variant} if variant else {}
        found.append(summarise(method, setting | {name: members[0].args.get(name) for name in differing}, members))
    methods = sorted({run.args["method"] for run in runs})
    if runs and (kind := kind_of(runs[0].experiment, runs)).is_own:
        methods = list(kind.methods)
    return sorted(filter(None, found), key=lambda summary: methods.index(summary.method))


def _setting_key(run: Run) -> tuple[str, str]:
    return run.variant, config_key(run)


def differing_options(runs: Sequence[Run]) -> list[str]:
    """The options that are not the same in all runs."""
    hidden = place_options(runs[0].experiment) | {"method"} if runs else set()
    names = sorted({name for run in runs for name in run.args} - hidden)
    return [name for name in names if len({repr(run.args.get(name)) for run in runs}) > 1]


class Row(NamedTuple):
    """Runs that differ in their seed alone, as a row of a table."""

    method: str
    label: str  # the method, and what sets the runs apart from other rows of it
    runs: list[Run]  # those that are finished and evaluated, the only ones that are averaged
    left_out: list[Run]

    @property
    def first(self) -> Run | None:
        """One of the runs, all of which have the same config; None where there are none."""
        return next(iter([*self.runs, *self.left_out]), None)


def table_rows(section: Section, expected: Collection[str] = ()) -> list[Row]:
    """A row for each variant of each method, and for each setting where a variant has several.

    Methods that are expected have one even if no run was made with them; variants without a name come first.
    """
    # Who never evaluates anything on test data wants to see the validation data.
    needs_test = not section.kind.is_own or any(run.test for run in section.runs)
    by_method = grouped(section.runs, lambda run: str(run.args["method"]))
    ordered = [method for method in section.kind.methods if method in by_method or method in expected]
    rows = []
    for method in dict.fromkeys([*ordered, *sorted(by_method)]):
        rows += [] if method in by_method else [Row(method, method, [], [])]
        for variant, members in sorted(grouped(by_method.get(method, []), lambda run: run.variant).items()):
            names = differing_options(members)
            members.sort(key=lambda run: [_order(run.args.get(name)) for name in (*names, "seed")])
            for same in grouped(members, config_key).values():
                text = ", ".join(filter(None, [variant, options_text({name: same[0].args.get(name) for name in names})]))
                averaged = [run for run in same if run.is_finished and (run.test or not needs_test)]
                left_out = [run for run in same if run not in averaged]
                rows.append(Row(method, f"{method} ({text})" if text else method, averaged, left_out))
    return rows


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers by their size, before all else by its text."""
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else 0.0, str(value)


def best_rows(rows: Sequence[Row], section: Section) -> list[Row]:
    """The rows of the best setting of each method, and those of methods that were not run or measured nothing.

    Where some settings of a method were evaluated, it is the best of these.
    """
    tested = best_by_method([summary for summary in section.summaries if summary.test], section.experiment)
    best = {summary.method: _setting_key(summary.runs[0]) for summary in (*section.best, *tested)}
    return [row for row in rows if not row.first or best.get(row.method) in (None, _setting_key(row.first))]
