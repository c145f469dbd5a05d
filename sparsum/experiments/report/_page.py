"""A page of runs: one file that needs nothing but a browser."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterable, Sequence

from sparsum.experiments._files import write_bytes
from sparsum.experiments.report._chart import N_COLOURS, chart
from sparsum.experiments.report._columns import columns_of
from sparsum.experiments.report._html import Markup, element, joined
from sparsum.experiments.report._paper import NOTHING, paper_table
from sparsum.experiments.report._records import RunRecord
from sparsum.experiments.report._sections import Section, read_sections
from sparsum.experiments.report._tables import LEFT_ALIGNED, cells
from sparsum.experiments.report.latent import latent_assets, latent_views

# Calls that differ by more than this are drawn on a logarithmic scale, or the small ones could not be told apart.
_MAX_LINEAR_RATIO = 20

_STYLE = Markup(
    """
:root { color-scheme: light dark; --text: #1c1e21; --soft: #5f6670; --rule: #d9dce1; --page: #fff; --shade: #f5f6f8;
  --c0: #0b6bb5; --c1: #c8510a; --c2: #0a8060; --c3: #a8327d; --c4: #8a6d00; --c5: #5b4cc4; --c6: #b3261e; --c7: #4d5a66; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --soft: #a0a7b1; --rule: #3a3f47; --page: #17191c;
  --shade: #202327; --c0: #5fb0f0; --c1: #ff9a5c; --c2: #45c9a2; --c3: #e98ac8; --c4: #dcb93c; --c5: #a89df5;
  --c6: #ff8a80; --c7: #aab6c2; } }
body { margin: 2rem auto; max-width: 80rem; padding: 0 1rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
h1, h2 { line-height: 1.2; font-weight: 600; } h2 { margin-top: 2.5rem; }
p, li { max-width: 48rem; } .soft { color: var(--soft); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.35rem 0.8rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { font-weight: 600; background: var(--shade); } th.name, td.name { text-align: left; }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.5rem 0; } svg { flex: 1 1 28rem; max-width: 42rem; }
svg text { fill: var(--text); font: 12px system-ui, sans-serif; } svg .heading { font-weight: 600; }
svg .grid { stroke: var(--rule); } svg .axis { stroke: var(--soft); } svg .line { fill: none; stroke-width: 2; }
pre { background: var(--shade); padding: 0.8rem; overflow-x: auto; font-size: 0.85rem; }
"""
    + "".join(f".line.c{i} {{ stroke: var(--c{i}); }} .dot.c{i} {{ fill: var(--c{i}); }}\n" for i in range(N_COLOURS))
)


def write_report(runs: Iterable[pathlib.Path], out: pathlib.Path, data_dir: str | None = None) -> pathlib.Path:
    """Write a page of all runs in or below some folders; returns its file.

    Args:
        runs: folders of runs or of their records, or folders above them.
        out: the file to write, which is replaced at once and whole; below a folder it is ``report.html``.
        data_dir: where the data is, for what latent variables learned; by default as each run was told.

    Raises:
        WrongUseError: if there is no run.
    """
    sections, problems = read_sections(runs)
    file = out / "report.html" if out.is_dir() or not out.suffix else out
    write_bytes(file, _page(sections, problems, data_dir).encode())
    return file


def _page(sections: Sequence[Section], problems: Sequence[str], data_dir: str | None) -> str:
    n_runs = sum(len(section.records) for section in sections)
    when = element("p", f"{n_runs} runs, read on {time.strftime('%Y-%m-%d at %H:%M')}.", class_="soft")
    parts = [element("h1", "Runs"), when, *(_section(section, data_dir) for section in sections)]
    if problems:
        parts += [element("h2", "Left out"), element("ul", *(element("li", problem) for problem in problems))]
    body = element("body", joined(parts))
    style = element("style", _STYLE)
    head = element("head", element("meta", charset="utf-8"), element("title", "sparsum: runs"), style, latent_assets(body))
    return f'<!doctype html>\n<html lang="en">\n{head}\n{body}\n</html>\n'


def _section(section: Section, data_dir: str | None) -> Markup:
    """An experiment on a data set: the table, the curves, the commands."""
    heading = element("h2", section.title)
    commands = _commands(section.records)
    if not section.summaries:
        return joined([heading, element("p", "No epoch is finished yet."), commands])
    note = (
        f"Means ± standard errors over seeds, validation at the last epoch; the larger the {section.criterion} the better. "
        "Training calls: of the decoder for each example, the mean over all epochs."
    )
    shown = [_table(section), _charts(section), latent_views(section, data_dir), commands]
    return joined([heading, element("p", note, class_="soft"), *shown])


def _table(section: Section) -> Markup:
    columns = [*map(list, zip(*cells(section.summaries, section.criterion), strict=True)), *_paper_columns(section)]
    header, *rows = zip(*columns, strict=True)
    kinds = ["name" if name in LEFT_ALIGNED else "number" for name in header]

    def line(kind: str, row: Sequence[str]) -> Markup:
        return element("tr", *(element(kind, cell, class_=name) for cell, name in zip(row, kinds, strict=True)))

    head = element("thead", line("th", header))
    body = element("tbody", *(line("td", row) for row in rows))
    return element("div", element("table", head, body), class_="wide")


def _paper_columns(section: Section) -> list[list[str]]:
    """What the paper reports of the methods, a column with its heading for each number."""
    bits = [summary.records[0].args.get("bits") for summary in section.summaries]
    papers = [paper_table(section.experiment, section.data, n) for n in bits]
    columns = []
    for column in columns_of(section.experiment):
        pairs = zip(section.summaries, papers, strict=True)
        numbers = [paper.number(summary.method, column.paper) if paper else NOTHING for summary, paper in pairs]
        if set(numbers) != {NOTHING}:
            columns.append([column.paper_heading, *numbers])
    return columns


def _charts(section: Section) -> Markup:
    """The criterion and the calls over epochs, a line for the best setting of each method."""
    best = section.best
    quality = {summary.method: summary.curve(section.criterion) for summary in best}
    calls = {summary.method: summary.calls_curve() for summary in best}
    positive = [value for line in calls.values() for value in line if value > 0]
    is_logarithmic = bool(positive) and max(positive) > _MAX_LINEAR_RATIO * min(positive)
    label = "calls, logarithmic" if is_logarithmic else "calls"
    drawn = [
        chart(f"Validation {section.criterion}", section.criterion, quality),
        chart("Decoder calls for each training example", label, calls, is_logarithmic=is_logarithmic),
    ]
    caption = "Each line is the mean over the seeds of one method"
    if len(best) < len(section.summaries):
        caption += f", at the setting with the best {section.criterion} on the validation data"
    return joined([element("div", *drawn, class_="charts"), element("p", f"{caption}.", class_="soft")])


def _commands(records: Sequence[RunRecord]) -> Markup:
    """What was typed for each run, so that anyone can repeat it; records do not know it."""
    typed = [record.command for record in records if record.command]
    if not typed:
        return Markup("")
    return element("details", element("summary", f"The commands of {len(typed)} runs"), element("pre", "\n".join(typed)))
