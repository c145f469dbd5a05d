"""Listing the data sets."""

from __future__ import annotations

from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from sparsum_experiments.data.digits import DIGITS
from sparsum_experiments.data.locate import locate
from sparsum_experiments.data.npz import FILES
from sparsum_experiments.data.sources import SOURCES, Source


class Known(NamedTuple):
    """A data set that can be used, or got.

    Args:
        name: what to say on the command line.
        experiments: those that it is for.
        content: what is in it.
        n_bytes: the size of its files, or of the download where they are not there.
        found: where it is, None if any of its files is missing.
    """

    name: str
    experiments: tuple[str, ...]
    content: str
    n_bytes: int
    found: str | None


def known(data_dir: str | PathLike[str]) -> list[Known]:
    """All data sets, those of the signal game as far as they are in a folder of ``data_dir``.

    Files are looked for and not read: `check` does that.

    >>> known("data")[0].content
    '1,797 images of 8 x 8, 17 grey levels'
    """
    digits = Known(
        name=DIGITS,
        experiments=("ssvae", "signal-game", "bitvector-vae"),
        content="1,797 images of 8 x 8, 17 grey levels",
        n_bytes=0,
        found="scikit-learn" if find_spec("sklearn") else None,
    )
    published = [_published(source, Path(data_dir)) for source in SOURCES.values()]
    return [digits, *published, *_games(Path(data_dir))]


def _published(source: Source, data_dir: Path) -> Known:
    paths = [path for file in source.files if (path := locate(source, file, data_dir))]
    is_there = len(paths) == len(source.files)
    n_images, height, width = source.train[0].shape
    return Known(
        name=source.name,
        experiments=source.experiments,
        content=f"{n_images + source.test[0].shape[0]:,} images of {height} x {width}, 256 grey levels",
        n_bytes=sum(path.stat().st_size for path in paths) if is_there else sum(file.n_bytes for file in source.files),
        found=", ".join(sorted({str(path.parent) for path in paths})) if is_there else None,
    )


def _games(data_dir: Path) -> list[Known]:
    folders = sorted({path.parent for path in data_dir.glob(f"*/{FILES[0]}") if (path.parent / FILES[1]).is_file()})
    return [
        Known(
            name=folder.name,
            experiments=("signal-game",),
            content="features of images",
            n_bytes=sum((folder / file).stat().st_size for file in FILES),
            found=str(folder),
        )
        for folder in folders
    ]
