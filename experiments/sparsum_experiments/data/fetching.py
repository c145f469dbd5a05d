"""Downloading a data set."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from sparsum_experiments.data.bad_file import BadFile
from sparsum_experiments.data.digits import DIGITS, load_digits
from sparsum_experiments.data.download import Progress, TransferFailed, download
from sparsum_experiments.data.idx import read_idx
from sparsum_experiments.data.locate import home, locate, remedy
from sparsum_experiments.data.sources import SOURCES, SourceFile


class DownloadFailed(OSError):
    """No mirror gave a file; the message has the reason of each and what to do."""


def get(
    name: str,
    data_dir: str | PathLike[str],
    *,
    mirrors: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Download what is missing or wrong of a data set's files into the folder ``data_dir/name``.

    A file gets its name only when all of it is there and its checksum is right. Until then it ends in ``.part``, from which
    the next call goes on.

    Args:
        name: ``mnist`` or ``fashion-mnist``; the ``digits`` come with scikit-learn and need no download.
        data_dir: the folder of all data.
        mirrors: addresses below which the files are, tried in this order; the published ones by default.
        progress: called with the bytes so far and the total, of all files together.

    Returns:
        Where the files are; those that were found elsewhere and are right stay there.

    Raises:
        DownloadFailed: if no mirror gives a file.
        ValueError: for a name that is not known, or no mirrors.
    """
    if name == DIGITS:
        load_digits()
        return []
    if name not in SOURCES:
        raise ValueError(f"name is {name!r}, there are {', '.join((DIGITS, *SOURCES))}")
    source, data_dir = SOURCES[name], Path(data_dir)
    mirrors = source.mirrors if mirrors is None else mirrors
    if isinstance(mirrors, str) or not mirrors:
        raise ValueError(f"mirrors is {mirrors!r}, it must be a list of at least one address")
    meter = _Meter(source.files, progress)
    paths = []
    for file in source.files:
        path = locate(source, file, data_dir)
        if path is None or _fault(path, file):
            path = home(source, data_dir) / f"{file.name}.gz"
            _fetch(file, path, mirrors, meter.update, remedy(source, data_dir))
        meter.finish(file)
        paths.append(path)
    return paths


class _Meter:
    """Progress over all files, from the progress of each and the published sizes of the others."""

    def __init__(self, files: Sequence[SourceFile], progress: Callable[[int, int], None] | None) -> None:
        self.done, self.total, self.progress = 0, sum(file.n_bytes for file in files), progress

    def update(self, n_bytes: int, total: int | None) -> None:
        """Bytes of the present file; its own total is not used, mirrors differ from the published one by little."""
        if self.progress is not None:
            self.progress(min(self.done + n_bytes, self.total), self.total)

    def finish(self, file: SourceFile) -> None:
        """The present file is there."""
        self.done += file.n_bytes
        self.update(0, None)


def _fault(path: Path, file: SourceFile) -> str | None:
    """What is wrong with a file, if anything is."""
    try:
        read_idx(path, file)
    except BadFile as error:
        return error.reason
    return None


def part_of(path: Path) -> Path:
    """Where a file is while it is being downloaded."""
    return path.with_name(f"{path.name}.part")


def _fetch(file: SourceFile, path: Path, mirrors: Sequence[str], progress: Progress, again: str) -> None:
    """Bring a file from the first mirror that has it, as published, to its place."""
    part, reasons = part_of(path), []
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{file.name}.gz"
        try:
            _fetch_from(url, file, part, progress)
        except TransferFailed as error:
            reasons.append(f"{url}: {error}")
        else:
            os.replace(part, path)
            return
    kept = f" {part} keeps what arrived; {again} goes on from there." if part.exists() else f" {again} tries again."
    raise DownloadFailed(f"{file.name}.gz could not be downloaded.\n" + "\n".join(reasons) + f"\n{kept.strip()}")


def _fetch_from(url: str, file: SourceFile, part: Path, progress: Progress) -> None:
    is_continued = download(url, part, progress)
    fault = _fault(part, file)
    if fault and is_continued:
        # The beginning may be that of a mirror that compresses differently, or of a file that was damaged.
        part.unlink()
        download(url, part, progress)
        fault = _fault(part, file)
    if fault:
        part.unlink()
        raise TransferFailed(f"what arrived {fault}; it was deleted")
