"""What CONTRIBUTING.md says of the repository is so: its targets, its files and its layers."""

from __future__ import annotations

import pathlib
import re
import subprocess
import tomllib

ROOT = pathlib.Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def layers(container: str) -> list[str]:
    """The layers of the import contract of a package, highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (contract["layers"] for contract in contracts if contract.get("containers") == [container])
    return [name for layer in found for name in layer.split(" | ")]


def described(heading: str) -> list[str]:
    """The modules in the first column of the table with a heading."""
    rows = re.search(rf"\| {heading} \|.*\n\| --- .*\n((?:\|.*\n)+)", TEXT)
    assert rows is not None
    return [name for row in rows[1].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]


def test_every_target_is_listed_and_described() -> None:
    """`make help` shows each target once, and CONTRIBUTING.md names the same ones."""
    shown = re.findall(
        r"^  make (\S+)", subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout, re.M
    )
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert sorted(shown) == sorted(phony.split())
    assert set(re.findall(r"`make ([a-z-]+)", TEXT)) == set(shown) - {"help"}


def test_every_layer_is_described_in_its_place() -> None:
    """The tables name the layers of the contracts; that of the library in their order, lowest first."""
    assert described("layer") == layers("sparsum")[::-1]
    assert sorted(described("room")) == sorted(layers("sparsum_experiments"))


def test_the_files_it_names_exist() -> None:
    """Paths are those of the repository, or of one of the packages where their habits are described."""
    paths = re.findall(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|toml|txt|md|yml))`", TEXT)
    folders = (ROOT, ROOT / "sparsum", ROOT / "experiments" / "sparsum_experiments", ROOT / ".github" / "workflows")
    assert len(paths) > 20
    assert [path for path in paths if not any((folder / path).exists() for folder in folders)] == []
