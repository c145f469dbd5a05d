"""The script and the style sheet of the views, as part of a page."""

from __future__ import annotations

import importlib.resources

from sparsum.experiments.report._html import Markup, element, joined


def latent_assets(body: str) -> Markup:
    """For the head of a page, what the views in its body need: a style sheet, and a script where there are switches.

    The script is a module, which runs when the body is there.
    """
    parts = []
    if 'class="latent' in body:
        parts.append(element("style", _file("latent.css")))
    if 'data-latent="' in body:
        parts.append(element("script", _file("latent.js"), type="module"))
    return joined(parts)


def _file(name: str) -> Markup:
    found = importlib.resources.files("sparsum.experiments.report") / "page" / name
    return Markup(found.read_text(encoding="utf-8"))
