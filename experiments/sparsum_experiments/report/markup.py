"""Tables as Markdown and as LaTeX, in which everything that was not made here is escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sparsum_experiments.report.comparison import Cell, Comparison
from sparsum_experiments.report.paper import NOTHING

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


def latex(tables: Sequence[Comparison], problems: Sequence[str]) -> str:
    """A ``table`` for each, of plain LaTeX, and comments on what could not be read."""
    parts = ["% Made by sparsum report --latex. No package is needed."]
    parts += map(_latex_table, tables)
    if problems:
        parts.append("\n".join(["% Left out:", *(f"% {_one_line(problem)}" for problem in problems)]))
    return "\n\n".join(parts)


def escape_markdown(text: str) -> str:
    r"""Text that is shown as it is, on one line.

    >>> print(escape_markdown("a|b <i>"))
    a\|b &lt;i&gt;
    """
    return "".join(_MARKDOWN.get(sign, sign) for sign in _one_line(text))


def escape_latex(text: str) -> str:
    r"""Text that is shown as it is, on one line; hyphens one after the other would become a dash.

    >>> print(escape_latex("50% of a_b--c"))
    50\% of a\_b-{}-c
    """
    escaped = "".join(_LATEX.get(sign, sign) for sign in _one_line(text))
    return re.sub("-(?=-)", "-{}", escaped)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _markdown_parts(table: Comparison) -> list[str]:
    rule = ["---", *["---:"] * (len(table.header) - 1)]
    rows = [[_markdown_cell(cell) for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(row)} |" for row in ([escape_markdown(name) for name in table.header], rule, *rows)]
    return [f"### {escape_markdown(table.title)}", "\n".join(lines), *map(escape_markdown, table.notes)]


def _markdown_cell(cell: Cell) -> str:
    text = escape_markdown(cell.text)
    return f"**{text}**" if cell.is_best else text


def _latex_table(table: Comparison) -> str:
    rows = [" & ".join(map(_latex_cell, row)) + r" \\" for row in table.rows]
    notes = [f"{escape_latex(note)}\\par" for note in table.notes]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(table.title)}}}",
        r"\small",
        rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
        r"\hline",
        " & ".join(map(escape_latex, table.header)) + r" \\",
        r"\hline",
        *rows,
        r"\hline",
        r"\end{tabular}",
        r"\par\medskip",
        r"\begin{minipage}{\linewidth}\footnotesize",
        *notes,
        r"\end{minipage}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _latex_cell(cell: Cell) -> str:
    if cell.text == NOTHING:
        return "--"
    # A bold sign for plus or minus would need a package.
    return rf"\textbf{{{escape_latex(cell.text)}}}" if cell.is_best else escape_latex(cell.text)
