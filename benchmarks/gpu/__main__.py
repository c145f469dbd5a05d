"""All GPU benchmarks, as one table.

Every time is a median; other implementations and hardware limits are measured in the same run. Kernel times are those of
many calls captured in one CUDA graph, so that launches do not count; other times are wall-clock times. Packages that are not
installed are skipped and named.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import platform
import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.gpu import active_set, any_alpha, bits, captured, likelihood, paths, runs, simplex, steps
from benchmarks.gpu.table import Line

_HEADER = ("what", "measured", "wanted", "met", "floor", "what the gap is")


def sections(data_dir: pathlib.Path | None) -> dict[str, Callable[[], Iterator[Line]]]:
    """The sections of the table."""
    return {
        "simplex": simplex.lines,
        "any-alpha": any_alpha.lines,
        "bits": bits.lines,
        "active-set": active_set.lines,
        "likelihood": likelihood.lines,
        "paths": paths.lines,
        "captured": captured.lines,
        "steps": functools.partial(steps.lines, data_dir),
        "runs": functools.partial(runs.lines, data_dir),
    }


def main() -> None:
    """Print each line when it is measured; optionally write the table."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=sections(None), help="measure only this section; can be repeated")
    parser.add_argument("--data-dir", type=pathlib.Path, help="folder that contains signal-game; default: random features")
    parser.add_argument("--markdown", type=pathlib.Path, help="also write the table to this file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch found no CUDA device")
    chosen = {name: run for name, run in sections(arguments.data_dir).items() if name in (arguments.only or [name])}
    print(describe(), flush=True)
    text = [f"{describe()}\n"]
    for name, run in chosen.items():
        begin, found = time.perf_counter(), []
        for line in run():
            print(plain(line), flush=True)
            found.append(line)
        print(f"({name}: {time.perf_counter() - begin:.0f} s)", flush=True)
        text += [f"\n## {name}\n", markdown(found)]
        if arguments.markdown:  # after each section, so that an interrupted run leaves a partial table
            arguments.markdown.write_text("\n".join(text))


def describe() -> str:
    """The machine and the versions."""
    import triton

    return (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, "
        f"CUDA {torch.version.cuda}, Python {platform.python_version()}"
    )


def plain(line: Line) -> str:
    """A line for a terminal."""
    mark = {None: "", True: "ok", False: "MISSED"}[line.is_met]
    return f"{line.what:72} {line.measured:34} {line.wanted:22} {mark:7} {line.floor}"


def markdown(found: list[Line]) -> str:
    """A table of the lines."""
    rows = [_HEADER, tuple("---" for _ in _HEADER)]
    for line in found:
        mark = {None: "", True: "yes", False: "no"}[line.is_met]
        rows.append((line.what, line.measured, line.wanted, mark, line.floor, line.gap))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


if __name__ == "__main__":
    main()
