"""On which machines runs were made: seconds of different ones cannot be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparsum_experiments.runs import Run


def machines_note(groups: Iterable[tuple[str, Sequence[Run]]]) -> str:
    """A sentence on the machines of the runs that are averaged; empty where none is known.

    Args:
        groups: the label of each row, and its runs.
    """
    rows = {label: dict.fromkeys(run.machine or "unknown" for run in runs) for label, runs in groups if runs}
    machines = dict.fromkeys(machine for found in rows.values() for machine in found)
    if set(machines) <= {"unknown"}:
        return ""
    if len(machines) == 1:
        return f"Seconds were measured on {next(iter(machines))}."
    parts = [f"{machine} ({', '.join(label for label in rows if machine in rows[label])})" for machine in machines]
    mixed = [label for label, found in rows.items() if len(found) > 1]
    averaged = f" The seconds of {', '.join(mixed)} are means over different machines." if mixed else ""
    return f"Seconds were measured on different machines and cannot be compared: {'; '.join(parts)}.{averaged}"
