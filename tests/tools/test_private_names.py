"""Private names are found wherever another package uses them."""

from __future__ import annotations

import pathlib

import pytest

from tools.private_names import violations

TREE = {
    "sparsum/__init__.py": "",
    "sparsum/flat.py": "_name = 1",
    "sparsum/a/__init__.py": "",
    "sparsum/a/_hidden.py": "name = 1",
    "sparsum/a/open.py": "from sparsum.a import _hidden\nfrom sparsum.a._hidden import name\n_name = 1",
    "sparsum/a/below/__init__.py": "",
    "sparsum/a/below/deep.py": "from sparsum.a.open import _name\n_other = 1",
    "sparsum/b/__init__.py": "",
    "tests/__init__.py": "",
}


def found_in(tmp_path: pathlib.Path, file: str, text: str) -> list[str]:
    """What is found once a file is added to the tree, as ``FILE:LINE: NAME``."""
    for name, content in (TREE | {file: text}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    messages = violations([tmp_path / "sparsum", tmp_path / "tests"])
    return [message.removeprefix(f"{tmp_path}/").partition(" is private to ")[0] for message in messages]


@pytest.mark.parametrize("file", ["sparsum/b/user.py", "sparsum/__init__.py", "tests/test_a.py"])
@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from sparsum.a import _hidden", "sparsum.a._hidden"),
        ("from sparsum.a._hidden import name", "sparsum.a._hidden"),
        ("import sparsum.a._hidden", "sparsum.a._hidden"),
        ("import sparsum.a._hidden as it", "sparsum.a._hidden"),
        ("from sparsum.a.open import _name", "sparsum.a.open._name"),
        ("from sparsum.flat import _name", "sparsum.flat._name"),
        ("if True:\n    from sparsum.a.below.deep import _other", "sparsum.a.below.deep._other"),
        ("import sparsum as sp\nsp.a.open._name.bit_count()", "sparsum.a.open._name"),
        ("from sparsum.a import open as it\nprint(it._name)", "sparsum.a.open._name"),
        ("from sparsum.a import open as it\nsetattr(it, '_name', 2)", "sparsum.a.open._name"),
        ("it = importorskip('sparsum.a.open')\nprint(it._name)", "sparsum.a.open._name"),
        ("monkeypatch.setattr('sparsum.a._hidden.name', 2)", "sparsum.a._hidden"),
    ],
)
def test_uses_from_other_packages_are_found(tmp_path: pathlib.Path, file: str, text: str, name: str) -> None:
    line = text.count("\n") + 1
    assert found_in(tmp_path, file, text) == [f"{file}:{line}: {name}"]


def test_relative_imports_are_followed(tmp_path: pathlib.Path) -> None:
    assert found_in(tmp_path, "sparsum/b/user.py", "from ..a import _hidden") == ["sparsum/b/user.py:1: sparsum.a._hidden"]
    assert found_in(tmp_path, "sparsum/b/user.py", "from . import user, _own") == []


@pytest.mark.parametrize(
    "text",
    [
        "import sparsum\nprint(sparsum.__version__)",
        "from sparsum.a.open import __doc__",
        "from sparsum.a import open as it\nprint(it.name._field)",  # of an object, not of a module
        "from torch import _C\nimport torch._C",
        "_name = 'sparsum.a.open'\nprint(_name)",
    ],
)
def test_other_names_are_not(tmp_path: pathlib.Path, text: str) -> None:
    assert found_in(tmp_path, "sparsum/b/user.py", text) == []


def test_a_package_uses_its_own(tmp_path: pathlib.Path) -> None:
    assert found_in(tmp_path, "sparsum/a/other.py", "from sparsum.a.open import _name") == []
    assert found_in(tmp_path, "sparsum/a/__init__.py", "from sparsum.a._hidden import name") == []
    assert found_in(tmp_path, "sparsum/a/below/__init__.py", "import sparsum.a._hidden") == []
