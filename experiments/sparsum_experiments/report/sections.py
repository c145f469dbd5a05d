"""Runs that can be compared: those of one experiment on one data set, with one number of bits where there are bits."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from sparsum_experiments.errors import UsageError
from sparsum_experiments.registry import place_options, with_defaults
from sparsum_experiments.report.columns import Column, columns_of
from sparsum_experiments.report.kinds import Kind, kind_of
from sparsum_experiments.report.summary import Summary, best_by_method, criteria_text, summarise
from sparsum_experiments.runs import Run, read_runs, rounded

Key = TypeVar("Key", bound=Hashable)
#: The options of all experiments that say where a run was made.
PLACES = place_options("")


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
        sections.append(
            Section(experiment, data, kind_of(experiment, kept).criterion, summaries_by_setting(kept), kept, bits)
        )
    here = f"{pathlib.Path.cwd()}/"  # which means nothing to a reader elsewhere
    return sections, [text.replace(here, "") for text in problems]


def grouped(runs: Iterable[Run], key: Callable[[Run], Key]) -> dict[Key, list[Run]]:
    """The runs by a key, in the order in which they come; a data frame of objects would do the same in more words."""
    groups: dict[Key, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def _comparable(runs: list[Run]) -> list[Run]:
    """The runs as records of today have them: all options, numbers of few digits, data without the folders above it.

    Where several folders have the same name, the data sets keep their folders: they may not be the same.
    """
    folders = grouped(runs, lambda run: (run.experiment, _data_name(run)))
    is_clear = {key: len({run.args["data"] for run in members} - {key[1]}) < 2 for key, members in folders.items()}
    found = []
    for run in runs:
        name, args = _data_name(run), rounded(with_defaults(run.experiment, run.args))
        found.append(replace(run, args=args | {"data": name}) if is_clear[run.experiment, name] else replace(run, args=args))
    return found


def _data_name(run: Run) -> str:
    return pathlib.Path(run.args["data"]).name or run.args["data"]


def _with_variants(runs: list[Run]) -> list[Run]:
    """The runs, those in folders under the name that the records of the same setting have for it."""
    names = {key: {run.variant for run in members} - {None} for key, members in grouped(runs, config_key).items()}
    found = []
    for run in runs:
        known = names[config_key(run)]
        name = next(iter(known)) if len(known) == 1 else ""  # between two names of one setting we cannot choose
        found.append(replace(run, variant=name) if run.variant is None else run)
    return found


def config_key(run: Run, *, with_seed: bool = False) -> str:
    """The same for runs of the same config, wherever they were made."""
    hidden = place_options(run.experiment) - ({"seed"} if with_seed else set())
    return repr(sorted((name, value) for name, value in run.args.items() if name not in hidden and value is not None))


def without_repetitions(runs: list[Run]) -> tuple[list[Run], list[str]]:
    """One run for each method, setting and seed: a second one would make errors look smaller than they are.

    It is the longest, and an evaluated one before others. A folder and its record are the same run and not a problem.
    """
    seeds = grouped(runs, lambda run: (run.variant, config_key(run, with_seed=True)))
    kept, problems = set(), []
    for members in seeds.values():
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
    for members in grouped(runs, lambda run: (run.args["method"], run.variant or "", config_key(run))).values():
        first = members[0]
        setting = {"variant": first.variant} if first.variant else {}
        setting |= {name: first.args.get(name) for name in differing}
        found.append(summarise(first.args["method"], setting, members))
    methods = sorted({run.args["method"] for run in runs})
    if runs and (kind := kind_of(runs[0].experiment, runs)).is_own:
        methods = list(kind.methods)
    return sorted(filter(None, found), key=lambda summary: methods.index(summary.method))


def differing_options(runs: Sequence[Run]) -> list[str]:
    """The options that are not the same in all runs."""
    names = sorted({name for run in runs for name in run.args} - {"method"})
    hidden = place_options(runs[0].experiment) if runs else set()
    return [name for name in names if name not in hidden and len({repr(run.args.get(name)) for run in runs}) > 1]
