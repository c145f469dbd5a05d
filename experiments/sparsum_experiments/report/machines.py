"""On which machines runs were made, without which seconds mean nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparsum_experiments.runs import Run

_UNKNOWN = "a machine that is not known"


def machines_note(groups: Iterable[tuple[str, Sequence[Run]]]) -> str:
    """A sentence on the machines of the runs that are averaged; empty where none is known.

    Args:
        groups: the name of each row, and its runs.
    """
    rows = {name: _machines(runs) for name, runs in groups if runs}
    every = list(dict.fromkeys(machine for machines in rows.values() for machine in machines))
    if set(every) <= {_UNKNOWN}:
        return ""
    if len(every) == 1:
        return f"Seconds are of {every[0]}."
    parts = [f"{machine} ({', '.join(name for name in rows if machine in rows[name])})" for machine in every]
    mixed = [name for name, machines in rows.items() if len(machines) > 1]
    told = f" The seeds of {', '.join(mixed)} come from different ones, over which seconds are averaged." if mixed else ""
    return f"Seconds are of different machines and cannot be compared between them: {'; '.join(parts)}.{told}"


def _machines(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.machine or _UNKNOWN for run in runs))
