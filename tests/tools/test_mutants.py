"""Changes of the library: which ones count, which are drawn, and that tests see them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.mutants import ROOT, Place, difference, drawn, meaning


def test_annotations_and_comments_do_not_count() -> None:
    plain = "def f(x: int | None = 1) -> int:\n    y: int = x + 1  # more\n    return y\n"
    assert meaning(plain) == meaning(plain.replace("int | None", "int & None").replace("  # more", ""))
    assert meaning(plain) != meaning(plain.replace("x + 1", "x - 1"))
    assert difference(plain, plain.replace("x + 1", "x - 1"))[0] == 2


def test_changes_of_numbers_are_drawn_less_often() -> None:
    every = [Place(Path("a.py"), "core/NumberReplacer" if i % 2 else "core/AddNot", i) for i in range(1000)]
    found = drawn(every, seed=0)
    assert found == drawn(every, seed=0)
    assert set(found) == set(every)
    assert 0 < sum("Number" in each.operator for each in found[:100]) < 35


def test_a_changed_module_is_imported_in_place_of_the_file(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from tools.mutants import ROOT, Changed, Mutant\n"
        "file = 'sparsum/arguments.py'\n"
        "source = (ROOT / file).read_text().replace('must be an int', 'must be a whole number')\n"
        "sys.meta_path.insert(0, Changed(Mutant(file, '', source, 1, '')))\n"
        "import sparsum as sp\n"
        "try:\n"
        "    sp.OneOf('3')\n"
        "except TypeError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); exec(open({str(program)!r}).read())"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout == "n must be a whole number, got str\n"
