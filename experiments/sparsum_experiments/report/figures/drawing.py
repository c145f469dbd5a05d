"""A figure as HTML: the picture, what it says in words, and its numbers for a script."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparsum_experiments.report.figures.figure import Figure, Series
from sparsum_experiments.report.figures.frame import HEIGHT, LEFT, TOP, WIDTH, Frame
from sparsum_experiments.report.figures.labels import beside, leader, shortened, spread
from sparsum_experiments.report.figures.marks import colour_class, dashes, mark
from sparsum_experiments.report.html import Markup, element, json_script
from sparsum_experiments.report.summary import Statistic

# Of long lines so many points are marked, of short ones all.
_N_MARKED, _MAX_ALL_MARKED = 5, 15
# Of the numbers for a script.
_DIGITS = 6


def draw(figure: Figure, name: str) -> Markup:
    """A figure; ``name`` is its own on the page."""
    frame = Frame.of(figure)
    if frame is None:
        return element("figure", element("figcaption", element("strong", figure.title), element("p", "Nothing to draw.")))
    drawn = [_series(frame, series, name) for series in figure.series]
    picture = element(
        "svg",
        element("title", figure.title, id=f"{name}-title"),
        element("desc", _described(figure), id=f"{name}-desc"),
        element("clipPath", element("rect", **frame.rectangle), id=f"{name}-clip"),
        *_axes(frame, figure),
        *drawn,
        *(_names_of_points(frame, figure) if figure.has_points else _names_of_lines(frame, figure)),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )
    note = f"{figure.note} {frame.note}".strip()
    return element(
        "figure",
        element("figcaption", element("strong", figure.title)),
        element("div", element("div", picture, class_="plot"), class_="scroll"),
        element("p", note, class_="soft"),
        json_script(_told(frame, figure)),
        class_="chart",
        id=name,
    )


def _series(frame: Frame, series: Series, name: str) -> Markup:
    """The band, the line and the marks of a method."""
    clipped = [_band(frame, series), _line(frame, series)]
    parts = [element("g", *clipped, clip_path=f"url(#{name}-clip)"), *_marks(frame, series)]
    return element("g", *parts, class_=_class(series, "way" if series.point else "curve"), data_series=str(series.style))


def _class(series: Series, kind: str) -> str:
    return f"series {kind} {colour_class(series.style)}"


def _line(frame: Frame, series: Series) -> Markup:
    """One path, begun again after each gap."""
    steps, is_begun = [], False
    for x, y in zip(series.x, series.y, strict=True):
        place = frame.place(x, y)
        if place:
            steps.append(f"{'L' if is_begun else 'M'}{place[0]:.1f} {place[1]:.1f}")
        is_begun = place is not None
    return element("path", d=" ".join(steps), class_="line", stroke_dasharray=dashes(series.style)) if steps else Markup("")


def _band(frame: Frame, series: Series) -> Markup:
    """The area between the edges, one for each stretch without a gap."""
    if not series.low:
        return Markup("")
    stretches: list[list[tuple[tuple[float, float], tuple[float, float]]]] = [[]]
    for x, low, high in zip(series.x, series.low, series.high, strict=True):
        below, above = frame.place(x, low), frame.place(x, high)
        if below and above:
            stretches[-1].append((below, above))
        elif stretches[-1]:
            stretches.append([])
    steps = []
    for stretch in filter(None, stretches):
        outline = [above for _, above in stretch] + [below for below, _ in reversed(stretch)]
        steps.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in outline) + "z")
    return element("path", d="".join(steps), class_="band") if steps else Markup("")


def _marks(frame: Frame, series: Series) -> list[Markup]:
    if series.point:
        return _point(frame, series)
    places = [place for place in map(frame.place, series.x, series.y) if place and frame.holds(*place)]
    if len(places) > _MAX_ALL_MARKED:  # elsewhere on each line, so that lines that run together are told apart
        step = len(places) / _N_MARKED
        places = [places[int(step * (i + (0.1 + 0.618 * series.style) % 1))] for i in range(_N_MARKED)]
    return [mark(series.style, *place) for place in places]


def _point(frame: Frame, series: Series) -> list[Markup]:
    """A mark with a bar for each error."""
    if series.point is None:
        return []
    place, ends = frame.point(series), frame.errors(series)
    if place is None:
        return []
    bars = []
    for one, other in (ends[:2], ends[2:]):
        if one and other and math.dist(one, other) > 1:
            bars.append(element("path", d=f"M{one[0]:.1f} {one[1]:.1f}L{other[0]:.1f} {other[1]:.1f}", class_="error"))
    return [*bars, mark(series.style, *place)]


def _names_of_lines(frame: Frame, figure: Figure) -> list[Markup]:
    """At the right of the plot, each as near to the end of its line as there is room."""
    ends = [(series, end) for series in figure.series if (end := frame.end(series))]
    rows = spread([y for _, (_, y) in ends], TOP + 4, frame.y.start - 2)
    parts = []
    for (series, (x, y)), row in zip(ends, rows, strict=True):
        left = frame.x.end + 16
        way = element("path", d=f"M{x + 2:.1f} {y:.1f}L{left} {row:.1f}", class_="leader")
        name = element("text", shortened(series.name), x=left + 12, y=row + 4)
        label = [way, mark(series.style, left + 4, row), name]
        parts.append(element("g", *label, class_=_class(series, "name"), data_series=str(series.style)))
    return parts


def _names_of_points(frame: Frame, figure: Figure) -> list[Markup]:
    """Beside the marks, and not over the numbers of the axes; with a line to those that are farther away."""
    marked = [(series, box) for series in figure.series if (box := frame.box(series))]
    room = LEFT + 2, 0, WIDTH, frame.y.start - 2
    labels = beside([series.name for series, _ in marked], [box for _, box in marked], room)
    found = []
    for (series, box), label in zip(marked, labels, strict=True):
        parts = [element("text", label.text, x=label.x, y=label.y, text_anchor=label.anchor)]
        end = leader(label, box)
        if end:
            x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
            parts.insert(0, element("path", d=f"M{x:.1f} {y:.1f}L{end[0]:.1f} {end[1]:.1f}", class_="leader solid"))
        found.append(element("g", *parts, class_=_class(series, "name"), data_series=str(series.style)))
    return found


def _axes(frame: Frame, figure: Figure) -> list[Markup]:
    """The grid with its numbers, and what they are."""
    parts = []
    bottom, right = frame.y.start, frame.x.end
    for value in frame.y.ticks():
        y = frame.y.at(value)
        parts.append(element("line", x1=LEFT, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(element("text", f"{value:.6g}", x=LEFT - 8, y=y + 4, text_anchor="end"))
    for value in frame.x_ticks():
        x = frame.x.at(value)
        parts.append(element("line", x1=x, x2=x, y1=bottom, y2=bottom + 5, class_="axis"))
        parts.append(element("text", f"{value:.6g}", x=x, y=bottom + 19, text_anchor="middle"))
    parts.append(element("line", x1=LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
    parts.append(element("text", figure.x_label, x=(LEFT + right) / 2, y=bottom + 40, text_anchor="middle"))
    turned = f"translate(14 {(TOP + bottom) / 2}) rotate(-90)"
    return [*parts, element("text", figure.y_label, transform=turned, text_anchor="middle")]


def _described(figure: Figure) -> str:
    """What a reader who cannot see the picture wants to know: the axes, and where each method ends."""
    ends = [f"{series.name} {_end_in_words(figure, series)}" for series in figure.series]
    return f"{figure.y_label} against {figure.x_label}. At the end: {'; '.join(ends)}."


def _end_in_words(figure: Figure, series: Series) -> str:
    if series.point:
        x, y = figure.x_label.partition(",")[0], figure.y_label.partition(",")[0]
        return f"{y} {_in_words(series.point.y)}, {x} {_in_words(series.point.x)}"
    last = max((i for i, value in enumerate(series.y) if math.isfinite(value)), default=None)
    if last is None:
        return "no number"
    end = series.y[last]
    low, high = (series.low[last], series.high[last]) if series.low else (math.nan, math.nan)
    if not math.isfinite(high - low):
        return f"{end:.4g}"
    if figure.edges:
        return f"median {end:.4g}, {figure.edges} {low:.4g} to {high:.4g}"
    return f"{end:.4g} ± {high - end:.2g}"


def _in_words(found: Statistic) -> str:
    return f"{found.mean:.4g}" if found.error is None else f"{found.mean:.4g} ± {found.error:.2g}"


def _told(frame: Frame, figure: Figure) -> dict[str, object]:
    """The numbers of a figure, for a script."""
    return {
        "kind": "points" if figure.has_points else "lines",
        "xLabel": figure.x_label,
        "yLabel": figure.y_label,
        "top": TOP,
        "x": frame.x.told(),
        "y": frame.y.told(),
        "series": [_numbers(series) for series in figure.series],
    }


def _numbers(series: Series) -> dict[str, object]:
    told: dict[str, object] = {"name": series.name, "style": series.style, "colour": colour_class(series.style)}
    if series.point:
        x, y = series.point.x, series.point.y
        numbers = {"x": x.mean, "y": y.mean, "xError": x.error or 0.0, "yError": y.error or 0.0}
        return told | dict(zip(numbers, _rounded(list(numbers.values())), strict=True))
    lists = {"x": series.x, "y": series.y, "low": series.low, "high": series.high}
    return told | {name: _rounded(values) for name, values in lists.items()}


def _rounded(values: Sequence[float]) -> list[float | None]:
    """Of few digits, which makes the page small; None for what JSON does not have."""
    return [float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None for value in values]
