"""With how many samples bits per dimension were estimated, without which they cannot be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparsum_experiments.runs import Run

# What the estimates are called begins with this; other metrics take no samples, whatever an evaluation was told.
_ESTIMATES = "bits_per_dim"
_KINDS = {"n_samples": "samples", "n_annealed": "annealed images"}


def estimates_note(groups: Iterable[tuple[str, Sequence[Run]]]) -> str:
    """A sentence on how many samples and annealed images the runs that are averaged have; empty where none has any.

    Args:
        groups: the name of each row, and its runs.
    """
    rows = {
        name: [run for run in runs if any(metric.startswith(_ESTIMATES) for metric in run.test)] for name, runs in groups
    }
    told = [_alike(rows, kind) for kind in _KINDS]
    alike = f"Bits/dim are of {' and '.join(filter(None, told))}." if any(told) else ""
    return " ".join(filter(None, [alike, *(_different(rows, kind) for kind in _KINDS)]))


def _numbers(rows: dict[str, list[Run]], kind: str) -> dict[float, list[str]]:
    """The rows that have each number of something, the smaller numbers first."""
    every = sorted({run.counts[kind] for runs in rows.values() for run in runs if kind in run.counts})
    return {n: [name for name, runs in rows.items() if any(run.counts.get(kind) == n for run in runs)] for n in every}


def _alike(rows: dict[str, list[Run]], kind: str) -> str:
    numbers = list(_numbers(rows, kind))
    return f"{numbers[0]:g} {_KINDS[kind]}" if len(numbers) == 1 else ""


def _different(rows: dict[str, list[Run]], kind: str) -> str:
    numbers = _numbers(rows, kind)
    if len(numbers) < 2:
        return ""
    parts = [f"{n:g} ({', '.join(names)})" for n, names in numbers.items()]
    return f"Bits/dim are of different numbers of {_KINDS[kind]}, and cannot be compared: {'; '.join(parts)}."
