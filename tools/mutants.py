"""Changes of the library that its tests should notice: ``python -m tools.mutants --sample 60``.

Draws small changes of `sparsum/simplex` and `sparsum/solvers` by the operators of cosmic-ray, such as ``<`` to ``<=``, and
runs the tests of the file with each, in a process of its own that sees the changed module in place of the file. Prints the
changes that no test noticed; many of these make no difference, such as another bound on the number of iterations. Changes in
lines that the tests do not reach are counted and not run.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib.abc
import importlib.util
import itertools
import os
import random
import re
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

#: Tests of each package that take about a minute, the most telling ones first.
_PROPERTIES = "tests/properties/test_properties.py::test_a_few_cases"
TESTS = {
    "sparsum/simplex": [
        *(
            f"{_PROPERTIES}[{name}]"
            for name in ("mappings_are_optimal", "mappings_do_not_mix_rows", "gradients_of_mappings")
        ),
        *(f"{_PROPERTIES}[{name}]" for name in ("losses_of_mappings", "modules_and_temperatures", "embeddings")),
        *(f"tests/simplex/test_{name}.py" for name in ("mappings", "losses", "any_alpha", "bounded", "arguments")),
    ],
    "sparsum/solvers": [
        f"{_PROPERTIES}[sparsemap_is_optimal_or_says_where_it_is_not]",
        f"{_PROPERTIES}[at_most_max_atoms]",
        *(f"tests/solvers/test_{name}.py" for name in ("splits", "rounding", "flows", "active_set", "pulled")),
    ],
}
#: The operators of cosmic-ray whose changes are most like mistakes.
_OPERATORS = re.compile(
    r"ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Mul|Pow_Mul|BitAnd_BitOr|BitOr_BitAnd)$"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Lt_GtE|Gt_LtE|Is_IsNot|IsNot_Is)$"
    r"|ReplaceUnaryOperator_Delete_|NumberReplacer|ReplaceTrueWithFalse|ReplaceFalseWithTrue|ReplaceAndWithOr"
    r"|ReplaceOrWithAnd|AddNot|ZeroIterationForLoop|ReplaceBreakWithContinue"
)
_KILLED, _SURVIVED, _TOO_LONG = "killed", "survived", "took too long"


@dataclass(frozen=True)
class Mutant:
    """A changed file."""

    file: str
    operator: str
    source: str
    line: int
    change: str


@dataclass(frozen=True)
class Place:
    """Where an operator can change a file: one of its occurrences there."""

    file: Path
    operator: str
    occurrence: int

    def mutant(self) -> Mutant | None:
        """The changed file, or None if it means the same, or nothing: the star of an argument is not a product."""
        from cosmic_ray import plugins
        from cosmic_ray.mutating import mutate_code

        source = self.file.read_text()
        changed = mutate_code(source, plugins.get_operator(self.operator)(), self.occurrence)
        with contextlib.suppress(SyntaxError):
            if changed is not None and meaning(changed) != meaning(source):
                line, change = difference(source, changed)
                return Mutant(str(self.file.relative_to(ROOT)), self.operator.split("/")[1], changed, line, change)
        return None


def places(file: Path) -> list[Place]:
    """All places of a file."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    nodes, found = list(ast_nodes(get_ast(file.read_text()))), []
    for name in filter(_OPERATORS.search, plugins.operator_names()):
        operator = plugins.get_operator(name)()
        n = sum(len(list(operator.mutation_positions(node))) for node in nodes)
        found += [Place(file, name, occurrence) for occurrence in range(n)]
    return found


def meaning(source: str) -> str:
    """What a source does: without annotations, docstrings and comments."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def difference(old: str, new: str) -> tuple[int, str]:
    """The first line that differs, and how."""
    lines = [line for line in difflib.ndiff(old.splitlines(), new.splitlines()) if line[:2] in ("- ", "+ ")]
    number = next(i for i, (a, b) in enumerate(zip(old.splitlines(), new.splitlines(), strict=False), 1) if a != b)
    return number, "\n".join(f"    {line[0]} {line[2:].strip()}" for line in lines)


class Changed(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports a module from another source."""

    def __init__(self, mutant: Mutant) -> None:
        self.name, self.mutant = mutant.file.removesuffix(".py").replace("/", "."), mutant

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """The module, if it is the changed one."""
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, ROOT / self.mutant.file, loader=self)

    def get_source(self, fullname: str) -> str:
        """The changed source."""
        return self.mutant.source

    def is_package(self, fullname: str) -> bool:
        """Packages are not changed."""
        return False


def in_child(tests: Sequence[str], mutant: Mutant | None, seconds: int, covered: Path | None = None) -> str:
    """Run tests in a fork of this process, which has imported torch but nothing of the library."""
    pid = os.fork()
    if pid == 0:
        status = 3
        with contextlib.suppress(BaseException):
            status = _run(tests, mutant, seconds, covered)
        os._exit(status)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return _TOO_LONG
    return _SURVIVED if os.waitstatus_to_exitcode(status) == 0 else _KILLED


def _run(tests: Sequence[str], mutant: Mutant | None, seconds: int, covered: Path | None) -> int:
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    options = ["--quiet", "--exitfirst", "-p", "no:cacheprovider", "-p", "no:cov"]
    if mutant is not None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        sys.meta_path.insert(0, Changed(mutant))
        return int(pytest.main([*options, *tests]))
    from coverage import Coverage

    coverage = Coverage(data_file=str(covered), branch=False, source=["sparsum"])
    coverage.start()
    status = int(pytest.main([*options, *tests]))
    coverage.stop()
    coverage.save()
    return status


def reached(data_file: Path) -> dict[str, set[int]]:
    """The lines of each file that the tests reach."""
    from coverage import CoverageData

    data = CoverageData(str(data_file))
    data.read()
    return {str(Path(name).relative_to(ROOT)): set(data.lines(name) or ()) for name in data.measured_files()}


def drawn(every: Sequence[Place], seed: int) -> list[Place]:
    """All places in random order, in which changes of numbers, of which there are most, come later than others."""
    generator = random.Random(seed)
    keys = {i: generator.random() ** (4 if "NumberReplacer" in each.operator else 1) for i, each in enumerate(every)}
    return [every[i] for i in sorted(keys, key=keys.__getitem__, reverse=True)]


def main() -> int:
    """Run the command; the exit status is the number of changes that no test noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=60, help="the number of changes to try, over all packages")
    parser.add_argument("--seconds", type=int, default=1200, help="of processor time, after which no other change is tried")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("packages", nargs="*", default=list(TESTS))
    options = parser.parse_args()
    import scipy.optimize  # noqa: F401 (so that children need not import it)
    import torch

    torch.set_num_threads(1)
    counts: dict[str, int] = {}
    survivors = []
    for package in options.packages:
        tests, data_file = TESTS[package], ROOT / f".coverage.{os.getpid()}"
        started = _children_seconds()
        outcome = in_child(tests, None, 3600, data_file)
        seconds = _children_seconds() - started
        print(f"{package}: the tests take {seconds:.0f} s", flush=True)
        if outcome != _SURVIVED:
            print("the tests fail without any change", flush=True)
            return 1
        lines = reached(data_file)
        data_file.unlink()
        every = [each for file in sorted((ROOT / package).glob("*.py")) for each in places(file)]
        print(f"{package}: {len(every)} places", flush=True)
        made = filter(None, (place.mutant() for place in drawn(every, options.seed)))
        budget = _children_seconds() + options.seconds / len(options.packages)
        for mutant in itertools.islice(made, options.sample // len(options.packages)):
            if mutant.line not in lines.get(mutant.file, ()):
                found = "not reached"
            elif _children_seconds() > budget:
                found = "not tried"
            else:
                found = in_child(tests, mutant, int(2 * seconds) + 30)
            counts[found] = counts.get(found, 0) + 1
            print(f"{time.strftime('%H:%M:%S')} {found:14} {mutant.file}:{mutant.line} {mutant.operator}", flush=True)
            if found == _SURVIVED:
                survivors.append(mutant)
    for mutant in survivors:
        print(f"\n{mutant.file}:{mutant.line} {mutant.operator}\n{mutant.change}")
    print("\n" + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))
    return len(survivors)


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
