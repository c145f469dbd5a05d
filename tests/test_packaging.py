"""What is in the wheels of both distributions."""

from __future__ import annotations

import email.message
import email.parser
import pathlib
import subprocess
import sys
import zipfile
from collections.abc import Mapping

import pytest

ROOT = pathlib.Path(__file__).parent.parent
SOURCES = {"sparsum": ROOT, "sparsum_experiments": ROOT / "experiments"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, zipfile.ZipFile]:
    """The wheel of each package, built as `pip install` does."""
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run([*command, *map(str, SOURCES.values())], check=True)
    files = {package: list(folder.glob(f"{package}-*.whl")) for package in SOURCES}
    assert [len(found) for found in files.values()] == [1, 1]
    return {package: zipfile.ZipFile(found[0]) for package, found in files.items()}


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
