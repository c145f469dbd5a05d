"""A page of runs: one file that needs nothing but a browser."""

from __future__ import annotations

import importlib.resources
import pathlib
import time
from collections.abc import Iterable, Sequence

from sparsum_experiments.files import write_bytes
from sparsum_experiments.report.figures import MAX_POINTS, draw, figures_of, legend, styles_of
from sparsum_experiments.report.html import Markup, element, joined
from sparsum_experiments.report.latent import latent_views
from sparsum_experiments.report.latent.section import MAX_LETTERS
from sparsum_experiments.report.page_tables import metric_tables, tested_tables
from sparsum_experiments.report.sections import Section, read_sections
from sparsum_experiments.report.settings import setting_text
from sparsum_experiments.runs import Run

# The browser itself sees to it that the page asks for nothing, whatever is in it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

# How many points lines have at most, and whether there are commands: the first with which the page is small enough.
_THINNED = ((MAX_POINTS, True), (100, True), (40, True), (40, False))
_NO_FIGURES = "Left out, so that the page stays small: report this section alone."
_Pair = tuple[Markup, Markup]
_NO_COMMANDS = "The commands of the runs are left out, so that the page stays small."


def write_report(runs: Iterable[pathlib.Path], out: pathlib.Path, data_dir: str | None = None) -> pathlib.Path:
    """Write a page of all runs in or below some folders; returns its file.

    Args:
        runs: folders of runs or of their records, or folders above them.
        out: the file to write, which is replaced at once and whole; below a folder it is ``report.html``.
        data_dir: where the data is, for what latent variables learned; by default as each run was told.

    Raises:
        UsageError: if there is no run.
    """
    file = page_file(out)
    write_page(*read_sections(runs), file, data_dir)
    return file


def page_file(out: pathlib.Path) -> pathlib.Path:
    """Where a page goes: into a file, or a folder, under the name ``report.html``."""
    return out / "report.html" if out.is_dir() or not out.suffix else out


def write_page(
    sections: Sequence[Section], problems: Sequence[str], file: pathlib.Path, data_dir: str | None = None
) -> None:
    """As `write_report`, of what `read_sections` has read, into a file."""
    write_bytes(file, _page(sections, problems, data_dir).encode())


def _page(sections: Sequence[Section], problems: Sequence[str], data_dir: str | None) -> str:
    n_runs = sum(len(section.records) for section in sections)
    title = f"sparsum: results of {n_runs} run{'s' * (n_runs != 1)}"
    read = f"Read on {time.strftime('%Y-%m-%d at %H:%M')}."
    top = element("header", element("h1", title), element("p", read, class_="soft"), _contents(sections, problems))
    head, script = _head(title), element("script", _files("js"))
    last = _problems(problems) if problems else Markup("")
    n_fixed = sum(map(_size, (head, top, script, last)))
    around = _around_views(sections, MAX_LETTERS - n_fixed)
    views = latent_views(sections, data_dir, n_fixed + sum(map(_size, around)))
    parts = [
        element("section", before, view, after, id=f"section-{i}")
        for i, ((before, after), view) in enumerate(zip(around, views, strict=True), start=1)
    ]
    body = element("body", top, element("main", joined(parts), last), script)
    return f'<!doctype html>\n<html lang="en">\n{head}\n{body}\n</html>\n'


def _size(parts: Markup | tuple[Markup, ...]) -> int:
    """How many bytes something has."""
    return len((parts if isinstance(parts, str) else "".join(parts)).encode())


def _around_views(sections: Sequence[Section], n_bytes: int) -> list[_Pair]:
    """What stands before and after the views of each section, with so few points that most of the page is left for views.

    Where many sections have too much even with few points, their commands are left out, and then the figures of some.
    """
    for n_points, with_commands in _THINNED:
        found = _all_around(sections, n_points, with_commands=with_commands)
        if sum(map(_size, found)) <= n_bytes / 2:
            return found
    if sum(map(_size, found)) <= n_bytes:
        return found
    return _as_fits(found, _all_around(sections, 0, with_commands=False), n_bytes)


def _all_around(sections: Sequence[Section], n_points: int, *, with_commands: bool) -> list[_Pair]:
    return [
        _around(section, f"section-{i}", n_points, with_commands=with_commands)
        for i, section in enumerate(sections, start=1)
    ]


def _as_fits(full: list[_Pair], bare: list[_Pair], n_bytes: int) -> list[_Pair]:
    """The full ones of the first sections for which there is room, and the bare ones of the others."""
    left = n_bytes - sum(map(_size, bare))
    found = []
    for one, other in zip(full, bare, strict=True):
        more = _size(one) - _size(other)
        found.append(one if more <= left else other)
        left -= more if more <= left else 0
    return found


def _head(title: str) -> Markup:
    return element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        element("title", title),
        element("style", _files("css")),
    )


def _files(suffix: str) -> Markup:
    """All style sheets or all scripts of the page, in the order of their names."""
    folder = importlib.resources.files("sparsum_experiments.report") / "page"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(f".{suffix}")), key=lambda file: file.name)
    return Markup("\n".join(file.read_text() for file in files))


def _contents(sections: Sequence[Section], problems: Sequence[str]) -> Markup:
    """Links to the sections, where there are several."""
    links = [element("a", section.title, href=f"#section-{i}") for i, section in enumerate(sections, start=1)]
    if problems:
        links.append(element("a", f"left out ({len(problems)})", href="#left-out"))
    return element("nav", *links, aria_label="Sections") if len(links) > 1 else Markup("")


def _around(section: Section, name: str, n_points: int, *, with_commands: bool) -> tuple[Markup, Markup]:
    """An experiment on a data set: tables and figures before its latent variables, and commands after them."""
    before = joined(
        [
            element("h2", section.title),
            tested_tables(section),
            metric_tables(section),
            _figures(section, name, n_points),
        ]
    )
    return before, _commands(section.records) if with_commands else element("p", _NO_COMMANDS, class_="soft")


def _figures(section: Section, name: str, n_points: int) -> Markup:
    """Curves over epochs, and methods in a plane; a line or a mark for the best setting of each method.

    Without any points there is a sentence in the place of figures.
    """
    if not section.best:
        return Markup("")
    if not n_points:
        return joined([element("h3", "Figures"), element("p", _NO_FIGURES, class_="soft")])
    drawn = [draw(figure, f"{name}-figure-{i}") for i, figure in enumerate(figures_of(section, n_points), start=1)]
    hint = (
        "Press a name to hide or show its method. Point at a figure or tap it, or use the arrow keys in it, to read values."
    )
    return joined(
        [
            element("h3", "Figures"),
            drawn_settings(section),
            legend(styles_of(section)),
            element("p", hint, class_="hint soft"),
            element("div", *drawn, class_="charts"),
        ]
    )


def drawn_settings(section: Section) -> Markup:
    """Which settings are drawn, of methods that have several."""
    n_settings = {summary.method: 0 for summary in section.summaries}
    for summary in section.summaries:
        n_settings[summary.method] += 1
    chosen = []
    for summary in section.best:
        if n_settings[summary.method] > 1:
            setting = setting_text(section.experiment, summary.method, summary.setting)
            # An empty setting differs from the others of its method in that those have a name.
            chosen.append(f"{summary.method}: {setting or 'no variant'} (of {n_settings[summary.method]})")
    if not chosen:
        return Markup("")
    text = (
        f"Each method is drawn at the setting with the best {section.criteria} on the validation data. {'; '.join(chosen)}."
    )
    return element("p", text, class_="soft")


def _problems(problems: Sequence[str]) -> Markup:
    found = [element("h2", "Left out"), element("ul", *(element("li", problem) for problem in problems))]
    return element("section", *found, id="left-out")


def _commands(records: Sequence[Run]) -> Markup:
    """What was typed for each run, so that anyone can repeat it; records do not know it."""
    typed = [record.command for record in records if record.command]
    if not typed:
        return Markup("")
    title = "The command of 1 run" if len(typed) == 1 else f"The commands of {len(typed)} runs"
    return element("details", element("summary", title), element("pre", "\n".join(typed)))
