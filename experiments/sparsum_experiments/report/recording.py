"""Adding runs to the records that are kept with the source."""

from __future__ import annotations

import pathlib
import re
import shlex
from collections.abc import Iterable
from typing import Any

from sparsum_experiments.errors import UsageError
from sparsum_experiments.files import write_bytes
from sparsum_experiments.registry import check_method, place_options, used_config
from sparsum_experiments.report.latent.kept import NoView, latent_of_run
from sparsum_experiments.runs import (
    LATENT_FOLDER,
    Record,
    Run,
    read_folders,
    read_records,
    record_of,
    records_file,
    write_records,
)


def record_runs(
    places: Iterable[pathlib.Path],
    out: pathlib.Path,
    variant: str = "",
    *,
    latent: bool = False,
    data_dir: str | None = None,
) -> list[str]:
    """Record all runs in or below some folders; returns a line for each file that was written."""
    if variant and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,99}", variant):
        raise UsageError(f"--variant must be up to 100 lower-case letters, digits, dots and hyphens, got {variant!r}")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out must be a folder, and {out} is a file")
    places = list(places)
    runs, problems = read_folders(places)
    if not runs and not problems:
        raise UsageError(f"there is no run in or below {', '.join(map(str, places))}")
    problems += [problem for run in runs if (problem := _what_is_missing(run))]
    kept: dict[str, dict[tuple[str, int], Record]] = {}
    new: dict[tuple[str, str], list[tuple[Run, Record]]] = {}
    for run in runs if not problems else ():
        if run.experiment not in kept:
            file = records_file(out, run.experiment)
            found, broken = read_records(file) if file.exists() else ([], [])
            kept[run.experiment] = {(each.name, each.seed): each for each in found}
            problems += broken
        record, others = record_of(run, variant), kept[run.experiment]
        settings = new.setdefault((run.experiment, record.name), [])
        other = others.get((record.name, record.seed))
        if other is not None and (_settings(other) != _settings(record) or any(other is each for _, each in settings)):
            problems.append(
                f"{run.path} would replace the record {record.name}, seed {record.seed}, of a run with "
                f"{_difference(other, record)}; runs with other settings of a method need a --variant"
            )
        others[record.name, record.seed] = record
        settings.append((run, record))
    if problems:
        raise ValueError("\n".join([*problems, "nothing was written"]))
    views = _views(new, out, data_dir) if latent else {}
    for file, text in views.items():
        write_bytes(file, text.encode())
    for experiment, records in kept.items():
        write_records(records_file(out, experiment), records.values())
    counts = {name: sum(len(found) for (experiment, _), found in new.items() if experiment == name) for name in kept}
    lines = [f"{records_file(out, name)}: {n} {'run' if n == 1 else 'runs'}" for name, n in counts.items()]
    return [*lines, *map(str, views)]


def _what_is_missing(run: Run) -> str:
    try:
        check_method(run.experiment, str(run.args["method"]))  # names become parts of paths
    except UsageError as error:
        return f"{run.path}: {error}"
    if not run.is_finished:
        return f"{run.path} is not finished: it has {len(run.lines)} of {run.args['epochs']} epochs"
    return "" if run.test else f"{run.path} is not evaluated: run sparsum evaluate {shlex.quote(str(run.path))}"


def _settings(record: Record) -> dict[str, Any]:
    """The options of a record's run, of whatever version, as far as its method uses them."""
    config = used_config(record.experiment, record.config.model_dump(exclude_unset=True))
    return {name: value for name, value in config.items() if name not in place_options(record.experiment)}


def _difference(one: Record, other: Record) -> str:
    """The options of one run that another has otherwise."""
    others = _settings(other)
    changed = {name: value for name, value in _settings(one).items() if others.get(name) != value}
    return ", ".join(f"{name} = {value}" for name, value in changed.items()) or "the same settings"


def _views(
    new: dict[tuple[str, str], list[tuple[Run, Record]]], out: pathlib.Path, data_dir: str | None
) -> dict[pathlib.Path, str]:
    """What the latent variables of the first seed of each setting learned: files and their contents."""
    texts, problems = {}, []
    for (experiment, name), found in new.items():
        first, _ = min(found, key=lambda pair: pair[1].seed)
        try:
            texts[out / LATENT_FOLDER / experiment / f"{name}.json"] = latent_of_run(first.path, data_dir).text()
        except NoView as error:
            problems.append(str(error))
    if problems:
        raise ValueError("\n".join([*problems, "nothing was written; without --latent, no checkpoint or data is needed"]))
    return texts
