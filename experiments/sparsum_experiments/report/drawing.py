"""A figure: its axes, its SVG drawn by Vega, its description in words and its numbers for a script."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree  # nosec B405 # of pictures that Vega drew in this process

import numpy as np
from markupsafe import Markup

from sparsum_experiments.files import printable
from sparsum_experiments.report.axes import Axis, axis_of, scaled
from sparsum_experiments.report.summary import Statistic, number

if TYPE_CHECKING:
    from pandas import DataFrame, Series

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
# What the layers read of their rows, besides places and colours.
_FIELDS = {
    "lines": ["low", "high", "style", "order"],
    "bars": ["x2", "y2"],
    "marks": ["shape"],
    "names": ["x2", "y2", "text"],
}
# Lines and bands end at the frame, and what cannot be shown leaves a gap.
_PATH = {"clip": True, "invalid": "break-paths-filter-domains"}
# Vega marks up each element for screen readers; here the whole picture is one image with a description.
_KEPT = re.compile(r"d|transform|x2|y2|fill|stroke(-width|-dasharray)?|text-anchor|clip-path|opacity")
_CUT_NOTE = "Some values, of the first epochs or of spikes, are outside the frame."
# Error bars: the columns of both ends.
_BARS = ((("left", "y"), ("right", "y")), (("x", "low"), ("x", "high")))


@dataclass
class Figure:
    """A picture and its caption. Places are pixels from the upper left corner of the plot."""

    title: str
    note: str
    x_label: str
    y_label: str
    series: Sequence[DataFrame]  # for each method a `line`, or a `mark` that may follow the path that leads to it
    logarithmic: str = ""  # the axes on which equal ratios are equal distances
    edges: str = ""  # what bands reach around medians; empty if they are standard errors around means

    def __post_init__(self) -> None:
        import pandas

        self.data = pandas.concat(self.series, ignore_index=True)
        self.has_marks = bool(self.data.is_mark.any())
        self.plot_height = max(HEIGHT, _NAME_HEIGHT * len(self.series))
        self.width, self.height = LEFT + WIDTH + _RIGHT, TOP + self.plot_height + _BOTTOM
        self.x = axis_of(self.data, ["left", "x", "right"], "x" in self.logarithmic, is_free=self.has_marks)
        self.y = axis_of(self.data, ["low", "y", "high"], "y" in self.logarithmic, is_free=True)
        self.is_empty = self.x.is_empty or self.y.is_empty

    @property
    def caption(self) -> str:
        """How to read it, and what is not in it."""
        return f"{'Nothing to draw. ' * self.is_empty}{self.note} {_CUT_NOTE * (self.x.is_cut or self.y.is_cut)}".strip()

    @property
    def description(self) -> str:
        """For readers who cannot see the picture: the axes, and where each method ends."""
        ends = "; ".join(f"{rows.method.iloc[0]} {self._end_in_words(rows)}" for rows in self.series)
        return f"{self.y_label} against {self.x_label}. At the end: {ends}."

    @property
    def numbers(self) -> dict[str, Any]:
        """For a script that shows values."""
        return {
            "kind": "points" if self.has_marks else "lines",
            "xLabel": self.x_label,
            "yLabel": self.y_label,
            "x": self.x.ends | {"start": LEFT, "end": LEFT + WIDTH},
            "y": self.y.ends | {"start": TOP + self.plot_height, "end": TOP},
            "series": [_numbers(rows) for rows in self.series],
        }

    def picture(self, name: str) -> Markup:
        """The content of the SVG, drawn by Vega: axes, bands, lines, marks, and names at the right of the plot.

        The name is the figure's id on the page.
        """
        import vl_convert

        def layer(data: str, kind: str, *, mark: Mapping[str, Any] | None = None, **places: Any) -> dict[str, Any]:
            """Colours are in the data, without a scale."""
            paint = {"field": "colour", "type": "nominal", "scale": None}
            encoding = {"stroke" if kind in {"line", "rule"} else "fill": paint, **places}
            return {"data": {"name": data}, "mark": {"type": kind, **(mark or {})}, "encoding": encoding}

        def pixels(field: str) -> dict[str, Any]:
            return {"field": field, "type": "quantitative", "scale": None}

        def axis(field: str, axis: Axis, label: str, **options: Any) -> dict[str, Any]:
            options |= {"values": ticks} if (ticks := axis.ticks(label)) else {"tickCount": 6}
            scale = {"domain": axis.domain, "nice": False, "zero": False, "type": "log" if axis.is_logarithmic else "linear"}
            look = {"scale": scale, "title": printable(label), "axis": {"format": ".6~g", **options}}
            return {"field": field, "type": "quantitative", **look}

        def upright(field: str) -> dict[str, Any]:
            return axis(field, self.y, self.y_label, titleX=-50, ticks=False, domain=False)

        x = axis("x", self.x, self.x_label, grid=False, titleY=34)
        styles = sorted(set(self.data["style"].tolist()))
        dashes = {"domain": styles, "range": [_DASHES[style % len(_DASHES)] for style in styles]}
        dash = {"field": "style", "type": "ordinal", "scale": dashes, "legend": None}
        order = {"field": "order", "type": "quantitative"}
        thin = {"strokeWidth": 1, "opacity": 0.4} if self.has_marks else {"strokeWidth": 1.8}
        place = {"x": pixels("x"), "y": pixels("y")}
        ends = {**place, "x2": {"field": "x2"}, "y2": {"field": "y2"}}
        look = {"strokeWidth": 0.8, "opacity": 0.6, "strokeDash": [1, 3]}
        text = {"align": "left", "dx": 12, "baseline": "middle"}
        spec = {
            "width": WIDTH,
            "height": self.plot_height,
            "padding": {"left": LEFT, "top": TOP, "right": _RIGHT, "bottom": _BOTTOM},
            "autosize": {"type": "none"},
            "config": _LOOK,
            "layer": [
                layer("lines", "area", mark={"opacity": 0.16, **_PATH}, x=x, y=upright("low"), y2={"field": "high"}),
                layer("lines", "line", mark={**thin, **_PATH}, x=x, y=upright("y"), strokeDash=dash, order=order),
                layer("names", "rule", mark=look, **ends),
                layer("bars", "rule", mark={"strokeWidth": 1.5}, **ends),
                layer(
                    "marks",
                    "point",
                    mark={"filled": True, "size": 42},
                    shape={"field": "shape", "type": "nominal", "scale": None},
                    **place,
                ),
                layer("names", "text", mark=text, text={"field": "text", "type": "nominal"}, **place),
            ],
            "datasets": self._layers(),
        }
        return self._tidied(name, vl_convert.vegalite_to_svg(spec))

    def _layers(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of each layer. Vega writes the colour to each element, by which `_tidied` finds the series."""
        import pandas

        data = self.data.assign(colour=[f"var(--c{style})" for style in self.data["style"]])
        lines = data[~data.is_mark & scaled(data.x, self.x.is_logarithmic).notna()]
        edges = lines[["y", "low", "high"]]  # what cannot be shown leaves a gap
        lines = lines.assign(**edges.where(scaled(edges, self.y.is_logarithmic).notna()))
        data["shape"] = [sample(style)["shape"] for style in data["style"]]
        marks = data[data.is_mark]
        bars = pandas.concat(
            self._placed(marks, *ends).join(self._placed(marks, *others)[["x", "y"]].add_suffix("2"))
            for ends, others in _BARS
        ).sort_index(kind="stable")
        placed = self._placed(data[data.is_mark | (not self.has_marks)], "x", "y").dropna(subset=["x", "y"])
        ends = placed.groupby("style", sort=False).tail(1)
        names = ends.assign(x2=ends.x, y2=ends.y.clip(0, self.plot_height), x=WIDTH + 20, text=ends.method.map(shortened))
        names["y"] = spread(names.y2, 4, self.plot_height - 2)
        layers = {
            "lines": lines.assign(order=range(len(lines))),  # epochs, by which paths turn back where x does
            "bars": bars[np.hypot(bars.x - bars.x2, bars.y - bars.y2) > 1],  # long enough to be seen
            "marks": pandas.concat([*(self._marked(rows) for _, rows in placed.groupby("style", sort=False)), names]),
            "names": names,
        }
        return {name: _records(rows[["x", "y", "colour", *_FIELDS[name]]]) for name, rows in layers.items()}

    def _placed(self, rows: DataFrame, x: str, y: str) -> DataFrame:
        """Rows with the places of two columns as x and y; NaN where a value cannot be shown."""
        return rows.assign(x=WIDTH * self.x.part(rows[x]), y=self.plot_height * (1 - self.y.part(rows[y])))

    def _marked(self, places: DataFrame) -> DataFrame:
        """The places of marks of a method: all that are inside the frame, or a few of a long line."""
        places = places[places.x.between(-1, WIDTH + 1) & places.y.between(-1, self.plot_height + 1)]
        if len(places) <= _MAX_ALL_MARKED:
            return places
        step = len(places) / _N_MARKED  # elsewhere on each line, so that lines on top of each other can be told apart
        shift = (0.1 + 0.618 * places["style"].iloc[0]) % 1
        return places.iloc[[int(step * (i + shift)) for i in range(_N_MARKED)]]

    def _end_in_words(self, rows: DataFrame) -> str:
        ends = [row for row in rows.itertuples() if row.is_mark or math.isfinite(row.y)]
        if not ends:
            return "not a number"
        end = ends[-1]
        if end.is_mark:
            x, y = self.x_label.partition(",")[0], self.y_label.partition(",")[0]
            return f"{y} {_in_words(end.y, end.high)}, {x} {_in_words(end.x, end.right)}"
        if self.edges and math.isfinite(end.high - end.low):
            return f"median {end.y:.4g}, {self.edges} {end.low:.4g} to {end.high:.4g}"
        return _in_words(end.y, end.high)

    def _tidied(self, name: str, svg: str) -> Markup:
        """Vega's picture without what the page does not need; elements of a method say which it is."""
        plain = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg, count=2)
        root = ElementTree.fromstring(plain)  # nosec B314
        for parent in list(root.iter()):
            for child in list(parent):
                is_empty = child.tag == "path" and not child.get("d")
                if is_empty or child.tag == "defs" or child.get("class") in {"background", "foreground"}:
                    parent.remove(child)
        for each in root.iter():
            paint = re.fullmatch(r"var\(--c(\d+)\)", each.get("fill") or each.get("stroke") or "")
            each.attrib = {key: _short(value) for key, value in each.attrib.items() if _KEPT.fullmatch(key) and value != "1"}
            if "clip-path" in each.attrib:
                each.set("clip-path", f"url(#{name}-clip)")
            if paint:
                each.set("data-series", paint[1])
                each.set("stroke" if each.get("stroke") else "fill", sample(int(paint[1]))["colour"])
        size = f'x="-2" y="-2" width="{WIDTH + 4}" height="{self.plot_height + 4}"'  # a line along the edge is not cut
        clip = f'<clipPath id="{name}-clip"><rect {size}/></clipPath>'
        parts = (ElementTree.tostring(child, encoding="unicode") for child in root)  # which escapes names
        return Markup(clip + "".join(parts))  # nosec B704


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


def spread(places: Series, low: float, high: float) -> Series:
    """Places one below the other, each as near to its own as the others let it.

    >>> import pandas
    >>> spread(pandas.Series([50.0, 50.0, 90.0]), 0.0, 100.0).tolist()
    [50.0, 65.0, 90.0]
    """
    steps = _NAME_HEIGHT * np.arange(len(places))
    down = (places.sort_values(kind="stable").clip(lower=low) - steps).cummax() + steps
    return (down.clip(upper=high) - steps)[::-1].cummin()[::-1] + steps


def _short(text: str) -> str:
    """Places with a digit after the point, which keeps the page small."""
    return re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", text)


def _in_words(value: float, high: float) -> str:
    return number(Statistic(value, high - value if math.isfinite(high) else None, 1), 1)


def _numbers(rows: DataFrame) -> dict[str, Any]:
    *_, end = rows.itertuples()
    found = {"name": end.method, "style": end.style, "colour": sample(end.style)["colour"]}
    if end.is_mark:
        numbers = {"x": end.x, "y": end.y, "xError": end.right - end.x, "yError": end.high - end.y}
        return found | {name: _rounded(value) for name, value in numbers.items()}
    lists = {name: [_rounded(value) for value in rows[name]] for name in ("x", "y", "low", "high")}
    return found | lists if rows.low.notna().any() else found | lists | {"low": [], "high": []}


def _records(rows: DataFrame) -> list[dict[str, Any]]:
    """The rows for JSON, which does not have NaN."""
    columns = {name: [None if value != value else value for value in values.tolist()] for name, values in rows.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _rounded(value: float) -> float | None:
    """With few digits, which keeps the page small; None for what JSON does not have."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
