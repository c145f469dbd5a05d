"""What the README and the pages of the site say is executed; tutorials are executed by `make docs`."""

from __future__ import annotations

import doctest
import importlib.util
import pathlib
import re
import shlex
import sys
import types

import click
import pytest
import torch
from sparsum_experiments.cli import app

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    + [page for page in (ROOT / "docs").rglob("*.md") if not {"_build", "tutorials"} & set(page.relative_to(ROOT).parts)]
)


def name_of(page: pathlib.Path) -> str:
    """The path of a page in the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: pathlib.Path, *languages: str) -> list[tuple[str, str, int]]:
    """The language, the text and the line of each fenced block."""
    text = page.read_text()
    fence = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
    return [(m[1], m[2], text.count("\n", 0, m.start()) + 1) for m in fence.finditer(text) if m[1] in languages]


def executed() -> list[object]:
    """The pages with code; one that begins with `<!-- requires: NAME -->` is run where the package is installed for it."""
    pages = [page for page in PAGES if blocks_of(page, "python", "pycon")]
    return [
        pytest.param(
            page, id=name_of(page), marks=[pytest.mark.integrations] if page.read_text().startswith("<!-- requires:") else []
        )
        for page in pages
    ]


#: What torchrun tells a single process: a page on processes is run by one here, and by two in the tests of what it is about.
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


@pytest.mark.parametrize("page", executed())
def test_the_code_of_a_page_runs(page: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page, in order and in one namespace; those in the form of a session print what they say."""
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.chdir(tmp_path)
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    torch.manual_seed(0)
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # dataclasses look up their module
    names: dict[str, object] = vars(module)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS, verbose=False)
    for language, text, line in blocks_of(page, "python", "pycon"):
        if language == "python":
            exec(compile("\n" * line + text, str(page), "exec", dont_inherit=True), names)
        else:
            example = doctest.DocTestParser().get_doctest(text, {}, name_of(page), str(page), line)
            example.globs = names
            said: list[str] = []
            failed = runner.run(example, out=said.append, clear_globs=False).failed
            assert not failed, "".join(said)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


COMMANDS = [
    pytest.param(line.strip(), id=f"{name_of(page)}: {line.strip()}")
    for page in PAGES
    for _, text, _ in blocks_of(page, "console", "bash", "sh")
    for line in text.replace("\\\n", " ").splitlines()
]


def target_exists(target: str) -> bool:
    """Whether the Makefile has a rule of this name."""
    return re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE) is not None


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_exists(line: str) -> None:
    """Options of `sparsum` parse, targets of make are there, and modules that are run can be found."""
    words = shlex.split(line.removeprefix("$ "), comments=True)
    while words and (re.fullmatch(r"[A-Z_]+=.*", words[0]) or words[0] in ("srun", "time")):
        words = words[1:]
    if words[:1] == ["sparsum"] and len(words) > 1 and "$" not in line:  # in a loop of the shell
        assert_parses(words[1:])
    if words[:1] == ["make"]:
        assert all(target_exists(word) for word in words[1:] if "=" not in word)
    if words[:2] == ["python", "-m"] and words[2].split(".")[0] in ("examples", "benchmarks", "tools", "tests"):
        assert importlib.util.find_spec(words[2]) is not None


def assert_parses(words: list[str]) -> None:
    """Parse the words of a command without running it."""
    current: click.Command = app
    context = click.Context(current, info_name="sparsum")
    while isinstance(current, click.Group):
        name, found, words = current.resolve_command(context, list(words))
        assert found is not None, name
        current = found
        if isinstance(current, click.Group):
            context = click.Context(current, info_name=name, parent=context)
    current.make_context(name, list(words), parent=context)
