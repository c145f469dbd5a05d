"""Tables as Markdown and LaTeX, in which every text that was not written here is escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sparsum_experiments.files import printable
from sparsum_experiments.report.comparison import Cell, Comparison
from sparsum_experiments.report.summary import NOTHING

_MARKDOWN = {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {sign: f"\\{sign}" for sign in "\\`*_|[]~$#"}
_LATEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # At the beginning of a row these would be taken for arguments of the line end before it.
    "[": "{[}",
    "*": "{*}",
    "±": r"$\pm$",
}


def markdown(tables: Sequence[Comparison], problems: Sequence[str]) -> str:
    """A heading, a table and paragraphs for each, and a list of what could not be read."""
    parts = [part for table in tables for part in _markdown_parts(table)]
    if problems:
        parts += ["Left out:", "\n".join(f"- {escape_markdown(problem)}" for problem in problems)]
    return "\n\n".join(parts)


def _markdown_parts(table: Comparison) -> list[str]:
    # By hand: pandas' to_markdown needs a further package, escapes nothing and fills columns with spaces.
    rule = ["---", *["---:"] * (len(table.header) - 1)]
    rows = [[_markdown_cell(cell) for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(row)} |" for row in (map(escape_markdown, table.header), rule, *rows)]
    texts = map(escape_markdown, [table.finding, *table.notes])
    return [f"### {escape_markdown(table.title)}", next(texts), "\n".join(lines), *texts]


def _markdown_cell(cell: Cell) -> str:
    text = escape_markdown(cell.text)
    return f"**{text}**" if cell.is_best else text


def escape_markdown(text: str) -> str:
    r"""Text that is shown as it is, on one line.

    >>> print(escape_markdown("a|b <i>"))
    a\|b &lt;i&gt;
    """
    return "".join(_MARKDOWN.get(sign, sign) for sign in _one_line(text))


def latex(tables: Sequence[Comparison], problems: Sequence[str]) -> str:
    """A ``table`` for each, of plain LaTeX, and comments on what could not be read."""
    parts = ["% Made by sparsum report --latex. No package is needed.", *map(_latex_table, tables)]
    if problems:
        parts.append("\n".join(["% Left out:", *(f"% {_one_line(problem)}" for problem in problems)]))
    return "\n\n".join(parts)


def _latex_table(table: Comparison) -> str:
    import pandas

    frame = pandas.DataFrame([[cell.text for cell in row] for row in table.rows], columns=table.header)
    bold = pandas.DataFrame([["textbf:--rwrap;" * cell.is_best for cell in row] for row in table.rows], columns=table.header)
    # Rules of plain LaTeX; those of pandas need a package, as would a bold sign for plus or minus.
    rules = [{"selector": f"{place}rule", "props": ":hline;"} for place in ("top", "mid", "bottom")]
    style = frame.style.hide(axis="index").set_table_styles(rules).apply(lambda _: bold, axis=None)
    style = style.format(lambda text: "--" if text == NOTHING else escape_latex(text)).format_index(escape_latex, axis=1)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(f'{table.title}. {table.finding}')}}}",
        r"\small",
        style.to_latex(column_format="l" + "r" * (len(table.header) - 1)).rstrip(),
        r"\par\medskip",
        r"\begin{minipage}{\linewidth}\footnotesize",
        *(f"{escape_latex(note)}\\par" for note in table.notes),
        r"\end{minipage}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def escape_latex(text: str) -> str:
    r"""Text that is shown as it is, on one line; consecutive hyphens would become a dash.

    >>> print(escape_latex("50% of a_b--c"))
    50\% of a\_b-{}-c
    """
    escaped = "".join(_LATEX.get(sign, sign) for sign in _one_line(text))
    return re.sub("-(?=-)", "-{}", escaped)


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())
