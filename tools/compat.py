"""Runs the core tests in a fresh environment for each Python and torch, and writes what happened to docs/compatibility.md.

``python -m tools.compat`` takes each Python that is installed, of those that the metadata claims, and the last release of
each torch from the oldest that the metadata allows; ``python -m tools.compat --torch 2.8 --torch 2.15`` takes some. There is
one environment on the disk at a time. Each is tried as torch comes, and once more without Triton.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
#: What is run: the mathematics, the public surface, and what depends most on torch.
CORE = (
    "tests/simplex/test_mappings.py",
    "tests/simplex/test_losses.py",
    "tests/simplex/test_derivatives.py",
    "tests/distribution",
    "tests/structures/test_conformance.py",
    "tests/solvers/test_active_set.py",
    "tests/gibbs/test_gibbs.py",
    "tests/estimators/test_conformance.py",
    "tests/nn",
    "tests/captured",
    "tests/test_inference.py",
    "tests/test_losses.py",
    "tests/test_imports.py",
    "tests/kernels/test_registry.py",
)
# What belongs to a version of torch, which may want an older setuptools, and is not pinned here.
_TORCH = re.compile(r"(torch|triton|nvidia|cuda|functorch|setuptools)\b")
_HEADER = "| Python | torch | Triton | passed | failed | skipped | date |\n| --- | --- | --- | ---: | ---: | ---: | --- |\n"
_ROW = re.compile(r"^\| \d.*$", re.MULTILINE)


class Row(NamedTuple):
    """What the tests of an environment did, as a line of the table."""

    python: str
    torch: str
    triton: str  # its version, or absent
    passed: str
    failed: str
    skipped: str
    date: str

    def __str__(self) -> str:
        return f"| {' | '.join(self)} |"


def counts(summary: str) -> tuple[str, str, str]:
    """How many tests passed, failed and were skipped, from pytest's last line.

    >>> counts("1 failed, 20 passed, 3 skipped, 1 error in 2.5s")
    ('20', '2', '3')
    """
    found = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|error)", summary)}
    return str(found.get("passed", 0)), str(found.get("failed", 0) + found.get("error", 0)), str(found.get("skipped", 0))


def with_rows(page: str, rows: Sequence[Row]) -> str:
    """A page with the rows in its table, in place of those of the same versions."""
    before = [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in _ROW.findall(page)]
    kept = {(row.python, row.torch, row.triton == "absent"): row for row in (*before, *rows)}

    def order(row: Row) -> tuple[list[int], list[int], str]:
        versions = [[int(n) for n in re.findall(r"\d+", text.partition("+")[0])] for text in row[:2]]
        return versions[0], versions[1], row.triton

    table = "".join(f"{row}\n" for row in sorted(kept.values(), key=order))
    start, end = page.index(_HEADER), page.index("\n\n", page.index(_HEADER))
    return page[:start] + _HEADER + table.rstrip("\n") + page[end:]


def pythons() -> Iterator[str]:
    """The commands of each minor version of Python from 3.11 that is installed."""
    for minor in range(11, 20):
        if found := shutil.which(f"python3.{minor}"):
            yield found


def torches() -> list[str]:
    """The minor versions of torch that can be installed here, from the oldest that the metadata allows."""
    (oldest,) = re.findall(r'"torch>=2\.(\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    words = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    minors = {int(minor) for minor in re.findall(r"\b2\.(\d+)\.\d+", text)}
    return [f"2.{minor}" for minor in sorted(minors) if minor >= int(oldest)]


def tried(python: str, torch: str, tests: Sequence[str]) -> Iterator[Row]:
    """The rows of one environment, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="sparsum-compat-") as folder:
        here = pathlib.Path(folder)
        subprocess.run([python, "-m", "venv", str(here / "venv")], check=True)
        command, limits = str(here / "venv" / "bin" / "python"), here / "constraints.txt"
        pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines(keepends=True)
        limits.write_text("".join(line for line in pins if not _TORCH.match(line)), encoding="utf-8")
        pip = [command, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
        packages = [f"torch=={torch}.*", "--editable", f"{ROOT}[logic,plot]", "hypothesis", "numpy", "pytest", "setuptools"]
        subprocess.run([*pip, "install", "--constraint", str(limits), *packages], check=True)
        yield _row(command, tests, here)
        if subprocess.run([*pip, "show", "triton"], check=False, capture_output=True).returncode == 0:
            subprocess.run([*pip, "uninstall", "--yes", "triton"], check=True)
            yield _row(command, tests, here)


def _row(command: str, tests: Sequence[str], folder: pathlib.Path) -> Row:
    about = (
        "import importlib.util as u, platform, torch; print(platform.python_version(), torch.__version__); "
        "print(__import__('triton').__version__ if u.find_spec('triton') else 'absent')"
    )
    text = subprocess.run([command, "-c", about], check=True, capture_output=True, text=True, cwd=folder).stdout
    python, torch, triton = text.split()
    words = [command, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", *tests]
    limits = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True, env=os.environ | limits)
    sys.stdout.write(done.stdout if done.returncode else "")
    passed = counts((done.stdout.strip().splitlines() or [""])[-1])
    if passed == ("0", "0", "0"):
        raise RuntimeError(f"pytest ran no test with Python {python} and torch {torch}:\n{done.stdout}{done.stderr}")
    return Row(python, torch, triton, *passed, time.strftime("%Y-%m-%d"))


def main() -> int:
    """Try all environments that the command line asks for; the exit status is 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch", action="append", metavar="2.N", help="a minor version; may be repeated")
    parser.add_argument("--python", action="append", metavar="FILE", help="an interpreter; may be repeated")
    parser.add_argument("tests", nargs="*", default=CORE, help="what is run in place of the core tests")
    given = parser.parse_args()
    n_failed = 0
    for python in given.python or pythons():
        for torch in given.torch or torches():
            for row in tried(python, torch, given.tests):
                sys.stdout.write(f"{row}\n")
                sys.stdout.flush()
                PAGE.write_text(with_rows(PAGE.read_text(encoding="utf-8"), [row]), encoding="utf-8")
                n_failed += int(row.failed)
    return int(n_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
