"""What is in the wheels and sdists of both distributions, and what must agree with their version."""

from __future__ import annotations

import email.message
import email.parser
import html.parser
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping

import pytest
from hatch_build import with_links
from markdown_it import MarkdownIt
from packaging.requirements import Requirement

import sparsum

ROOT = pathlib.Path(__file__).parent.parent
SOURCES = {"sparsum": ROOT, "sparsum_experiments": ROOT / "experiments"}
REPOSITORY = "https://forge.example/someone/sparsum"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with what `make dist` builds where a repository is published: sdists, and wheels built from them."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    for source in SOURCES.values():
        subprocess.run([*command, str(source)], check=True, env=os.environ | {"SPARSUM_REPOSITORY_URL": REPOSITORY})
    return folder


@pytest.fixture(scope="module")
def wheels(built: pathlib.Path) -> Mapping[str, zipfile.ZipFile]:
    """The wheel of each package."""
    return {package: zipfile.ZipFile(built / f"{package}-{sparsum.__version__}-py3-none-any.whl") for package in SOURCES}


class Links(html.parser.HTMLParser):
    """The targets of links and images on a page."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.targets = list[str]()
        self.feed(MarkdownIt("commonmark").render(markdown))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [value for name, value in attrs if name in ("href", "src", "srcset") and value]


def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.parser.BytesParser().parsebytes(wheel.read(name))


@pytest.mark.parametrize("package", SOURCES)
def test_a_wheel_holds_its_package_alone(wheels: Mapping[str, zipfile.ZipFile], package: str) -> None:
    folder = SOURCES[package]
    wanted = {
        file.relative_to(folder).as_posix()
        for file in (folder / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    names = {name for name in wheels[package].namelist() if ".dist-info/" not in name}
    assert names == wanted
    assert f"{package}/py.typed" in names


def test_the_experiments_bring_their_settings_and_the_parts_of_pages(wheels: Mapping[str, zipfile.ZipFile]) -> None:
    others = {name for name in wheels["sparsum_experiments"].namelist() if name.endswith((".toml", ".css", ".js", ".j2"))}
    presets = {f"sparsum_experiments/presets/{name}.toml" for name in ("ssvae", "signal-game", "bitvector-vae")}
    assert others > presets | {
        f"sparsum_experiments/report/{name}"
        for name in ("paper.toml", "page/page.css", "page/page.js", "templates/page.html.j2")
    }


def test_only_the_experiments_bring_a_command(wheels: Mapping[str, zipfile.ZipFile]) -> None:
    commands = {
        package: [wheel.read(name).decode() for name in wheel.namelist() if name.endswith("entry_points.txt")]
        for package, wheel in wheels.items()
    }
    assert commands["sparsum"] == []
    assert ["sparsum = sparsum_experiments.main:main" in text for text in commands["sparsum_experiments"]] == [True]


def test_the_library_needs_torch_and_scipy_alone(wheels: Mapping[str, zipfile.ZipFile]) -> None:
    needed = metadata(wheels["sparsum"]).get_all("Requires-Dist", [])
    plain = [text for text in needed if "extra ==" not in text]
    assert [text.partition(">=")[0] for text in plain] == ["scipy", "torch"]
    assert not any("<" in text for text in plain)  # a cap would keep users from a newer torch


def test_both_carry_the_licence(wheels: Mapping[str, zipfile.ZipFile]) -> None:
    for wheel in wheels.values():
        (name,) = (name for name in wheel.namelist() if name.endswith("licenses/LICENSE"))
        assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()
        assert metadata(wheel)["License-Expression"] == "MIT"


@pytest.mark.parametrize(
    ("package", "others"),
    [
        ("sparsum", {"CHANGELOG.md", "CITATION.cff", "experiments/hatch_build.py"}),
        ("sparsum_experiments", {"hatch_build.py"}),
    ],
)
def test_an_sdist_holds_its_package_and_what_builds_it(built: pathlib.Path, package: str, others: set[str]) -> None:
    """Nothing else of the repository, such as tests, and no files that happen to lie around."""
    with tarfile.open(built / f"{package}-{sparsum.__version__}.tar.gz") as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    outside = {name for name in names if not name.startswith(f"{package}/")}
    assert outside == {".gitignore", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"} | others
    assert f"{package}/__init__.py" in names


def test_both_have_the_version_and_links_of_the_repository(wheels: Mapping[str, zipfile.ZipFile]) -> None:
    """Wheels are built from sdists, which keep what was known when they were made."""
    for wheel in wheels.values():
        about = metadata(wheel)
        assert about["Version"] == sparsum.__version__
        assert f"Source, {REPOSITORY}" in about.get_all("Project-URL", [])
        assert f"{REPOSITORY}/blob/v{sparsum.__version__}/" in str(about.get_payload())


def test_the_citation_has_the_version() -> None:
    """The version stands in `sparsum/__init__.py`, and once more for those who cite."""
    text = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", text, flags=re.MULTILINE) == [sparsum.__version__]


def test_the_experiments_need_the_library_of_their_version() -> None:
    """Both are released together; before 1.0 another minor version may break them."""
    project = tomllib.loads((ROOT / "experiments" / "pyproject.toml").read_text())["project"]
    (needed,) = (Requirement(text) for text in project["dependencies"] if text.startswith("sparsum"))
    major, minor, _ = sparsum.__version__.split(".")
    assert sparsum.__version__ in needed.specifier
    assert f"{major}.{int(minor) + 1}.0" not in needed.specifier


@pytest.mark.parametrize("folder", [".", "experiments"])
def test_the_links_of_a_readme_work_on_an_index(folder: str) -> None:
    """They lead to files that exist in the release; without a published repository there are none that would break."""
    text = (ROOT / folder / "README.md").read_text()
    before = Links(text).targets
    relative = [target for target in before if not re.match("https?://|#", target)]
    assert relative
    after = Links(with_links(text, folder, REPOSITORY, "v1.2.3")).targets
    assert len(after) == len(before)
    for old, new in zip(before, after, strict=True):
        if old not in relative:
            assert new == old
            continue
        path = re.fullmatch(rf"{REPOSITORY}/(?:blob|raw)/v1\.2\.3/([^#]+)(?:#.*)?", new)
        assert path is not None, new
        assert (ROOT / path[1]).resolve() == (ROOT / folder / old.partition("#")[0]).resolve()
        assert (ROOT / path[1]).exists(), f"README.md of {folder} links to {old}, which does not exist"
    assert Links(with_links(text, folder, "", "v1.2.3")).targets == [target for target in before if target not in relative]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[a](b.md) [c](d/e.md#f)", "[a](U/blob/v1/x/b.md) [c](U/blob/v1/x/d/e.md#f)"),
        ("[`a[0](b)`](../b.md)", "[`a[0](b)`](U/blob/v1/b.md)"),
        ("[two\nlines](b.md)", "[two\nlines](U/blob/v1/x/b.md)"),
        ("![a](b.svg)", "![a](U/raw/v1/x/b.svg)"),
        ('<img alt="a" src="b.svg" width=9>', '<img alt="a" src="U/raw/v1/x/b.svg" width=9>'),
        ('<a href="b.md">', '<a href="U/blob/v1/x/b.md">'),
        ("[a](https://b.c) [d](#e) [f](mailto:g@h.i)", "[a](https://b.c) [d](#e) [f](mailto:g@h.i)"),
        ("`a[0](b)` ``c` [0](b)``", "`a[0](b)` ``c` [0](b)``"),
        ("```python\na[0](b)  # `\n```\n[a](b)", "```python\na[0](b)  # `\n```\n[a](U/blob/v1/x/b)"),
    ],
)
def test_links_are_made_absolute_and_code_is_kept(text: str, wanted: str) -> None:
    """Also in what looks like a link inside of code."""
    assert with_links(text, "x", "U", "v1") == wanted
