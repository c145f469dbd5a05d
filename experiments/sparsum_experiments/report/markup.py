"""Tables as Markdown and LaTeX, by templates in which every text that was not written there is escaped."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import jinja2

from sparsum_experiments.files import printable
from sparsum_experiments.report.comparison import Comparison

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
    return _rendered("tables.md.j2", escape_markdown, tables, problems)


def latex(tables: Sequence[Comparison], problems: Sequence[str]) -> str:
    """A ``table`` for each, of plain LaTeX, and comments on what could not be read."""
    return _rendered("tables.tex.j2", escape_latex, tables, problems)


def _rendered(template: str, escape: Callable[[str], str], tables: Sequence[Comparison], problems: Sequence[str]) -> str:
    # pandas' to_markdown needs a further package and escapes nothing; its to_latex takes more code than a template.
    environment = jinja2.Environment(  # nosec B701 # not for HTML; `escape` is applied to all values
        loader=jinja2.PackageLoader("sparsum_experiments.report"),
        finalize=escape,
        variable_start_string="<<",
        variable_end_string=">>",
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(template).render(tables=tables, problems=problems).strip("\n")


def escape_markdown(text: str) -> str:
    r"""Text that is shown as it is, on one line.

    >>> print(escape_markdown("a|b <i>"))
    a\|b &lt;i&gt;
    """
    return "".join(_MARKDOWN.get(sign, sign) for sign in _one_line(text))


def escape_latex(text: str) -> str:
    r"""Text that is shown as it is, on one line; consecutive hyphens would become a dash.

    >>> print(escape_latex("50% of a_b--c"))
    50\% of a\_b-{}-c
    """
    return re.sub("-(?=-)", "-{}", "".join(_LATEX.get(sign, sign) for sign in _one_line(text)))


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())
