"""Which view a section of the page shows."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sparsum_experiments.report.latent.kept import VIEWS, Latent, NoView, latent_of_run, read_latent
from sparsum_experiments.report.latent.view import AbstractView
from sparsum_experiments.report.sections import Section
from sparsum_experiments.report.summary import Summary, rank
from sparsum_experiments.runs import RunFolder

# If a view cannot be made, the next best run is tried, so often.
_MAX_TRIED = 4


class Shown(NamedTuple):
    """What the latent variables of a section's best run learned.

    Args:
        title: of the view.
        view: None if there is none.
        about: which run it is of.
        problems: why better runs are not shown.
    """

    title: str
    view: AbstractView | None
    about: str
    problems: Sequence[str]


def show_latent(section: Section, data_dir: str | None = None) -> Shown | None:
    """The view of the best run that has one; None for experiments without views."""
    if section.experiment not in VIEWS:
        return None
    title = VIEWS[section.experiment].title
    problems: list[str] = []
    best_first = sorted(section.summaries, key=lambda each: rank(each, section.criterion), reverse=True)
    for summary, source in _sources(best_first):
        if len(problems) == _MAX_TRIED:
            break
        try:
            latent = _read(source, summary, data_dir)
        except NoView as error:
            problems.append(str(error))
            continue
        about = (
            f"{summary.label}, seed {latent.seed}: the best validation {section.criterion} of all runs that can be shown."
        )
        return Shown(title, latent.view, about, problems)
    return Shown(title, None, "", problems)


def _sources(summaries: Sequence[Summary]) -> Iterator[tuple[Summary, pathlib.Path]]:
    """Where views can come from, the best setting first: folders with a checkpoint by their seeds, then a kept file."""
    for summary in summaries:
        runs = sorted(summary.runs, key=lambda run: int(run.args["seed"]))
        folders = [run.path for run in runs if RunFolder(run.path).checkpoint_file("last").is_file()]
        files = dict.fromkeys(run.latent_file for run in runs if not run.path.is_dir())
        yield from ((summary, source) for source in [*folders, *(file for file in files if file and file.is_file())])


def _read(source: pathlib.Path, summary: Summary, data_dir: str | None) -> Latent:
    """The view of a folder or a file.

    Raises:
        NoView: if there is none, or it is not of these runs.
    """
    if source.is_dir():
        return latent_of_run(source, data_dir)
    latent = read_latent(source)
    if difference := latent.difference(summary.runs[0]):
        raise NoView(f"{source} is not of the runs that are recorded beside it: {difference}")
    return latent
