"""Where the files of a published data set are."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from sparsum_experiments.data.bad_file import BadFile
from sparsum_experiments.data.idx import read_idx
from sparsum_experiments.data.sources import Source, SourceFile


def home(source: Source, data_dir: Path) -> Path:
    """The folder where downloads go. It is looked at first, so that a download replaces whatever was wrong."""
    return data_dir / source.name


def folders(source: Source, data_dir: Path) -> tuple[Path, ...]:
    """The folders where files are looked for, in this order."""
    return home(source, data_dir), data_dir, *source.packaged_in


def locate(source: Source, file: SourceFile, data_dir: Path) -> Path | None:
    """The first file of this name, compressed or not."""
    places = (folder / f"{file.name}{end}" for folder in folders(source, data_dir) for end in (".gz", ""))
    return next((place for place in places if place.is_file()), None)


def remedy(source: Source, data_dir: Path) -> str:
    """The command that gets the files."""
    return f"`sparsum data get {source.name} --data-dir {data_dir}`"


def read(source: Source, file: SourceFile, data_dir: Path) -> Tensor:
    """The array of a file.

    Raises:
        FileNotFoundError: if it is nowhere, with where it was looked for and what to do.
        ValueError: if it is not the published file, with what to do.
    """
    path = locate(source, file, data_dir)
    if path is None:
        places = " and ".join(map(str, folders(source, data_dir)))
        raise FileNotFoundError(
            f"{file.name}.gz of {source.name} was looked for in {places}: {remedy(source, data_dir)} downloads it"
        )
    try:
        return read_idx(path, file)
    except BadFile as error:
        raise ValueError(f"{error}; {remedy(source, data_dir)} downloads the right one") from None
