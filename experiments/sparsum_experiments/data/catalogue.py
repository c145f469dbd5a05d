"""Listing, verifying and downloading data sets."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from sparsum_experiments import files
from sparsum_experiments.data.games import FILES, game_folders, load_games, read_npz
from sparsum_experiments.data.images import has_images, load_digits, load_images
from sparsum_experiments.data.sources import (
    DIGITS,
    NAMES,
    SOURCES,
    BadFile,
    Source,
    SourceFile,
    State,
    find_folder,
    parse_idx,
    read_file,
    unknown,
)

_CHUNK = 1 << 16
_TIMEOUT = 30.0  # seconds without a byte


class Known(NamedTuple):
    """A data set that can be used or downloaded."""

    name: str
    experiments: tuple[str, ...]
    content: str
    n_bytes: int  # of its files, or of the download if they are not there
    found: str | None  # where it is; None if any of its files is missing


def known(data_dir: str | PathLike[str]) -> list[Known]:
    """All data sets by name, and those in folders of ``data_dir``. Files are searched for and not read: `check` reads them.

    >>> known("data")[0].content
    '1,797 images of 8 x 8, 17 grey levels'
    """
    data_dir = Path(data_dir)
    experiments = ("ssvae", "signal-game", "bitvector-vae")
    found = "scikit-learn" if find_spec("sklearn") else None
    digits = Known(DIGITS, experiments, "1,797 images of 8 x 8, 17 grey levels", 0, found)
    folders = sorted(data_dir.iterdir()) if data_dir.is_dir() else []
    own = [Source.own(folder) for folder in folders if folder.name not in NAMES and has_images(folder)]
    images = [_known_images(source, data_dir) for source in (*SOURCES.values(), *own)]
    return [digits, *images, *(_known_games(folder) for folder in game_folders(data_dir).values())]


def _known_games(folder: Path) -> Known:
    n_bytes = sum((folder / file).stat().st_size for file in FILES)
    return Known(folder.name, ("signal-game",), "features of images", n_bytes, str(folder))


def _known_images(source: Source, data_dir: Path) -> Known:
    paths = [path for file in source.files if (path := source.locate(file, data_dir))]
    is_there = len(paths) == len(source.files)
    (n_images, height, width), (n_test, *_) = source.files[0].shape, source.files[2].shape
    return Known(
        name=source.name,
        experiments=("ssvae", "bitvector-vae"),
        content=f"{n_images + n_test:,} images of {height} x {width}, 256 grey levels" if source.mirrors else "images",
        n_bytes=sum(path.stat().st_size for path in paths)
        if is_there or not source.mirrors
        else sum(file.n_bytes for file in source.files),
        found=", ".join(sorted({str(path.parent) for path in paths})) if is_there else None,
    )


class Finding(NamedTuple):
    """The result of checking a file: its path, or where it should be; its state; its content, or what is wrong."""

    file: str
    state: State
    detail: str


def check(name: str, data_dir: str | PathLike[str]) -> list[Finding]:
    """Read all files of a data set, a known one or a folder, and compare them with what they should be.

    >>> check("digits", "data")
    [Finding(file='scikit-learn', state='right', detail='1,797 images')]
    """
    data_dir = Path(data_dir)
    if name == DIGITS:
        return [_check(Path("scikit-learn"), lambda: f"{len(load_digits()[0]):,} images")]
    if name in SOURCES:
        return _check_images(SOURCES[name], data_dir)
    folder = find_folder(name, data_dir, (*NAMES, *game_folders(data_dir)), option="")
    is_images = has_images(folder)
    findings = [_check(folder / file, partial(read_npz, folder / file)) for file in FILES if not is_images]
    findings += _check_images(Source.own(folder), data_dir) if is_images else []
    if all(finding.state == "right" for finding in findings):
        try:
            (load_images if is_images else load_games)(folder.resolve(), folder)
        except ValueError as error:  # each is right alone, and they do not belong together
            findings.append(Finding(str(folder), "wrong", str(error)))
    return findings


def _check_images(source: Source, data_dir: Path) -> list[Finding]:
    home = source.folders(data_dir)[0]
    return [
        _check(source.locate(file, data_dir) or home / f"{file.name}.gz", partial(read_file, source, file, data_dir))
        for file in source.files
    ]


def _check(path: Path, read: Callable[[], object]) -> Finding:
    try:
        return Finding(str(path), "right", str(read()))
    except BadFile as error:
        return Finding(str(path), error.state, error.reason)
    except (FileNotFoundError, ImportError) as error:
        return Finding(str(path), "missing", str(error))
    except OSError as error:
        return Finding(str(path), "wrong", f"cannot be read ({error.strerror})")


class DownloadFailed(OSError):
    """No mirror has a file; the message has the reason for each and what to do."""


def get(
    name: str,
    data_dir: str | PathLike[str],
    *,
    mirrors: Sequence[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Path]:
    """Download the files of a data set that are missing or wrong into the folder ``data_dir/name``.

    A file is written when all of it has arrived and its uncompressed content has the published checksum, and not before.
    The mirrors, by default the published ones, are tried in order. Returns where the files are; those that were found
    elsewhere and are right stay there. ``progress`` is called with the bytes so far and the total, of all files together.
    """
    if name == DIGITS:
        load_digits()  # they come with scikit-learn
        return []
    if name not in SOURCES:
        raise unknown(name, NAMES, f"{name or repr('')}: no such data set")
    source, data_dir = SOURCES[name], Path(data_dir)
    mirrors = source.mirrors if mirrors is None else mirrors
    if isinstance(mirrors, str) or not mirrors:
        raise ValueError(f"mirrors is {mirrors!r}, it must be a list of at least one address")
    done, total, paths = 0, sum(file.n_bytes for file in source.files), []

    def show(n_bytes: int) -> None:  # mirrors compress a little differently, hence the minimum
        progress(min(done + n_bytes, total), total)

    for file, finding in zip(source.files, _check_images(source, data_dir), strict=True):
        path = Path(finding.file)
        if finding.state != "right":
            path = source.folders(data_dir)[0] / f"{file.name}.gz"
            _download(path, file, mirrors, show, again=source.remedy(data_dir))
        done += file.n_bytes
        show(0)
        paths.append(path)
    return paths


def _download(path: Path, file: SourceFile, mirrors: Sequence[str], show: Callable[[int], None], again: str) -> None:
    """Write a file from the first mirror that has it as published."""
    import pooch

    download = pooch.HTTPDownloader(chunk_size=_CHUNK, timeout=_TIMEOUT)
    reasons = [f"{file.name}.gz could not be downloaded."]
    for mirror in mirrors:
        url, arrived = f"{mirror.rstrip('/')}/{file.name}.gz", _Arrived(file, show)
        try:
            download(url, arrived, None)
            # Not pooch's checksum, which is that of the compressed file: mirrors compress differently.
            parse_idx(Path(url), arrived.getvalue(), file)
            break
        except BadFile as error:
            reasons.append(f"{url}: the download {error.reason}")
        except OSError as error:  # of the network: nothing is on the disk yet
            reasons.append(f"{url}: {_innermost(error)}")
    else:
        advice = f"Check the network connection; {again} tries again. Or copy the file into {path.parent}."
        raise DownloadFailed("\n".join([*reasons, advice]))
    try:
        files.write_bytes(path, arrived.getvalue())
    except OSError as error:
        reason = f"{path} could not be written ({error.strerror})"
        raise OSError(f"{reason}; when it can, {again} downloads what is missing") from error


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
