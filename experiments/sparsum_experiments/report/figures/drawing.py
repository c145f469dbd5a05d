"""A figure as SVG, with its description in words and its numbers for a script."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

from sparsum_experiments.files import printable
from sparsum_experiments.report.figures.figure import Axis, Figure, Series
from sparsum_experiments.report.summary import Statistic, number

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
_LOOK: dict[str, Any] = {
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
_KEPT = {"d", "transform", "x2", "y2", "fill", "stroke", "stroke-width", "stroke-dasharray", "text-anchor", "clip-path"} | {
    "opacity"
}
_CUT_NOTE = "Some values, of the first epochs or of spikes, are outside the frame."


class Drawing:
    """A figure for the page; ``name`` is its id there. Places are pixels from the upper left corner of the plot."""

    width = LEFT + WIDTH + _RIGHT

    def __init__(self, figure: Figure, name: str) -> None:
        self.figure, self.name = figure, name
        self.is_empty = (axes := figure.axes()) is None
        self.x, self.y, self.is_cut = axes or (Axis(0, 1, False), Axis(0, 1, False), False)
        self.plot_height = max(HEIGHT, _NAME_HEIGHT * len(figure.series))
        self.height = TOP + self.plot_height + _BOTTOM

    @property
    def note(self) -> str:
        """How to read it."""
        return f"{'Nothing to draw. ' * self.is_empty}{self.figure.note} {_CUT_NOTE * self.is_cut}".strip()

    @property
    def description(self) -> str:
        """For readers who cannot see the picture: the axes, and where each method ends."""
        ends = [f"{series.name} {_end_in_words(self.figure, series)}" for series in self.figure.series]
        return f"{self.figure.y_label} against {self.figure.x_label}. At the end: {'; '.join(ends)}."

    @property
    def numbers(self) -> dict[str, Any]:
        """For a script that shows values."""
        return {
            "kind": "points" if self.figure.has_points else "lines",
            "xLabel": self.figure.x_label,
            "yLabel": self.figure.y_label,
            "x": self.x._asdict() | {"start": LEFT, "end": LEFT + WIDTH},
            "y": self.y._asdict() | {"start": TOP + self.plot_height, "end": TOP},
            "series": [_numbers(series) for series in self.figure.series],
        }

    @cached_property
    def picture(self) -> Markup:
        """The content of the SVG, drawn by Vega: axes, bands, lines, marks, and names at the right of the plot."""
        import altair  # here, so that commands that draw nothing start faster
        import vl_convert

        def layer(data: str, kind: str, **mark: Any) -> altair.Chart:
            """Colours are in the data, without a scale."""
            chart: altair.Chart = getattr(altair.Chart(altair.NamedData(data)), f"mark_{kind}")(**mark)
            paint = altair.Stroke if kind in {"line", "rule"} else altair.Fill
            return chart.encode(paint("colour:N", scale=None))

        def axis(axis: Axis, label: str, **options: Any) -> dict[str, Any]:
            options |= {"values": ticks} if (ticks := _ticks(axis, label)) else {"tickCount": 6}
            kind: Any = "log" if axis.is_logarithmic else "linear"
            scale = altair.Scale(domain=axis.domain, nice=False, zero=False, type=kind)
            return {"scale": scale, "title": printable(label), "axis": altair.Axis(format=".6~g", **options)}

        x = altair.X("x:Q", **axis(self.x, self.figure.x_label, grid=False, titleY=34))
        y = axis(self.y, self.figure.y_label, titleX=-50, ticks=False, domain=False)
        styles = sorted({series.style for series in self.figure.series})
        dashes = altair.Scale(domain=styles, range=[_DASHES[style % len(_DASHES)] for style in styles])
        path: dict[str, Any] = {"clip": True, "invalid": "break-paths-filter-domains"}
        thin: dict[str, Any] = {"strokeWidth": 1, "opacity": 0.4} if self.figure.has_points else {"strokeWidth": 1.8}
        pixels: dict[str, Any] = {"x": altair.X("x:Q", scale=None), "y": altair.Y("y:Q", scale=None)}
        chart = altair.layer(
            layer("lines", "area", opacity=0.16, **path).encode(x, altair.Y("low:Q", **y), y2="high:Q"),
            layer("lines", "line", **thin, **path).encode(
                x, altair.Y("y:Q", **y), altair.StrokeDash("style:O", scale=dashes, legend=None)
            ),
            layer("names", "rule", strokeWidth=0.8, opacity=0.6, strokeDash=[1, 3]).encode(**pixels, x2="x2:Q", y2="y2:Q"),
            layer("bars", "rule", strokeWidth=1.5).encode(**pixels, x2="x2:Q", y2="y2:Q"),
            layer("marks", "point", filled=True, size=42).encode(altair.Shape("shape:N", scale=None), **pixels),
            layer("names", "text", align="left", dx=12, baseline="middle").encode(text="text:N", **pixels),
        ).properties(
            width=WIDTH,
            height=self.plot_height,
            padding={"left": LEFT, "top": TOP, "right": _RIGHT, "bottom": _BOTTOM},
            autosize=altair.AutoSizeParams(type="none"),
        )
        spec = chart.configure(**_LOOK).to_dict() | {"datasets": self._data()}
        return self._tidied(vl_convert.vegalite_to_svg(spec))

    def _data(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of each layer. Vega writes the colour to each element, by which `_tidied` finds the series."""
        data: dict[str, list[dict[str, Any]]] = {"lines": [], "bars": [], "marks": [], "names": []}
        for series in self.figure.series:
            own = {"colour": f"var(--c{series.style})", "style": series.style}
            shape = own | {"shape": sample(series.style)["shape"]}
            data["lines"] += [row | own for row in self._rows(series)]
            data["bars"] += [{"x": a, "y": b, "x2": c, "y2": d} | own for (a, b), (c, d) in self._bars(series)]
            data["marks"] += [{"x": x, "y": y} | shape for x, y in self._marked(series)]
            for x, y in self._places(series)[-1:]:
                end = {"x2": x, "y2": min(max(y, 0.0), self.plot_height)}
                data["names"].append({"x": WIDTH + 20, "text": shortened(series.name)} | end | shape)
        rows = spread([name["y2"] for name in data["names"]], 4, self.plot_height - 2)
        data["names"] = [name | {"y": row} for name, row in zip(data["names"], rows, strict=True)]
        return data | {"marks": data["marks"] + data["names"]}

    def _place(self, x: float, y: float) -> tuple[float, float] | None:
        """Where a pair of values is; None if it cannot be shown."""
        if not (self.x.shows(x) and self.y.shows(y)):
            return None
        return WIDTH * self.x.part(x), self.plot_height * (1 - self.y.part(y))

    def _places(self, series: Series) -> list[tuple[float, float]]:
        """Where the mark of a series is, or the points of its line."""
        return list(filter(None, (self._place(x, y) for x, y in series.pairs)))

    def _rows(self, series: Series) -> list[dict[str, Any]]:
        """The line and the band of a method; None for values that cannot be shown, which leaves a gap."""
        columns = [series.y, *(edge or [math.nan] * len(series.x) for edge in (series.low, series.high))]
        shown = [[value if self.y.shows(value) else None for value in column] for column in columns]
        return [
            {"x": x, "y": y, "low": low, "high": high}
            for x, y, low, high in zip(series.x, *shown, strict=True)
            if self.x.shows(x)
        ]

    def _marked(self, series: Series) -> list[tuple[float, float]]:
        """The places of marks: all that are inside the frame, or a few of a long line."""
        places = [(x, y) for x, y in self._places(series) if -1 <= x <= WIDTH + 1 and -1 <= y <= self.plot_height + 1]
        if len(places) <= _MAX_ALL_MARKED:
            return places
        step = len(places) / _N_MARKED  # elsewhere on each line, so that lines on top of each other can be told apart
        return [places[int(step * (i + (0.1 + 0.618 * series.style) % 1))] for i in range(_N_MARKED)]

    def _bars(self, series: Series) -> list[tuple[tuple[float, float], tuple[float, float]]]:
        """The ends of error bars that are long enough to be seen."""
        if series.point is None:
            return []
        (left, x, right), (bottom, y, top) = series.ends("x"), series.ends("y")
        bars = [(self._place(left, y), self._place(right, y)), (self._place(x, bottom), self._place(x, top))]
        return [(one, other) for one, other in bars if one and other and math.dist(one, other) > 1]

    def _tidied(self, svg: str) -> Markup:
        """Vega's picture without what the page does not need; elements of a method say which it is."""
        root = ElementTree.fromstring(re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg, count=2))
        for parent in list(root.iter()):
            for child in list(parent):
                is_empty = child.tag == "path" and not child.get("d")
                if is_empty or child.tag == "defs" or child.get("class") in {"background", "foreground"}:
                    parent.remove(child)
        for each in root.iter():
            paint = re.fullmatch(r"var\(--c(\d+)\)", each.get("fill") or each.get("stroke") or "")
            each.attrib = {key: _short(value) for key, value in each.attrib.items() if key in _KEPT and value != "1"}
            if "clip-path" in each.attrib:
                each.set("clip-path", f"url(#{self.name}-clip)")
            if paint:
                each.set("data-series", paint[1])
                each.set("stroke" if each.get("stroke") else "fill", sample(int(paint[1]))["colour"])
        size = f'x="-2" y="-2" width="{WIDTH + 4}" height="{self.plot_height + 4}"'  # a line along the edge is not cut
        clip = f'<clipPath id="{self.name}-clip"><rect {size}/></clipPath>'
        return Markup(clip + "".join(ElementTree.tostring(child, encoding="unicode") for child in root))


def sample(style: int) -> dict[str, str]:
    """How a method looks, for a legend."""
    return {
        "colour": f"var(--c{style % _N_COLOURS})",
        "dashes": " ".join(map(str, _DASHES[style % len(_DASHES)])),
        "shape": _SHAPES[style % len(_SHAPES)],
    }


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


def _ticks(axis: Axis, label: str) -> list[float]:
    """Where Vega would not choose well: epochs are integers, and a logarithmic axis has 1, 2 and 5 times powers of ten."""
    if label == "epoch" and axis.high - axis.low <= 6:
        return [float(i) for i in range(math.ceil(axis.low), math.floor(axis.high) + 1)]
    if not axis.is_logarithmic:
        return []
    decades = range(math.floor(axis.low), math.ceil(axis.high) + 1)
    for digits in ((1, 2, 5), (1,)):
        ticks = [digit * 10.0**decade for decade in decades for digit in digits]
        shown = [tick for tick in ticks if axis.low <= math.log10(tick) <= axis.high]
        if len(shown) <= 10:
            break
    return shown[:: math.ceil(len(shown) / 10)] if shown else axis.domain


def _short(text: str) -> str:
    """Places with a digit after the point, which keeps the page small."""
    return re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", text)


def _end_in_words(figure: Figure, series: Series) -> str:
    if series.point:
        x, y = figure.x_label.partition(",")[0], figure.y_label.partition(",")[0]
        return f"{y} {number(series.point.y, series.point.y.n)}, {x} {number(series.point.x, series.point.x.n)}"
    last = max((i for i, value in enumerate(series.y) if math.isfinite(value)), default=None)
    if last is None:
        return "not a number"
    end = series.y[last]
    low, high = (series.low[last], series.high[last]) if series.low else (math.nan, math.nan)
    if figure.edges and math.isfinite(high - low):
        return f"median {end:.4g}, {figure.edges} {low:.4g} to {high:.4g}"
    return number(Statistic(end, high - end if math.isfinite(high - low) else None, 1), 1)


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
