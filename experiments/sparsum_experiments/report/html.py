"""HTML and SVG as text, in which everything that was not made here is escaped."""

from __future__ import annotations

import html
import json

# Signs that could end a script, or a line of one, in the text of JSON.
_UNSAFE = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}

# Elements that hold nothing and are not closed.
_VOID = {"img", "meta"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str | float) -> Markup:
    """An element; children that are not `Markup` are escaped, and so is what attributes hold.

    Underscores in the names of attributes stand for dashes; one at the end, for keywords of Python, is dropped.

    >>> element("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    if name in _VOID:
        return Markup(f"<{name}{_attributes(attributes)}>")
    inside = "".join(child if isinstance(child, Markup) else html.escape(child) for child in children)
    return Markup(f"<{name}{_attributes(attributes)}>{inside}</{name}>")


def joined(parts: list[Markup]) -> Markup:
    """Elements one after the other, each on a line of its own."""
    return Markup("\n".join(parts))


def json_script(content: object) -> Markup:
    r"""What a script of the page reads; no text within it can end the element.

    >>> json_script({"name": "</script>"})
    '<script type="application/json">{"name":"\\u003c/script\\u003e"}</script>'
    """
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return element("script", Markup(text.translate(_UNSAFE)), type="application/json")


def _attributes(attributes: dict[str, str | float]) -> str:
    def text(value: str | float) -> str:
        return html.escape(value if isinstance(value, str) else f"{value:.6g}")

    return "".join(f' {name.rstrip("_").replace("_", "-")}="{text(value)}"' for name, value in attributes.items())
