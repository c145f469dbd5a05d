"""Runs that can be compared: those of one experiment on one data set, with one number of bits where there are bits."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sparsum_experiments.errors import UsageError
from sparsum_experiments.registry import experiment_class, with_defaults
from sparsum_experiments.report.summary import Summary, best_by_method, criteria_text, summarise
from sparsum_experiments.runs import Run, read_runs, rounded

#: What says where a run was made, and not what it is.
PLACES = {"seed", "device", "data_dir"}


@dataclass(frozen=True)
class Section:
    """All runs of an experiment on a data set, with one number of bits where there are bits.

    Args:
        experiment: its name.
        data: the name of the data set.
        criterion: the validation metric by which methods are compared.
        summaries: one for each method and setting that has measured something, the runs of a method together.
        runs: all of its runs.
        bits: of the latent variable; None where it has none.
    """

    experiment: str
    data: str
    criterion: str
    summaries: list[Summary]
    runs: list[Run]
    bits: int | None = None

    @property
    def title(self) -> str:
        """For people."""
        title = f"{self.experiment} on {self.data}"
        return title if self.bits is None else f"{title}, {self.bits} bits"

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
        raise UsageError(f"there is no run in or below {', '.join(map(str, places)) or 'no folder'}")
    groups: dict[tuple[str, str, int | None], list[Run]] = {}
    for run in _comparable(runs):
        groups.setdefault((run.experiment, run.args["data"], run.args.get("bits")), []).append(run)
    sections = []
    for (experiment, data, bits), members in sorted(groups.items(), key=lambda item: (*item[0][:2], item[0][2] or 0)):
        try:
            criterion = experiment_class(experiment).criterion
        except UsageError as error:
            problems += [f"{run.path}: {error}" for run in members]
            continue
        kept, repeated = without_repetitions(_with_variants(members))
        problems += repeated
        sections.append(Section(experiment, data, criterion, summaries_by_setting(kept), kept, bits))
    here = f"{pathlib.Path.cwd()}/"  # no reader knows it
    return sections, [text.replace(here, "") for text in problems]


def _comparable(runs: list[Run]) -> list[Run]:
    """The runs in the terms of runs of today: all options, numbers of few digits, data without the folders above it.

    Where several folders have the same name, the data sets keep their folders: they may be others.
    """
    places: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        places.setdefault((run.experiment, _data_name(run)), set()).add(str(run.args["data"]))
    found = []
    for run in runs:
        name = _data_name(run)
        is_clear = len(places[run.experiment, name] - {name}) < 2
        data = name if is_clear else str(run.args["data"])
        args = with_defaults(run.experiment, run.args)
        found.append(replace(run, args=rounded(args) | {"data": data}))
    return found


def _data_name(run: Run) -> str:
    return pathlib.Path(str(run.args["data"])).name


def _with_variants(runs: list[Run]) -> list[Run]:
    """The runs, those in folders under the name that the runs of the same setting have for it."""
    names: dict[str, set[str]] = {}
    for run in runs:
        if run.variant is not None:
            names.setdefault(told(run), set()).add(run.variant)
    found = []
    for run in runs:
        known = names.get(told(run), set())
        # Two names of one setting are not for us to choose between.
        name = next(iter(known)) if len(known) == 1 else ""
        found.append(replace(run, variant=name) if run.variant is None else run)
    return found


def told(run: Run, *, with_seed: bool = False) -> str:
    """The same for runs that were told the same, wherever they were made."""
    hidden = PLACES - {"seed"} if with_seed else PLACES
    return repr(sorted((name, value) for name, value in run.args.items() if name not in hidden))


def without_repetitions(runs: list[Run]) -> tuple[list[Run], list[str]]:
    """One run for each method, setting and seed: a second one would feign a smaller error.

    It is the longest, and an evaluated one before others. A folder and a run are the same run, which needs no word.
    """
    kept: dict[tuple[str | None, str], Run] = {}
    for run in sorted(runs, key=lambda run: (-len(run.lines), not run.test)):
        kept.setdefault((run.variant, told(run, with_seed=True)), run)
    repeated = []
    for run in runs:
        other = kept[run.variant, told(run, with_seed=True)]
        if other.path != run.path and other.is_record == run.is_record:
            repeated.append(f"{run.path}: another run was told the same, seed included, and has measured as much")
    chosen = {run.path for run in kept.values()}
    return [run for run in runs if run.path in chosen], repeated


def summaries_by_setting(runs: list[Run]) -> list[Summary]:
    """One for each method and setting that has measured something, where a setting is all that differs among the runs."""
    differing = differing_options(runs)
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        group = run.args["method"], run.variant or "", *(repr(run.args.get(name)) for name in differing)
        groups.setdefault(group, []).append(run)
    found = []
    for (method, variant, *_), members in groups.items():
        setting: dict[str, Any] = {"variant": variant} if variant else {}
        setting |= {name: members[0].args.get(name) for name in differing}
        found.append(summarise(method, setting, members))
    return sorted(filter(None, found), key=lambda summary: summary.method)


def differing_options(runs: list[Run]) -> list[str]:
    """The options that are not the same in all runs."""
    values: dict[str, set[Any]] = {}
    for run in runs:
        for name in run.args.keys() - PLACES - {"method"}:
            values.setdefault(name, set()).add(repr(run.args[name]))
    return sorted(name for name, seen in values.items() if len(seen) > 1)
