"""Runs that can be compared: those of one experiment on one data set."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sparsum.experiments.registry import WrongUseError, experiment_class
from sparsum.experiments.report._records import RunRecord, read_runs
from sparsum.experiments.report._summary import Summary, best_by_method, summarise

# What says where a run was made, and not what it is.
_PLACES = {"seed", "device", "data_dir"}


@dataclass(frozen=True)
class Section:
    """All runs of an experiment on a data set.

    Args:
        experiment: its name.
        data: the name of the data set.
        criterion: the validation metric by which settings are chosen.
        summaries: one for each method and setting that has measured something, the runs of a method together.
        records: all of its runs.
    """

    experiment: str
    data: str
    criterion: str
    summaries: list[Summary]
    records: list[RunRecord]

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.experiment} on {self.data}"

    @property
    def best(self) -> list[Summary]:
        """The best setting of each method."""
        return best_by_method(self.summaries, self.criterion)


def read_sections(places: Iterable[pathlib.Path]) -> tuple[list[Section], list[str]]:
    """The sections of all runs in or below some folders, and what could not be read.

    Raises:
        WrongUseError: if there is no run at all.
    """
    places = list(places)
    records, problems = read_runs(places)
    if not records and not problems:
        raise WrongUseError(f"there is no run in or below {', '.join(map(str, places)) or 'no folder'}")
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        groups.setdefault((record.experiment, str(record.args["data"])), []).append(record)
    sections = []
    for (experiment, data), members in sorted(groups.items()):
        try:
            criterion = experiment_class(experiment).criterion
        except WrongUseError as error:
            problems += [f"{record.path}: {error}" for record in members]
            continue
        kept, repeated = without_repetitions(members)
        problems += repeated
        sections.append(Section(experiment, data, criterion, summaries_by_setting(kept), kept))
    return sections, problems


def without_repetitions(records: list[RunRecord]) -> tuple[list[RunRecord], list[str]]:
    """One run for each method, setting and seed, the longest: a second one would feign a smaller error."""
    kept: dict[str, RunRecord] = {}
    for record in sorted(records, key=lambda record: -len(record.lines)):
        told = {name: value for name, value in record.args.items() if name not in _PLACES - {"seed"}}
        kept.setdefault(repr(sorted(told.items())), record)
    chosen = {record.path for record in kept.values()}
    repeated = [record for record in records if record.path not in chosen]
    return (
        [record for record in records if record.path in chosen],
        [f"{record.path}: another run was told the same, seed included, and has measured as much" for record in repeated],
    )


def summaries_by_setting(records: list[RunRecord]) -> list[Summary]:
    """One for each method and setting that has measured something, where a setting is all that differs among the runs."""
    differing = differing_options(records)
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in records:
        group = record.args["method"], *(repr(record.args.get(name)) for name in differing)
        groups.setdefault(group, []).append(record)
    found = []
    for members in groups.values():
        setting = {name: members[0].args.get(name) for name in differing}
        found.append(summarise(members[0].args["method"], setting, members))
    return sorted(filter(None, found), key=lambda summary: summary.method)


def differing_options(records: list[RunRecord]) -> list[str]:
    """The options that are not the same in all runs."""
    values: dict[str, set[Any]] = {}
    for record in records:
        for name in record.args.keys() - _PLACES - {"method"}:
            values.setdefault(name, set()).add(repr(record.args[name]))
    return sorted(name for name, seen in values.items() if len(seen) > 1)
