"""How methods are told apart: by colour, dashes and mark, so that no one of them is needed."""

from __future__ import annotations

from collections.abc import Mapping

from sparsum_experiments.report.html import Markup, element

#: The colours of the style sheet, ``.s0`` and so on.
N_COLOURS = 14
# As many as the experiments have methods; the others repeat sooner, but no two methods have the same dashes and mark.
_DASHES = ("none", "8 3", "2 3", "9 3 2 3", "14 4", "5 2", "1 3 7 3")
_SHAPES = (
    "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0z",
    "M-3.2-3.2h6.4v6.4h-6.4z",
    "M0-4.4L4.2 3.1H-4.2z",
    "M0-4.7L4.7 0L0 4.7L-4.7 0z",
    "M-3.4-3.4L3.4 3.4M-3.4 3.4L3.4-3.4",
    "M0 4.4L4.2-3.1H-4.2z",
    "M-4.4 0H4.4M0-4.4V4.4",
    "M-4.2-2.1H4.2V2.1H-4.2z",
)


def colour_class(style: int) -> str:
    """The class that gives lines and marks their colour."""
    return f"s{style % N_COLOURS}"


def dashes(style: int) -> str:
    """The dashes of a line."""
    return _DASHES[style % len(_DASHES)]


def mark(style: int, x: float, y: float) -> Markup:
    """A mark at a place."""
    return element("path", d=_SHAPES[style % len(_SHAPES)], transform=f"translate({x:.1f} {y:.1f})", class_="mark")


def legend(styles: Mapping[str, int]) -> Markup:
    """A button for each method, by which a script hides and shows it in all figures of its section."""
    return element("div", *(_button(name, style) for name, style in styles.items()), class_="legend")


def _button(name: str, style: int) -> Markup:
    sample = element(
        "svg",
        element("path", d="M1 7h32", class_="line", stroke_dasharray=dashes(style)),
        mark(style, 17, 7),
        viewBox="0 0 34 14",
        width="34",
        height="14",
        aria_hidden="true",
        class_=colour_class(style),
    )
    return element("button", sample, element("span", name), type="button", aria_pressed="true", data_series=str(style))
