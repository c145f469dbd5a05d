"""Tables as HTML, sorted by a script when a heading is pressed."""

from __future__ import annotations

from collections.abc import Sequence

from sparsum_experiments.report.comparison import Cell, Comparison, compare
from sparsum_experiments.report.html import Markup, element, joined
from sparsum_experiments.report.machines import machines_note
from sparsum_experiments.report.sections import Section
from sparsum_experiments.report.summary import Summary, unfinished_note
from sparsum_experiments.report.tables import LEFT_ALIGNED, cells

# Of longer tables only the best settings are seen at once, and longer notes are folded.
_MAX_ROWS = 16
_MAX_SIGNS = 800


def tested_tables(section: Section) -> Markup:
    """What the methods reach on the test data, beside the paper's numbers; with what has to be said of it."""
    every = compare(section)
    is_long = len(every.rows) > _MAX_ROWS
    shown = compare(section, best_only=True) if is_long else every
    notes = list(map(_note, shown.notes))
    if not _has_numbers(every):
        return joined(notes)
    parts = [_table(shown.title, shown.header, shown.rows), *notes]
    if is_long:
        parts[1:1] = [
            _best_only(section, "evaluated "),
            _folded("All settings", _table(every.title, every.header, every.rows), len(every.rows)),
        ]
    return joined(parts)


def metric_tables(section: Section) -> Markup:
    """All that was measured at the end, with a row for each setting; folded where there is a table of test data already."""
    if not section.summaries:
        return element("p", "No epoch is finished yet.")
    n_rows = len(section.summaries)
    note = (
        f"Validation at the last epoch, means ± standard errors over seeds; the larger the {section.criterion} the better. "
        "Training calls: of the decoder for each example, the mean over all epochs."
    )
    notes = [
        note,
        unfinished_note(section.summaries, "Taken at the last epoch that all seeds have reached"),
        machines_note((summary.label, summary.runs) for summary in section.summaries),
    ]
    every = _metrics(section, section.summaries)
    parts = [_note(text) for text in notes if text]
    if n_rows > _MAX_ROWS:
        parts += [_best_only(section), _metrics(section, section.best), _folded("All settings", every, n_rows)]
    else:
        parts.append(every)
    is_tested = any(summary.test for summary in section.summaries)
    return _folded("All metrics", joined(parts), n_rows) if is_tested else joined(parts)


def _metrics(section: Section, summaries: Sequence[Summary]) -> Markup:
    header, *rows = cells(summaries, section.criterion)
    return _table(f"{section.title}: all metrics", header, [[Cell(text) for text in row] for row in rows])


def _has_numbers(table: Comparison) -> bool:
    """Whether anything is to be seen: a run that is averaged, or a number of the paper."""
    return any(cell.text[:1].isdigit() for row in table.rows for cell in row[1:-1])


def _note(text: str) -> Markup:
    """A paragraph, folded to its beginning where it is long: a grid has many settings, and many runs."""
    paragraph = element("p", text, class_="soft")
    if len(text) <= _MAX_SIGNS:
        return paragraph
    return element("details", element("summary", text.partition(":")[0], class_="soft"), paragraph)


def _best_only(section: Section, kind: str = "") -> Markup:
    text = f"Of each method the {kind}setting with the best {section.criteria} on the validation data; all are listed below."
    return element("p", text, class_="soft")


def _folded(title: str, content: Markup, n_rows: int) -> Markup:
    return element("details", element("summary", f"{title} ({n_rows} row{'s' * (n_rows != 1)})"), content)


def _table(caption: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Markup:
    """A table whose headings are buttons; one that is too wide is scrolled by itself."""
    kinds = ["name" if name in LEFT_ALIGNED else "number" for name in header]
    headings = [
        element("th", element("button", name, type="button"), scope="col", class_=kind, aria_sort="none")
        for name, kind in zip(header, kinds, strict=True)
    ]
    table = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *headings)),
        element("tbody", *(_row(row, kinds) for row in rows)),
        class_="sortable",
    )
    # A region that scrolls has to be reached by the keyboard.
    return element("div", table, class_="wide", role="region", aria_label=caption, tabindex="0")


def _row(row: Sequence[Cell], kinds: Sequence[str]) -> Markup:
    found: list[Markup] = []
    for cell, kind in zip(row, kinds, strict=True):
        content = element("strong", cell.text) if cell.is_best else cell.text
        is_first = not found
        found.append(element("th", content, scope="row", class_=kind) if is_first else element("td", content, class_=kind))
    return element("tr", *found)
