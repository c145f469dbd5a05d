"""The views of the sections of a page."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence

from sparsum_experiments.report.html import Markup, element
from sparsum_experiments.report.latent.kept import LATENT_FILE, VIEWS, Latent, NoView, latent_of_run, read_latent
from sparsum_experiments.report.sections import Section
from sparsum_experiments.report.settings import setting_text
from sparsum_experiments.report.summary import Summary, rank
from sparsum_experiments.runs import Run, RunFolder

# A view that cannot be made is told, and the next best run is tried, so often.
_MAX_TRIED = 4
# How many bytes a page may have, so that it can be sent by mail and opened on a phone.
MAX_LETTERS = 4_900_000

_NOTHING = (
    "What the latent variables learned is shown for a run's folder with its checkpoint, or from a view that "
    "'sparsum record --latent' kept; here is neither."
)


def latent_views(sections: Sequence[Section], data_dir: str | None = None, n_used: int = 0) -> list[Markup]:
    """For each section what the latent variables of its best run learned, or a sentence that says why not.

    Args:
        sections: the runs of experiments on data sets.
        data_dir: where the data is; by default as each run was told.
        n_used: how many bytes the rest of the page has; the views get what it leaves.
    """
    views, n_letters = [], n_used
    for section in sections:
        shown = _view_of(section, data_dir) if section.experiment in VIEWS else Markup("")
        if n_letters + len(shown.encode()) > MAX_LETTERS:
            title = VIEWS[section.experiment].title
            shown = element("p", f"{title}: left out, so that the page stays small.", class_="soft")
        n_letters += len(shown.encode())
        views.append(shown)
    return views


def _view_of(section: Section, data_dir: str | None) -> Markup:
    heading = element("h3", VIEWS[section.experiment].title)
    problems: list[str] = []
    best_first = sorted(section.summaries, key=lambda each: rank(each, section.criterion), reverse=True)
    for summary, source in _candidates(best_first):
        if len(problems) == _MAX_TRIED:
            break
        try:
            latent = _read(source, summary, data_dir)
            shown = latent.view.markup()
        except NoView as error:
            problems.append(str(error))
            continue
        told = f"{_told(summary)}, seed {latent.seed}: the best validation {section.criterion} of all that can be shown."
        return _framed(heading, element("p", told, class_="soft"), shown, _problems(problems))
    return _framed(heading, _problems(problems) if problems else element("p", _NOTHING, class_="soft"))


def _framed(*parts: Markup) -> Markup:
    return element("div", *parts, class_="latent")


def _problems(problems: list[str]) -> Markup:
    """Why better runs are not shown; none gives nothing."""
    if not problems:
        return Markup("")
    lines = [element("li", problem) for problem in problems]
    return element("div", element("p", "Views that could not be made:"), element("ul", *lines), class_="latent-problem")


def _candidates(summaries: list[Summary]) -> Iterator[tuple[Summary, pathlib.Path]]:
    """Where views can come from, the best setting first: folders with a checkpoint by their seeds, then a kept file."""
    for summary in summaries:
        runs = sorted(summary.records, key=_seed)
        yield from ((summary, run.path) for run in runs if RunFolder(run.path).checkpoint_file("last").is_file())
        files = {run.path.parent / LATENT_FILE: None for run in runs if run.path.is_file()}
        yield from ((summary, file) for file in files if file.is_file())


def _seed(record: Run) -> int:
    seed = record.args["seed"]
    return seed if isinstance(seed, int) else 0


def _read(source: pathlib.Path, summary: Summary, data_dir: str | None) -> Latent:
    """The view of a folder or a file.

    Raises:
        NoView: if there is none, or it is not of these runs.
    """
    if source.is_dir():
        return latent_of_run(source, data_dir)
    latent = read_latent(source)
    if difference := latent.difference(summary.records[0]):
        raise NoView(f"{source} is of other runs than the records beside it: {difference}")
    return latent


def _told(summary: Summary) -> str:
    setting = setting_text(summary.records[0].experiment, summary.method, summary.setting)
    return f"{summary.method} ({setting})" if setting else summary.method
