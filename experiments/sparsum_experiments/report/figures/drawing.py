"""A figure as SVG, with its description in words and its numbers for a script."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

from markupsafe import Markup

from sparsum_experiments.files import printable
from sparsum_experiments.report.figures.figure import Axis, Figure, Series
from sparsum_experiments.report.summary import Statistic

# Of the plot within the picture, in pixels: a script finds values by them.
LEFT, TOP, WIDTH, HEIGHT = 66, 14, 440, 314
_RIGHT, _BOTTOM = 160, 52
# Of a name beside the plot.
_NAME_HEIGHT, _MAX_SIGNS = 15, 20
# A short line has a mark at each point, a longer one so many.
_N_MARKED, _MAX_ALL_MARKED = 5, 15
# Methods differ in colour, dashes and mark, so that any one of them is enough. Colours are those of the style sheet.
_N_COLOURS = 15
_DASHES = ([1, 0], [8, 3], [2, 3], [9, 3, 2, 3], [14, 4], [5, 2], [1, 3, 7, 3])
_SHAPES = (
    "M1,0A1,1,0,1,1,-1,0A1,1,0,1,1,1,0Z",
    "M-.9,-.9H.9V.9H-.9Z",
    "M0,-1.2L1.15,.9H-1.15Z",
    "M0,-1.3L1.3,0L0,1.3L-1.3,0Z",
    "M-1.2,-.7L-.7,-1.2L0,-.5L.7,-1.2L1.2,-.7L.5,0L1.2,.7L.7,1.2L0,.5L-.7,1.2L-1.2,.7L-.5,0Z",
    "M0,1.2L1.15,-.9H-1.15Z",
    "M-.4,-1.3H.4V-.4H1.3V.4H.4V1.3H-.4V.4H-1.3V-.4H-.4Z",
    "M-1.3,-.6H1.3V.6H-1.3Z",
    "M1.2,0L-.9,1.15V-1.15Z",
    "M-1.2,0L.9,1.15V-1.15Z",
    "M-1.1,-1.2H1.1L-1.1,1.2H1.1Z",
)
_LOOK = {
    "background": "transparent",
    "aria": False,
    "view": {"stroke": None},
    "text": {"fontSize": 12},
    "point": {"opacity": 1},
    "axis": {
        "labelColor": "var(--text)",
        "titleColor": "var(--text)",
        "gridColor": "var(--rule)",
        "tickColor": "var(--soft)",
        "domainColor": "var(--soft)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelFlush": False,
        "labelPadding": 5,
    },
}
# Vega marks up each element for screen readers; here the whole picture is one image with a description.
_KEPT = {"d", "transform", "x2", "y2", "fill", "stroke", "stroke-width", "stroke-dasharray", "text-anchor", "clip-path"}
_CUT_NOTE = "Some values, of the first epochs or of spikes, are outside the frame."


class Drawing(NamedTuple):
    """A figure for the page.

    Args:
        title: what it shows.
        note: how to read it.
        picture: the content of its ``svg`` element; empty if there is nothing to draw.
        height: of the picture, in pixels.
        description: for readers who cannot see the picture.
        numbers: for a script.
    """

    title: str
    note: str
    picture: Markup = Markup()
    height: int = 0
    description: str = ""
    numbers: dict[str, Any] = {}  # noqa: RUF012  (never changed)

    @property
    def width(self) -> int:
        """Of the picture, in pixels."""
        return LEFT + WIDTH + _RIGHT


class _Plot(NamedTuple):
    """The axes of a figure in its picture; places are pixels from the upper left corner of the plot."""

    x: Axis
    y: Axis
    height: int

    def place(self, x: float, y: float) -> tuple[float, float] | None:
        """Where a pair of values is; None if it cannot be shown."""
        if not (self.x.shows(x) and self.y.shows(y)):
            return None
        return WIDTH * self.x.part(x), self.height * (1 - self.y.part(y))

    def within(self, pairs: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        """The places of the pairs that are inside the frame."""
        places = filter(None, (self.place(*pair) for pair in pairs))
        return [(x, y) for x, y in places if -1 <= x <= WIDTH + 1 and -1 <= y <= self.height + 1]

    def end(self, series: Series) -> tuple[float, float] | None:
        """Where the mark of a series is, or the end of its line, moved into the frame."""
        pairs = list(zip(series.x, series.y, strict=True))
        if series.point:
            pairs = [(series.point.x.mean, series.point.y.mean)]
        places = list(filter(None, (self.place(*pair) for pair in pairs)))
        return (places[-1][0], min(max(places[-1][1], 0.0), self.height)) if places else None


def draw(figure: Figure, name: str) -> Drawing:
    """A figure; ``name`` is its id on the page."""
    axes = figure.axes()
    if axes is None:
        return Drawing(figure.title, f"Nothing to draw. {figure.note}")
    x, y, is_cut = axes
    plot = _Plot(x, y, max(HEIGHT, _NAME_HEIGHT * len(figure.series)))
    return Drawing(
        figure.title,
        f"{figure.note} {_CUT_NOTE * is_cut}".strip(),
        _picture(figure, plot, name),
        TOP + plot.height + _BOTTOM,
        _described(figure),
        {
            "kind": "points" if figure.has_points else "lines",
            "xLabel": figure.x_label,
            "yLabel": figure.y_label,
            "x": x._asdict() | {"start": LEFT, "end": LEFT + WIDTH},
            "y": y._asdict() | {"start": TOP + plot.height, "end": TOP},
            "series": [_numbers(series) for series in figure.series],
        },
    )


def sample(style: int) -> dict[str, str]:
    """How a method looks, for a legend."""
    return {
        "colour": f"var(--c{style % _N_COLOURS})",
        "dashes": " ".join(map(str, _DASHES[style % len(_DASHES)])),
        "shape": _SHAPES[style % len(_SHAPES)],
    }


def _picture(figure: Figure, plot: _Plot, name: str) -> Markup:
    """The content of the picture, drawn by Vega: axes, bands, lines, marks, and names at the right of the plot."""
    import altair  # here, so that commands that draw nothing start faster
    import vl_convert

    names = _names(figure, plot)
    data = {
        "lines": [row for series in figure.series for row in _rows(plot, series)],
        "bars": [bar for series in figure.series for bar in _bars(plot, series)],
        "marks": [mark for series in figure.series for mark in _marks(plot, series)] + names,
        "names": names,
    }

    def layer(rows: str, kind: str, **mark: Any) -> altair.Chart:
        """Colours are in the data, without a scale."""
        chart: altair.Chart = getattr(altair.Chart(altair.NamedData(rows)), f"mark_{kind}")(**mark)
        paint = altair.Stroke if kind in {"line", "rule"} else altair.Fill
        return chart.encode(paint("colour:N", scale=None))

    def axis(axis: Axis, label: str, **options: Any) -> dict[str, Any]:
        ticks = {"values": _ticks(axis)} if axis.is_logarithmic else {"tickCount": 6, "tickMinStep": int(label == "epoch")}
        options |= ticks
        kind: Any = "log" if axis.is_logarithmic else "linear"
        scale = altair.Scale(domain=axis.domain, nice=False, zero=False, type=kind)
        return {"scale": scale, "title": printable(label), "axis": altair.Axis(format=".6~g", **options)}

    x = altair.X("x:Q", **axis(plot.x, figure.x_label, grid=False, titleY=34))
    height = axis(plot.y, figure.y_label, titleX=-54, ticks=False, domain=False)
    styles = sorted({series.style for series in figure.series})
    dashes = altair.Scale(domain=styles, range=[_DASHES[style % len(_DASHES)] for style in styles])
    path = {"clip": True, "invalid": "break-paths-filter-domains"}
    thin = {"strokeWidth": 1, "opacity": 0.4} if figure.has_points else {"strokeWidth": 1.8}
    pixels = {key: kind(f"{key}:Q", scale=None) for key, kind in (("x", altair.X), ("y", altair.Y))}
    chart = altair.layer(
        layer("lines", "area", opacity=0.16, **path).encode(x, altair.Y("low:Q", **height), y2="high:Q"),
        layer("lines", "line", **thin, **path).encode(
            x, altair.Y("y:Q", **height), altair.StrokeDash("style:O", scale=dashes, legend=None)
        ),
        layer("names", "rule", strokeWidth=0.8, opacity=0.6, strokeDash=[1, 3]).encode(**pixels, x2="x2:Q", y2="y2:Q"),
        layer("bars", "rule", strokeWidth=1.5).encode(**pixels, x2="x2:Q", y2="y2:Q"),
        layer("marks", "point", filled=True, size=42).encode(altair.Shape("shape:N", scale=None), **pixels),
        layer("names", "text", align="left", dx=12, baseline="middle").encode(text="text:N", **pixels),
    ).properties(
        width=WIDTH,
        height=plot.height,
        padding={"left": LEFT, "top": TOP, "right": _RIGHT, "bottom": _BOTTOM},
        autosize=altair.AutoSizeParams(type="none"),
    )
    spec = chart.configure(**_LOOK).to_dict() | {"datasets": data}
    return _tidied(vl_convert.vegalite_to_svg(spec), name, plot.height)


def _colour(series: Series) -> dict[str, Any]:
    """Vega writes the colour to each element, by which `_tidied` finds the series."""
    return {"colour": f"var(--c{series.style})", "style": series.style}


def _rows(plot: _Plot, series: Series) -> list[dict[str, Any]]:
    """The line and the band of a method; None for values that cannot be shown, which leaves a gap."""

    def shown(value: float) -> float | None:
        return value if plot.y.shows(value) else None

    missing = [None] * len(series.x)
    return [
        {"x": x, "y": shown(y), "low": low and shown(low), "high": high and shown(high)} | _colour(series)
        for x, y, low, high in zip(series.x, series.y, series.low or missing, series.high or missing, strict=True)
        if plot.x.shows(x)
    ]


def _marks(plot: _Plot, series: Series) -> list[dict[str, Any]]:
    pairs = list(zip(series.x, series.y, strict=True))
    if series.point:
        pairs = [(series.point.x.mean, series.point.y.mean)]
    places = plot.within(pairs)
    if len(places) > _MAX_ALL_MARKED:  # elsewhere on each line, so that lines on top of each other can be told apart
        step = len(places) / _N_MARKED
        places = [places[int(step * (i + (0.1 + 0.618 * series.style) % 1))] for i in range(_N_MARKED)]
    shape = {"shape": sample(series.style)["shape"]}
    return [{"x": x, "y": y} | shape | _colour(series) for x, y in places]


def _bars(plot: _Plot, series: Series) -> list[dict[str, Any]]:
    """The errors of a point, where they can be seen."""
    if series.point is None:
        return []
    (left, x, right), (bottom, y, top) = series.ends("x"), series.ends("y")
    pairs = [(plot.place(left, y), plot.place(right, y)), (plot.place(x, bottom), plot.place(x, top))]
    return [
        {"x": one[0], "y": one[1], "x2": other[0], "y2": other[1]} | _colour(series)
        for one, other in pairs
        if one and other and math.dist(one, other) > 1
    ]


def _names(figure: Figure, plot: _Plot) -> list[dict[str, Any]]:
    """Names at the right of the plot, each with its mark and as near to the end of its line as there is room."""
    ends = [(series, end) for series in figure.series if (end := plot.end(series))]
    rows = spread([y for _, (_, y) in ends], 4, plot.height - 2)
    return [
        {"x": WIDTH + 20, "y": row, "x2": x, "y2": y, "text": shortened(series.name), "shape": sample(series.style)["shape"]}
        | _colour(series)
        for (series, (x, y)), row in zip(ends, rows, strict=True)
    ]


def shortened(name: str) -> str:
    """A name that fits beside a plot.

    >>> shortened("sparse"), shortened("a very long name of a method")
    ('sparse', 'a very long name of…')
    """
    name = printable(name)
    return name if len(name) <= _MAX_SIGNS else f"{name[: _MAX_SIGNS - 1]}…"


def spread(places: Sequence[float], low: float, high: float) -> list[float]:
    """Places one below the other, each as near to its own as the others let it.

    >>> spread([50.0, 50.0, 90.0], 0.0, 100.0)
    [50.0, 65.0, 90.0]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    found = [0.0] * len(places)
    edge = low
    for i in order:
        found[i] = max(places[i], edge)
        edge = found[i] + _NAME_HEIGHT
    edge = high
    for i in reversed(order):
        found[i] = min(found[i], edge)
        edge = found[i] - _NAME_HEIGHT
    return found


def _ticks(axis: Axis) -> list[float]:
    """Round values on a logarithmic axis: as many of 1, 2 and 5 times powers of ten as there is room for."""
    decades = range(math.floor(axis.low), math.ceil(axis.high) + 1)
    for digits in ((1, 2, 5), (1,)):
        ticks = [digit * 10.0**decade for decade in decades for digit in digits]
        shown = [tick for tick in ticks if axis.low <= math.log10(tick) <= axis.high]
        if len(shown) <= 10:
            break
    return shown[:: math.ceil(len(shown) / 10)] if shown else axis.domain


def _tidied(svg: str, name: str, height: int) -> Markup:
    """Vega's picture without what the page does not need; elements of a method say which it is."""
    root = ElementTree.fromstring(re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg, count=2))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == "defs" or child.get("class") in {"background", "foreground"}:
                parent.remove(child)
    for each in root.iter():
        paint = re.fullmatch(r"var\(--c(\d+)\)", each.get("fill") or each.get("stroke") or "")
        opacity = {"opacity": value for value in [each.get("opacity")] if value not in {None, "1"}}
        each.attrib = {key: _short(value) for key, value in each.attrib.items() if key in _KEPT} | opacity
        if "clip-path" in each.attrib:
            each.set("clip-path", f"url(#{name}-clip)")
        if paint:
            each.set("data-series", paint[1])
            each.set("stroke" if each.get("stroke") else "fill", sample(int(paint[1]))["colour"])
    clip = f'<clipPath id="{name}-clip"><rect x="-2" y="-2" width="{WIDTH + 4}" height="{height + 4}"/></clipPath>'
    return Markup(clip + "".join(ElementTree.tostring(child, encoding="unicode") for child in root))


def _short(text: str) -> str:
    """Places with a digit after the point, which keeps the page small."""
    return re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", text)


def _described(figure: Figure) -> str:
    """For readers who cannot see the picture: the axes, and where each method ends."""
    ends = [f"{series.name} {_end_in_words(figure, series)}" for series in figure.series]
    return f"{figure.y_label} against {figure.x_label}. At the end: {'; '.join(ends)}."


def _end_in_words(figure: Figure, series: Series) -> str:
    if series.point:
        x, y = figure.x_label.partition(",")[0], figure.y_label.partition(",")[0]
        return f"{y} {_in_words(series.point.y)}, {x} {_in_words(series.point.x)}"
    last = max((i for i, value in enumerate(series.y) if math.isfinite(value)), default=None)
    if last is None:
        return "not a number"
    end = series.y[last]
    low, high = (series.low[last], series.high[last]) if series.low else (math.nan, math.nan)
    if figure.edges and math.isfinite(high - low):
        return f"median {end:.4g}, {figure.edges} {low:.4g} to {high:.4g}"
    return _in_words(Statistic(end, high - end if math.isfinite(high - low) else None, 0))


def _in_words(found: Statistic) -> str:
    return f"{found.mean:.4g}" if found.error is None else f"{found.mean:.4g} ± {found.error:.2g}"


def _numbers(series: Series) -> dict[str, Any]:
    found: dict[str, Any] = {"name": series.name, "style": series.style, "colour": sample(series.style)["colour"]}
    if series.point:
        x, y = series.point.x, series.point.y
        numbers = {"x": x.mean, "y": y.mean, "xError": x.error or 0.0, "yError": y.error or 0.0}
        return found | {key: _rounded(value) for key, value in numbers.items()}
    lists = {"x": series.x, "y": series.y, "low": series.low, "high": series.high}
    return found | {key: [_rounded(value) for value in values] for key, values in lists.items()}


def _rounded(value: float) -> float | None:
    """With few digits, which keeps the page small; None for what JSON does not have."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
