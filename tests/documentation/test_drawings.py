"""Tests of the drawings of structures."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import sparsum as sp

DOCS = pathlib.Path(__file__).parent.parent.parent / "docs"


def test_each_drawing_is_written_and_shown(tmp_path: pathlib.Path) -> None:
    """The drawings that pages show are those that are written, with their text as text."""
    subprocess.run([sys.executable, DOCS / "drawings.py", tmp_path], check=True)
    written = {file.name for file in tmp_path.iterdir()}
    pages = [page.read_text() for page in (DOCS / "structures").glob("*.md")]
    shown = {name for page in pages for name in re.findall(r"_static/structures/([\w-]+\.svg)", page)}
    assert written == shown
    assert all("mean</text>" in (tmp_path / name).read_text() for name in written)


def test_each_structure_has_a_page() -> None:
    """The table of structures links every public one."""
    table = (DOCS / "structures" / "index.md").read_text()
    structures = [
        name for name, value in vars(sp).items() if isinstance(value, type) and issubclass(value, sp.AbstractStructure)
    ]
    structures.remove("AbstractStructure")
    assert len(structures) == 17
    for name in structures:
        found = re.search(rf"\[`{name}\([^`]*\)`\]\(([\w-]+\.md)\)", table)
        assert found is not None, name
        assert f"#sparsum.{name})" in (DOCS / "structures" / found[1]).read_text(), name
