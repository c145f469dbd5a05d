"""Configuration of the site: Sphinx reads it, `make docs` builds with it. Any warning fails the build."""

from __future__ import annotations

import importlib
import inspect
import pathlib
import re
import sys
import types
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import sparsum

ROOT = pathlib.Path(__file__).parent.parent
LOG = logging.getLogger(__name__)

project = "sparsum"
author = "The sparsum developers"
copyright = author  # noqa: A001 (the name is Sphinx's)
release = version = sparsum.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "jupyter_execute"]

# Docstrings name other parts of the library in single backticks, with or without `sparsum.` before them.
default_role = "py:obj"
nitpicky = True
# The site is built without a network, so names of other packages do not become links.
nitpick_ignore_regex = [(r"py:.*", r"(torch|numpy|scipy|matplotlib|collections|typing|types|pathlib|entmax|pyro)\b.*")]
# Annotations of what is not public.
nitpick_ignore_regex += [(r"py:class", r"sparsum\.[a-z_]+\.[a-z_]+\..*")]
nitpick_ignore_regex += [
    (r"py:.*", name)
    for name in (
        "Tensor",
        "Axes",
        "os.PathLike",
        "[PR]",
        r"sparsum\.captured\.step\.[PR]",
        r"sparsum\.segments\..*",
        r"dict\[str",
    )
]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_timeout = 900
nb_execution_raise_on_error = True
nb_merge_streams = True
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = "sparsum"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False

#: Packages whose public names must all be on a page.
PUBLIC = [
    "sparsum",
    "sparsum.captured",
    "sparsum.diagnosis",
    "sparsum.distributed",
    "sparsum.estimators",
    "sparsum.nn",
    "sparsum.pyro",
    "sparsum.solvers",
    "sparsum.testing",
]


#: Whose methods `sparsum.pyro` adds.
PYRO = ("pyro.distributions.distribution", "pyro.distributions.torch_distribution")

#: Stands for a colon while napoleon reads a docstring.
COLON = "\ue000"


def hide_colons(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Keep a colon in the first line of a property from being read as the end of its type."""
    if lines and what in ("property", "attribute"):
        lines[0] = lines[0].replace(":", COLON)


def prepare(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    r"""Escape the stars of shapes such as (\*batch, n), which stand unescaped in docstrings that are not raw."""
    for i, line in enumerate(lines):
        parts = re.split(r"(``.*?``|`.*?`|\$.*?\$)", line)
        parts[::2] = [re.sub(r"(?<![\\*\w])\*(?=[a-z_]+\b)(?!\*)", r"\\*", part) for part in parts[::2]]
        lines[i] = "".join(parts).replace(COLON, ":")


def leave_out(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what `sparsum.pyro` adds to classes of the library: methods of Pyro."""
    return True if getattr(getattr(obj, "fget", obj), "__module__", None) in PYRO else None


def resolve(app: Sphinx, env: BuildEnvironment, node: Any, contnode: Any) -> Any:
    """Find names that are written short, such as `Bits`, `argmax` or `solvers.Pulled`, in the packages of the library."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target:
        return None
    domain = env.domains.python_domain
    bare = re.sub(r"\(.*\)$", "", target).removeprefix("sparsum.").removeprefix("sp.")
    inside = node.get("py:module") or "sparsum"
    prefixes = [inside, *PUBLIC, "sparsum.AbstractStructure"]
    prefixes += ["sparsum.SparseDistribution", "sparsum.solvers.AbstractSolver", "sparsum.estimators.AbstractEstimator"]
    for prefix in prefixes:
        entry = domain.objects.get(f"{prefix}.{bare}")
        if entry is not None:
            return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", f"{prefix}.{bare}", node, contnode)
    last = bare.rpartition(".")[2]
    known = [name for name in domain.objects if name.rpartition(".")[2] == last]
    if len(known) == 1:
        return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", known[0], node, contnode)
    return None


def check_names(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of public names without an entry, which fails the build."""
    documented = set(env.domains.python_domain.objects)
    for package in PUBLIC:
        module = importlib.import_module(package)
        for name, value in vars(module).items():
            if name.startswith("_") or isinstance(value, types.ModuleType):
                continue
            exported = getattr(module, "__all__", [name])
            if (
                name in exported
                and getattr(value, "__module__", "").startswith("sparsum")
                and not is_documented(package, name, value, documented)
            ):
                LOG.warning("%s.%s is public and not documented", package, name)


def is_documented(package: str, name: str, value: object, documented: set[str]) -> bool:
    """Whether the site has the class or function, under this name or that of another package that exports it."""
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return True
    return any(
        f"{other}.{name}" in documented and getattr(importlib.import_module(other), name) is value
        for other in [package, *PUBLIC]
    )


def draw(app: Sphinx) -> None:
    """Draw the structures anew."""
    sys.path.insert(0, str(ROOT / "docs"))
    drawings = importlib.import_module("drawings")
    drawings.write(ROOT / "docs" / "_static" / "structures")


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    app.connect("builder-inited", draw)
    app.connect("autodoc-process-docstring", hide_colons, priority=400)  # napoleon has 500
    app.connect("autodoc-process-docstring", prepare, priority=600)
    app.connect("autodoc-skip-member", leave_out)
    app.connect("missing-reference", resolve)
    app.connect("env-check-consistency", check_names)
