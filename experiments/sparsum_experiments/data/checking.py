"""Verifying the files of a data set."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import NamedTuple

from sparsum_experiments.data.bad_file import BadFile, State
from sparsum_experiments.data.digits import DIGITS, N_DIGITS, load_digits
from sparsum_experiments.data.fetching import part_of
from sparsum_experiments.data.games import load_games
from sparsum_experiments.data.idx import read_idx
from sparsum_experiments.data.locate import folders, home, locate, remedy
from sparsum_experiments.data.npz import FILES, find_folder, read_npz
from sparsum_experiments.data.sources import SOURCES, Source, SourceFile


class Finding(NamedTuple):
    """What is to be said of a file.

    Args:
        file: its path, or where it should be.
        state: right, wrong, truncated or missing.
        detail: what exactly, and what to do about it.
    """

    file: str
    state: State
    detail: str


def check(name: str, data_dir: str | PathLike[str]) -> list[Finding]:
    """Read all files of a data set and compare them with what they should be.

    >>> check("digits", "data")
    [Finding(file='scikit-learn', state='right', detail='1,797 images')]

    Args:
        name: ``digits``, ``mnist``, ``fashion-mnist``, or a folder with the files of a signal game.
        data_dir: the folder of all data.

    Raises:
        FileNotFoundError: if nothing has this name.
    """
    if name == DIGITS:
        return [_check_digits()]
    if name in SOURCES:
        return [_check_published(SOURCES[name], file, Path(data_dir)) for file in SOURCES[name].files]
    return _check_games(find_folder(name, Path(data_dir)))


def _check_digits() -> Finding:
    try:
        load_digits()
    except ImportError as error:
        return Finding("scikit-learn", "missing", str(error))
    return Finding("scikit-learn", "right", f"{N_DIGITS:,} images")


def _check_published(source: Source, file: SourceFile, data_dir: Path) -> Finding:
    path, again = locate(source, file, data_dir), remedy(source, data_dir)
    if path is None:
        path = home(source, data_dir) / f"{file.name}.gz"
        part = part_of(path)
        if part.is_file():
            n_bytes = part.stat().st_size
            detail = f"{n_bytes:,} of about {file.n_bytes:,} bytes are in {part}: {again} goes on from there"
            return Finding(str(path), "missing", detail)
        others = ", ".join(map(str, folders(source, data_dir)[1:]))
        return Finding(str(path), "missing", f"it is not in {others} either: {again} downloads it")
    try:
        read_idx(path, file)
    except BadFile as error:
        return Finding(str(path), error.state, f"{error.reason}: {again} downloads the right one")
    return Finding(str(path), "right", f"{file.shape[0]:,} {'labels' if file.is_labels else 'images'}")


def _check_games(folder: Path) -> list[Finding]:
    findings = [_check_npz(folder / file) for file in FILES]
    if all(finding.state == "right" for finding in findings):
        try:
            load_games(folder, folder)
        except ValueError as error:  # each is right alone, and they do not go together
            findings.append(Finding(str(folder), "wrong", str(error)))
    return findings


def _check_npz(path: Path) -> Finding:
    try:
        arrays = read_npz(path)
    except FileNotFoundError as error:
        return Finding(str(path), "missing", str(error))
    except BadFile as error:
        return Finding(str(path), error.state, error.reason)
    n_images, n_features = arrays.x.shape
    return Finding(str(path), "right", f"{n_images:,} images of {len(arrays.y.unique())} concepts, {n_features:,} features")
