"""Records of runs, to be kept with the source when the runs themselves are not.

The records of an experiment are the lines of ``results/EXPERIMENT.jsonl.gz``: JSON objects as `Record` describes them, with
dots in the names of what is nested. A data frame reads them in one call,
``pandas.read_json("results/ssvae.jsonl.gz", lines=True)``, with columns such as ``config.lr``, ``test.accuracy`` and, lists
over epochs, ``epochs.validation.elbo``. Latent views are kept beside them, in ``latent/EXPERIMENT/SETTING.json``.
"""

from __future__ import annotations

import gzip
import json
import pathlib
import zlib
from collections.abc import Iterable
from typing import Any

from sparsum_experiments.files import parse_json, read_bytes, write_bytes
from sparsum_experiments.runs.schema import Record, check

LATENT_FOLDER = "latent"
# A small file can unpack to any size; no file of records comes near it.
MAX_BYTES = 2**29
# A record is not nested deeper.
_MAX_DEPTH = 2


def records_file(folder: pathlib.Path, experiment: str) -> pathlib.Path:
    """The file of an experiment's records."""
    return folder / f"{experiment}.jsonl.gz"


def read_records(file: pathlib.Path, max_bytes: int = MAX_BYTES) -> tuple[list[Record], list[str]]:
    """All records of a file, and a sentence for each line that is not one."""
    records, problems = [], []
    for number, line in enumerate(_unpacked(file, max_bytes).splitlines(), start=1):
        where = f"line {number} of {file}"
        try:
            records.append(check(Record.model_validate, _nested(parse_json(line, where)), where))
        except ValueError as error:
            problems.append(str(error))
    return records, problems


def _unpacked(file: pathlib.Path, max_bytes: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        content = unpacker.decompress(read_bytes(file), max_bytes)
    except zlib.error as error:
        raise ValueError(f"{file} is not a gzip file, or corrupted: {error}") from None
    if not unpacker.eof:
        what = f"unpacks to more than {max_bytes:,} bytes" if unpacker.unconsumed_tail else "is cut short"
        raise ValueError(f"{file} {what}")
    if unpacker.unused_data:
        raise ValueError(f"{file} has {len(unpacker.unused_data):,} bytes after its end")
    return content


def write_records(file: pathlib.Path, records: Iterable[Record]) -> None:
    """Write a file of records, sorted by setting and seed; the same records make the same file."""
    ordered = sorted(records, key=lambda record: (record.method, record.bits or 0, record.variant or "", record.seed))
    contents = [_flat(record.model_dump(exclude_unset=True)) for record in ordered]
    lines = [json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n" for content in contents]
    write_bytes(file, gzip.compress("".join(lines).encode(), mtime=0))


def _flat(content: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Without nesting.

    >>> _flat({"test": {"elbo": 1.0}})
    {'test.elbo': 1.0}
    """
    found: dict[str, Any] = {}
    for name, value in content.items():
        found |= _flat(value, f"{above}{name}.") if isinstance(value, dict) else {f"{above}{name}": value}
    return found


def _nested(content: Any) -> Any:
    """The inverse of `_flat`; what it cannot have made is left to be refused."""
    found: dict[str, Any] = {}
    for name, value in content.items() if isinstance(content, dict) else ():
        *above, last = name.split(".", maxsplit=_MAX_DEPTH)
        place: Any = found
        for part in above:
            place = place.setdefault(part, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            return content
        place[last] = value
    return found or content
