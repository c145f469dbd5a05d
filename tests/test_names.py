"""One name, one meaning: no module is hidden by what its package exports, and no public name is defined twice."""

from __future__ import annotations

import ast
import collections
import importlib
import pkgutil
from pathlib import Path

import sparsum

ROOT = Path(sparsum.__file__).parent


def test_no_module_is_hidden_by_a_function_of_its_name() -> None:
    n_modules = 0
    for found in pkgutil.walk_packages([str(ROOT)], "sparsum."):
        if found.name.startswith(("sparsum.kernels.", "sparsum.pyro")):  # these import Triton and Pyro
            continue
        module = importlib.import_module(found.name)
        package, _, name = found.name.rpartition(".")
        assert getattr(importlib.import_module(package), name) is module, f"{found.name} is hidden"
        n_modules += 1
    assert n_modules > 80


def test_classes_and_functions_have_names_of_their_own() -> None:
    places = collections.defaultdict(list)
    for file in sorted(ROOT.rglob("*.py")):
        if "kernels" in file.parts:  # kernels are named as the operations that they belong to
            continue
        for node in ast.parse(file.read_text()).body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
                continue
            if "overload" not in map(ast.unparse, node.decorator_list):
                places[node.name].append(str(file.relative_to(ROOT)))
    repeated = {name: files for name, files in places.items() if len(files) > 1}
    # The mapping as a module of a network, and as a solver: `sparsum.Sparsemax` and `sparsum.solvers.Sparsemax`.
    assert repeated.pop("Sparsemax") == ["simplex/modules.py", "solvers/sparsemax.py"]
    # The same functions, of sharded scores.
    assert set(repeated) == {"entmax", "entmax15", "sparsemap", "sparsemax"}
    assert all("distributed.py" in files and len(files) == 2 for files in repeated.values())
    assert len(places) > 200
