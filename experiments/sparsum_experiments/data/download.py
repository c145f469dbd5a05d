"""Downloading a data set."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from sparsum_experiments import files
from sparsum_experiments.data.idx import read_idx
from sparsum_experiments.data.images import NAMES, load_digits
from sparsum_experiments.data.sources import DIGITS, SOURCES, BadFile, SourceFile, unknown

_CHUNK = 1 << 16
_TIMEOUT = 30.0  # seconds without a byte


class DownloadFailed(OSError):
    """No mirror has a file; the message has the reason for each and what to do."""


def get(
    name: str,
    data_dir: str | PathLike[str],
    *,
    mirrors: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Download the files of a data set that are missing or wrong into the folder ``data_dir/name``.

    A file is written when all of it has arrived and its uncompressed content has the published checksum, and not before.

    Args:
        name: ``mnist`` or ``fashion-mnist``; the ``digits`` come with scikit-learn and need no download.
        data_dir: the folder of all data.
        mirrors: addresses below which the files are, tried in this order; the published ones by default.
        progress: called with the bytes so far and the total, of all files together.

    Returns:
        Where the files are; those that were found elsewhere and are right stay there.

    Raises:
        DownloadFailed: if no mirror has a file.
        OSError: if a file cannot be written.
        ValueError: for an unknown name, or no mirrors.
    """
    if name == DIGITS:
        load_digits()
        return []
    if name not in SOURCES:
        raise unknown(name, NAMES, f"{name or repr('')}: no such data set")
    source, data_dir = SOURCES[name], Path(data_dir)
    mirrors = source.mirrors if mirrors is None else mirrors
    if isinstance(mirrors, str) or not mirrors:
        raise ValueError(f"mirrors is {mirrors!r}, it must be a list of at least one address")
    again, done, total, paths = source.remedy(data_dir), 0, sum(file.n_bytes for file in source.files), []

    def show(n_bytes: int) -> None:  # mirrors compress a little differently, hence the minimum
        if progress is not None:
            progress(min(done + n_bytes, total), total)

    for file in source.files:
        path = source.locate(file, data_dir)
        if path is None or not _is_right(path, file):
            path = source.home(data_dir) / f"{file.name}.gz"
            try:
                files.write_bytes(path, _fetch(file, mirrors, show))
            except DownloadFailed as error:
                advice = f"Check the network connection; {again} tries again. Or copy the file into {path.parent}."
                raise DownloadFailed(f"{error}\n{advice}") from None
            except OSError as error:
                reason = f"{path} could not be written ({error.strerror})"
                raise OSError(f"{reason}; when it can, {again} downloads what is missing") from error
        done += file.n_bytes
        show(0)
        paths.append(path)
    return paths


def _is_right(path: Path, file: SourceFile) -> bool:
    try:
        read_idx(path, len(file.shape), published=file)
    except BadFile:
        return False
    return True


def _fetch(file: SourceFile, mirrors: Sequence[str], progress: Callable[[int], None]) -> bytes:
    """The content of a file from the first mirror that has it as published."""
    import pooch

    download = pooch.HTTPDownloader(chunk_size=_CHUNK, timeout=_TIMEOUT)
    reasons = []
    for mirror in mirrors:
        url, arrived = f"{mirror.rstrip('/')}/{file.name}.gz", _Arrived(file, progress)
        try:
            download(url, arrived, None)
            # Not pooch's checksum, which is that of the compressed file: mirrors compress differently.
            read_idx(Path(url), len(file.shape), published=file, opened=io.BytesIO(arrived.getvalue()))
        except BadFile as error:
            reasons.append(f"{url}: the download {error.reason}")
        except OSError as error:  # of the network: nothing is on the disk yet
            reasons.append(f"{url}: {_innermost(error)}")
        else:
            return arrived.getvalue()
    raise DownloadFailed("\n".join([f"{file.name}.gz could not be downloaded.", *reasons]))


class _Arrived(io.BytesIO):
    """What has arrived of a file; a server that sends more than it can have is cut off."""

    def __init__(self, file: SourceFile, progress: Callable[[int], None]) -> None:
        super().__init__()
        self.most, self.progress = file.n_bytes + math.prod(file.shape), progress

    def write(self, chunk: Any) -> int:
        n_written = super().write(chunk)
        if self.tell() > self.most:
            raise BadFile(Path(), f"has more than {self.most:,} bytes, which are too many")
        self.progress(self.tell())
        return n_written


def _innermost(error: BaseException) -> BaseException:
    """What an error was caused by in the first place: requests wraps "Connection refused" three times."""
    cause = error.__cause__ or error.__context__
    return error if cause is None else _innermost(cause)
