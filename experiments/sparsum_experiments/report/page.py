"""A page of runs: one file that needs nothing but a browser."""

from __future__ import annotations

import base64
import collections
import functools
import hashlib
import pathlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from sparsum_experiments.errors import UsageError
from sparsum_experiments.files import write_bytes
from sparsum_experiments.report.comparison import Cell, compare
from sparsum_experiments.report.drawing import sample
from sparsum_experiments.report.figures import MAX_POINTS, figures_of, styles_of
from sparsum_experiments.report.latent.kept import show_latent
from sparsum_experiments.report.latent.view import png_address
from sparsum_experiments.report.notes import machines_note, unfinished_note
from sparsum_experiments.report.sections import Section, read_sections
from sparsum_experiments.report.summary import Summary
from sparsum_experiments.report.tables import LEFT_ALIGNED, cells

#: How many bytes a page may have, so that it can be mailed and opened on a phone.
MAX_BYTES = 4_900_000
# Points on all lines of a method in a figure, over all sections.
_TOTAL_POINTS = 8 * MAX_POINTS
# Longer tables show the best settings alone, and all settings when they are unfolded.
_MAX_ROWS = 16
_BEGIN = b"<!doctype html>"


def write_report(places: Iterable[pathlib.Path], out: pathlib.Path, data_dir: str | None = None) -> pathlib.Path:
    """Write a page of all runs and records in or below some folders to a file, or as ``report.html`` to a folder.

    Returns its file. What latent variables learned needs data, which is in ``data_dir``, by default as in each run's config.
    A UsageError is raised if there is no run.
    """
    file = page_file(out)
    write_page(*read_sections(places), file, data_dir)
    return file


def page_file(out: pathlib.Path) -> pathlib.Path:
    """The file of a page: ``out``, or ``report.html`` in it if it is a folder."""
    return out / "report.html" if out.is_dir() or not out.suffix else out


def check_page_file(file: pathlib.Path) -> None:
    """Raise a UsageError if a file exists and is not a page: it may be needed."""
    if file.exists():
        begin = b"?"
        if file.is_file():  # reading a pipe might never end
            with file.open("rb") as old:
                begin = old.read(len(_BEGIN))
        if begin and begin.lower() != _BEGIN:
            raise UsageError(f"{file} exists and is not an HTML report: choose another --out, or delete it")


def write_page(
    sections: Sequence[Section], problems: Sequence[str], file: pathlib.Path, data_dir: str | None = None
) -> None:
    """As `write_report`, of what `read_sections` returned, into a file."""
    n_runs = sum(len(section.runs) for section in sections)
    page = functools.partial(
        _environment().get_template("page.html.j2").render,
        title=f"sparsum: results of {n_runs} run{'s' * (n_runs != 1)}",
        read=f"Read on {time.strftime('%Y-%m-%d at %H:%M')}.",
        styles=_files("css"),
        scripts=(scripts := _files("js")),
        scripts_digest=base64.b64encode(hashlib.sha256(scripts.encode()).digest()).decode(),
        sections=sections,
        problems=problems,
    )
    parts = _parts(sections, data_dir, MAX_BYTES - len(page(contents=[]).encode()))
    write_bytes(file, page(contents=parts).encode())


@functools.cache
def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("sparsum_experiments.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    found.globals |= {"sample": sample, "png": png_address, "left_aligned": LEFT_ALIGNED}
    return found


def macros(template: str) -> Any:
    """The macros of a template, as functions."""
    return _environment().get_template(template).module


def _files(suffix: str) -> Markup:
    """All style sheets or all scripts of the page, in the order of their names."""
    files = sorted((pathlib.Path(__file__).parent / "page").glob(f"*.{suffix}"))
    return Markup("\n".join(file.read_text(encoding="utf-8") for file in files))  # nosec B704 # files of this package


def _parts(sections: Sequence[Section], data_dir: str | None, n_bytes: int) -> list[list[Markup]]:
    """The parts of each section: tables, and as far as there is room figures, views of latent variables and commands."""
    shown, latent = macros("section.html.j2"), macros("latent.html.j2")
    contents = [_content(section, f"section-{i}", len(sections)) for i, section in enumerate(sections, start=1)]
    views = [show_latent(section, data_dir) for section in sections]
    found = [[shown.tables(content)] for content in contents]
    left = n_bytes - sum(len(part.encode()) for parts in found for part in parts)
    for title, rendered in (
        ("Figures", [shown.figures(content) if content["figures"] else Markup() for content in contents]),
        ("What the latent variable learned", [latent.latent(view) if view else Markup() for view in views]),
        ("Commands", [shown.commands(content["commands"]) for content in contents]),
    ):
        for parts, part in zip(found, rendered, strict=True):
            parts.append(part if len(part.encode()) <= left else shown.left_out(title))
            left -= len(parts[-1].encode())
    return found


def _content(section: Section, name: str, n_sections: int) -> dict[str, Any]:
    """What the templates show of a section."""
    every = compare(section)
    is_long, has_many = len(every.rows) > _MAX_ROWS, len(section.summaries) > _MAX_ROWS
    better = "larger" if section.kind.sign > 0 else "smaller"
    n_points = max(20, min(MAX_POINTS, _TOTAL_POINTS // n_sections))
    return {
        "id": name,
        "section": section,
        "tested": compare(section, best_only=True) if is_long else every,
        "every": every if is_long else None,
        "has_numbers": any(cell.text[:1].isdigit() for row in every.rows for cell in row[1:-1]),
        "is_tested": any(summary.test for summary in section.summaries),
        "metrics": _metrics(section, section.summaries),
        "best_metrics": _metrics(section, section.best) if has_many else [],
        "metric_notes": [
            f"Validation at the last epoch, means ± standard errors over seeds; {better} {section.criterion} is better. "
            "Training calls: decoder calls per example, the mean over all epochs.",
            unfinished_note(section.summaries, "Taken at the last epoch that all seeds have reached"),
            machines_note((summary.label, summary.runs) for summary in section.summaries),
        ],
        "drawn_settings": drawn_settings(section),
        "styles": styles_of(section),
        "figures": figures_of(section, n_points),
        "commands": [run.command for run in section.runs if run.command],
    }


def _metrics(section: Section, summaries: Sequence[Summary]) -> list[list[Any]]:
    """The header and the rows of the table of all metrics; empty if nothing is measured yet."""
    header, *rows = cells(summaries, section.criterion)
    return [header, *([Cell(text) for text in row] for row in rows)] if summaries else []


def drawn_settings(section: Section) -> str:
    """Which settings are drawn, of methods that have several; empty if no method has."""
    n_settings = collections.Counter(summary.method for summary in section.summaries)
    chosen = [
        f"{summary.method}: {summary.setting_text or 'no variant'} (of {n_settings[summary.method]})"
        for summary in section.best
        if n_settings[summary.method] > 1
    ]
    about = f"Each method is drawn at the setting with the best {section.criteria} on the validation data."
    return f"{about} {'; '.join(chosen)}." if chosen else ""
