"""Records of runs: one small file for each, to be kept with the source when the runs themselves are not.

A record is ``EXPERIMENT/METHOD[-BITS][-VARIANT]/seed-N.json`` below a folder, usually ``results``. It holds what the run was
told, what it measured at every epoch (a list for each metric) and on the test data, how long it took, and the versions that
it was made with. Beside the records of a setting there may be ``latent.json``, what its latent variables learned.
"""

from __future__ import annotations

import json
import math
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from sparsum_experiments.errors import UsageError
from sparsum_experiments.files import read_json, write_bytes
from sparsum_experiments.registry import uses, with_defaults
from sparsum_experiments.report import Run, columns_of, read_folders, read_record, rounded
from sparsum_experiments.report.latent import LATENT_FILE, NoView, latent_of_run
from sparsum_experiments.runs.folder import RunFolder

# Which parts of an epoch's measurements are kept.
_EPOCH = ("train", "validation", "calls", "seconds")
# Where a run was made does not belong to what it was told.
_PLACES = ("data_dir", "device")
# The variant is a part of the name of a folder, which may have 255 letters in all.
_MAX_VARIANT = 100
# The files of a run that the parts of its record come from.
_SOURCES = {"config": "config.json", "test": "evaluation.json", "epochs": "metrics.jsonl"}


def write_records(
    places: Iterable[pathlib.Path],
    out: pathlib.Path,
    variant: str = "",
    *,
    latent: bool = False,
    data_dir: str | None = None,
) -> list[pathlib.Path]:
    """Write the records of all runs in or below some folders; returns their files.

    Args:
        places: the folders.
        out: the folder of the records.
        variant: how these runs differ from others of the same method, for the name of their folder.
        latent: whether to write what the latent variables learned, too, of the first seed of each setting.
        data_dir: where the data for that is; by default as each run was told.

    Raises:
        ValueError: if there is no run; if one cannot be read, is not finished or not evaluated; if two runs of different
            settings would have the same record, one of which may be written already; or if what latent variables learned
            is asked for and cannot be found out. Then nothing is written.
    """
    if variant and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", variant):
        raise UsageError(f"--variant must be of small letters, digits, dots and hyphens, got {variant!r}")
    if len(variant) > _MAX_VARIANT:
        raise UsageError(f"--variant must have {_MAX_VARIANT} letters at most, got {len(variant)}")
    places = list(places)
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out must be a folder, and {out} is a file")
    runs, problems = read_folders(places)
    problems += [problem for run in runs if (problem := _what_is_missing(run))]
    if not runs and not problems:
        raise UsageError(f"there is no run in or below {', '.join(map(str, places))}")
    records: dict[pathlib.Path, dict[str, Any]] = {}
    folders: dict[pathlib.Path, list[Run]] = {}
    for run in runs if not problems else ():
        record = record_of(run, variant)
        problems += _not_finite(run.path, record)
        file = out / _path(record)
        try:
            other = records.get(file) or _written(file)
        except ValueError as error:
            problems.append(f"{error}; remove it to write another")
            continue
        if other is not None and (file in records or _told(other) != _told(record)):
            seen = f"as another run with {_difference(other, record)}"
            problems.append(f"{run.path} would be {file}, {seen}; other settings of a method need a --variant")
        records[file] = record
        folders.setdefault(file.parent, []).append(run)
    if problems:
        raise ValueError("\n".join([*problems, "nothing was written"]))
    texts = {file: _text(record) for file, record in records.items()}
    if latent:
        texts |= _views(folders, data_dir)
    for file, text in texts.items():
        write_bytes(file, text.encode())
    return list(texts)


def _not_finite(path: pathlib.Path, record: dict[str, Any]) -> list[str]:
    """What is no finite number in the files of a run, so that no JSON can hold it: a sentence for each of them."""
    found = {file: sorted(set(_names_of_no_numbers(record[part]))) for part, file in _SOURCES.items()}
    return [f"{path / file} has no finite number for {', '.join(names)}" for file, names in found.items() if names]


def _names_of_no_numbers(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _names_of_no_numbers(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _names_of_no_numbers(each, name)
    elif isinstance(value, float) and not math.isfinite(value):
        yield name


def _views(folders: dict[pathlib.Path, list[Run]], data_dir: str | None) -> dict[pathlib.Path, str]:
    """What the latent variables of the first seed of each folder of records learned: files and their texts."""
    texts, problems = {}, []
    for folder, runs in folders.items():
        first = min(runs, key=lambda run: int(run.args["seed"]))
        try:
            texts[folder / LATENT_FILE] = latent_of_run(first.path, data_dir).text()
        except NoView as error:
            problems.append(str(error))
    if problems:
        raise ValueError("\n".join([*problems, "nothing was written; without --latent, records need no checkpoint or data"]))
    return texts


def _written(file: pathlib.Path) -> dict[str, Any] | None:
    """A record that is there already."""
    if not file.exists():
        return None
    read_record(file)  # raises if it is none
    written: dict[str, Any] = read_json(file)
    return written


def _told(record: dict[str, Any]) -> dict[str, Any]:
    """What the run of a record was told, by whatever version, as far as it makes a difference to its method."""
    experiment, told = record["experiment"], with_defaults(record["experiment"], record["config"])
    return {name: value for name, value in told.items() if uses(experiment, told["method"], name)}


def _difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """What two runs were told differently, as the first was told it."""
    changed = {name: value for name, value in _told(one).items() if _told(other).get(name) != value}
    return ", ".join(f"{name} = {value}" for name, value in changed.items()) or "the same settings"


def record_of(run: Run, variant: str = "") -> dict[str, Any]:
    """The record of a run, with as many digits as mean something."""
    config = {name: value for name, value in run.args.items() if name not in _PLACES}
    config["data"] = pathlib.Path(str(config["data"])).name
    told = RunFolder(run.path).config()
    record = {
        "experiment": run.experiment,
        "method": run.args["method"],
        "bits": run.args.get("bits"),
        "variant": variant or None,
        "seed": run.args["seed"],
        "config": config,
        "epochs": columns_of([{name: line[name] for name in _EPOCH if name in line} for line in run.lines]),
        "test": _evaluation(run),
        "seconds": run.seconds,
        "versions": {name: told[name] for name in ("git", "machine") if name in told} | told.get("versions", {}),
    }
    kept: dict[str, Any] = rounded(record)
    return kept


def _evaluation(run: Run) -> dict[str, float]:
    """What `sparsum evaluate` wrote: the metrics, their standard errors and the number of samples."""
    found = read_json(run.path / "evaluation.json")
    return {name: value for name, value in found.items() if name != "epochs"}


def _what_is_missing(run: Run) -> str:
    if not run.is_finished:
        return f"{run.path} is not finished: it has {len(run.lines)} of {run.args['epochs']} epochs"
    return "" if run.test else f"{run.path} is not evaluated: run sparsum evaluate {run.path}"


def _path(record: dict[str, Any]) -> pathlib.Path:
    parts = [record["method"], record["bits"], record["variant"]]
    return pathlib.Path(record["experiment"], "-".join(str(part) for part in parts if part is not None)) / (
        f"seed-{record['seed']}.json"
    )


def _text(record: dict[str, Any]) -> str:
    """JSON with a line for each list, which would else be one for each number."""
    text = json.dumps(record, indent=2, allow_nan=False)
    # No text within holds the end of a line as such.
    return re.sub(r"\[\n[^]]*\n *\]", lambda found: re.sub(r"\s+", " ", found[0]), text) + "\n"
