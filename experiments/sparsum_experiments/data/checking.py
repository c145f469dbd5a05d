"""Listing data sets and verifying their files."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from sparsum_experiments.data.features import FILES, read_npz
from sparsum_experiments.data.games import game_folders, load_games
from sparsum_experiments.data.idx import read_idx
from sparsum_experiments.data.images import NAMES, has_images, load_digits, load_images
from sparsum_experiments.data.sources import (
    DIGITS,
    IDX_FILES,
    SOURCES,
    BadFile,
    Source,
    SourceFile,
    State,
    find_folder,
    locate_idx,
)

_OF_IMAGES, _OF_GAMES = ("ssvae", "bitvector-vae"), ("signal-game",)


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
    own = [_own(folder) for folder in folders if folder.name not in NAMES and has_images(folder)]
    games = [
        Known(name, _OF_GAMES, "features of images", sum((folder / file).stat().st_size for file in FILES), str(folder))
        for name, folder in game_folders(data_dir).items()
    ]
    return [digits, *(_published(source, data_dir) for source in SOURCES.values()), *own, *games]


def _own(folder: Path) -> Known:
    paths = [path for name in IDX_FILES if (path := locate_idx(folder, name))]
    found = str(folder) if len(paths) == len(IDX_FILES) else None
    return Known(folder.name, _OF_IMAGES, "images", sum(path.stat().st_size for path in paths), found)


def _published(source: Source, data_dir: Path) -> Known:
    paths = [path for file in source.files if (path := source.locate(file, data_dir))]
    is_there = len(paths) == len(source.files)
    n_images, height, width = source.files[0].shape
    return Known(
        name=source.name,
        experiments=_OF_IMAGES,
        content=f"{n_images + source.files[2].shape[0]:,} images of {height} x {width}, 256 grey levels",
        n_bytes=sum(path.stat().st_size for path in paths) if is_there else sum(file.n_bytes for file in source.files),
        found=", ".join(sorted({str(path.parent) for path in paths})) if is_there else None,
    )


class Finding(NamedTuple):
    """The result of checking a file: its path, or where it should be; its state; what is wrong and what to do."""

    file: str
    state: State
    detail: str


def check(name: str, data_dir: str | PathLike[str]) -> list[Finding]:
    """Read all files of a data set and compare them with what they should be.

    >>> check("digits", "data")
    [Finding(file='scikit-learn', state='right', detail='1,797 images')]

    Args:
        name: ``digits``, ``mnist``, ``fashion-mnist``, or a folder with files of images or of a signal game.
        data_dir: the folder of all data.

    Raises:
        UsageError: if there is neither a data set nor a folder of this name.
    """
    data_dir = Path(data_dir)
    if name == DIGITS:
        return [_finding(Path("scikit-learn"), lambda _: f"{len(load_digits()[0]):,} images")]
    if name in SOURCES:
        return [_check_published(SOURCES[name], file, data_dir) for file in SOURCES[name].files]
    folder = find_folder(name, data_dir, (*NAMES, *game_folders(data_dir)), option="")
    is_images = has_images(folder)
    findings = (
        [_check_own(folder, *file) for file in IDX_FILES.items()]
        if is_images
        else [_finding(folder / file, _describe_npz) for file in FILES]
    )
    if all(finding.state == "right" for finding in findings):
        try:
            (load_images if is_images else load_games)(folder.resolve(), folder)
        except ValueError as error:  # each is right alone, and they do not belong together
            findings.append(Finding(str(folder), "wrong", str(error)))
    return findings


def _check_published(source: Source, file: SourceFile, data_dir: Path) -> Finding:
    path, remedy = source.locate(file, data_dir), source.remedy(data_dir)
    if path is None:
        home, *others = source.folders(data_dir)
        places = ", ".join(map(str, others))
        return Finding(str(home / f"{file.name}.gz"), "missing", f"it is not in {places} either: {remedy} downloads it")
    finding = _finding(path, lambda path: _describe_idx(path, len(file.shape), file))
    if finding.state == "right":
        return finding
    return finding._replace(detail=f"{finding.detail}: {remedy} downloads the right one")


def _check_own(folder: Path, name: str, n_dims: int) -> Finding:
    path = locate_idx(folder, name) or folder / f"{name}.gz"
    return _finding(path, lambda path: _describe_idx(path, n_dims))


def _finding(path: Path, describe: Callable[[Path], str]) -> Finding:
    try:
        return Finding(str(path), "right", describe(path))
    except BadFile as error:
        return Finding(str(path), error.state, error.reason)
    except (FileNotFoundError, ImportError) as error:
        return Finding(str(path), "missing", str(error))
    except OSError as error:
        return Finding(str(path), "wrong", f"cannot be read ({error.strerror})")


def _describe_idx(path: Path, n_dims: int, published: SourceFile | None = None) -> str:
    return f"{len(read_idx(path, n_dims, published=published).array):,} {'labels' if n_dims == 1 else 'images'}"


def _describe_npz(path: Path) -> str:
    read = read_npz(path)
    return f"{len(read.x):,} images of {len(read.y.unique())} concepts, {read.x.shape[1]:,} features"
