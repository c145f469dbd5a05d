"""Private names stay in their package, which import-linter cannot check: it sees modules, not names.

``python -m tools.private_names FOLDER...`` reads the packages in these folders. A module, or a name of a module, that starts
with an underscore is used only in the package that holds it; a module right below the top is a package of its own.
"""

import ast
import importlib.util
import pathlib
import re
import sys
from collections.abc import Iterator

OWNERS = ("sparsum", "sparsum_experiments")
_DOTTED = re.compile(rf"\b(?:{'|'.join(OWNERS)})(?:\.\w+)+")
_PRIVATE = re.compile(r"_(?!_\w*__$)\w*")  # dunder names are public


def uses(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """The line and the dotted name of all that a module imports, that it takes from an import, and that its strings name."""
    meant = dict[str, str]()  # by the names that stand for them
    for node in ast.walk(tree):
        found = dict[str, str]()
        match node:
            case ast.ImportFrom(module=module, names=names, level=level):
                start = importlib.util.resolve_name("." * level + (module or ""), package)
                found = {alias.asname or alias.name: f"{start}.{alias.name}" for alias in names}
            case ast.Import(names=names):
                found = {alias.asname or alias.name: alias.name for alias in names}
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[ast.Constant(value=str(text)), *_])):
                found = {name: text}  # pytest.importorskip("sparsum.x")
        meant |= found
        yield from ((getattr(node, "lineno", 0), name) for name in found.values())
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=holder, attr=name) | ast.Call(args=[holder, ast.Constant(value=str(name)), *_]):
                first, *others = ast.unparse(holder).split(".")  # a call such as monkeypatch.setattr(holder, "name", value)
                yield node.lineno, ".".join([meant.get(first, first), *others, name])
            case ast.Constant(value=str(text)):
                yield from ((node.lineno, name) for name in _DOTTED.findall(text))


def violations(folders: list[pathlib.Path]) -> list[str]:
    """A message for each private name that is used outside of its package."""
    files = {file: file.relative_to(top.parent).with_suffix("").parts for top in folders for file in top.rglob("*.py")}
    packages, found = {parts[:-1] for parts in files.values()}, dict[str, None]()  # a set in order
    for file, parts in sorted(files.items()):
        for line, name in sorted(uses(ast.parse(file.read_text()), ".".join(parts[:-1]))):
            names = tuple(name.split("."))
            n = next((n for n, part in enumerate(names) if _PRIVATE.fullmatch(part)), 0)
            owner = names[:n] if n <= 2 or names[:n] in packages else names[: n - 1]
            if names[0] in OWNERS and names[:n] in {*packages, *files.values()} and parts[: len(owner)] != owner:
                what = f"{'.'.join(names[: n + 1])} is private to {'.'.join(owner)}"
                found[f"{file}:{line}: {what}; what packages share needs a public name"] = None
    return list(found)


if __name__ == "__main__":
    sys.exit("\n".join(violations([pathlib.Path(folder) for folder in sys.argv[1:]])) or 0)
