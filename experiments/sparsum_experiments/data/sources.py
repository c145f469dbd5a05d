"""The published image files: where they are to be had, and what is in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

N_CLASSES = 10
_SHAPE = (28, 28)


@dataclass(frozen=True)
class SourceFile:
    """One IDX file.

    Args:
        name: without the .gz that the published files end in.
        shape: of the array in it.
        md5: of its uncompressed content, since mirrors and packages compress differently.
        n_bytes: its published size, compressed.
    """

    name: str
    shape: tuple[int, ...]
    md5: str
    n_bytes: int

    @property
    def is_labels(self) -> bool:
        """Whether it holds labels, and not images."""
        return len(self.shape) == 1


@dataclass(frozen=True)
class Source:
    """A published data set of four IDX files.

    Args:
        name: on the command line, and of its folder.
        experiments: those that use it.
        mirrors: the addresses below which the files are.
        packaged_in: folders where a package of the system puts them.
        train: images and labels.
        test: images and labels.
    """

    name: str
    experiments: tuple[str, ...]
    mirrors: tuple[str, ...]
    packaged_in: tuple[Path, ...]
    train: tuple[SourceFile, SourceFile]
    test: tuple[SourceFile, SourceFile]

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """All four."""
        return self.train + self.test


def _train(images_md5: str, images_bytes: int, labels_md5: str, labels_bytes: int) -> tuple[SourceFile, SourceFile]:
    return (
        SourceFile("train-images-idx3-ubyte", (60_000, *_SHAPE), images_md5, images_bytes),
        SourceFile("train-labels-idx1-ubyte", (60_000,), labels_md5, labels_bytes),
    )


def _test(images_md5: str, images_bytes: int, labels_md5: str, labels_bytes: int) -> tuple[SourceFile, SourceFile]:
    return (
        SourceFile("t10k-images-idx3-ubyte", (10_000, *_SHAPE), images_md5, images_bytes),
        SourceFile("t10k-labels-idx1-ubyte", (10_000,), labels_md5, labels_bytes),
    )


SOURCES = {
    "mnist": Source(
        name="mnist",
        experiments=("ssvae", "bitvector-vae"),
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        packaged_in=(),
        train=_train("6bbc9ace898e44ae57da46a324031adb", 9_912_422, "a25bea736e30d166cdddb491f175f624", 28_881),
        test=_test("2646ac647ad5339dbf082846283269ea", 1_648_877, "27ae3e4e09519cfbb04c329615203637", 4_542),
    ),
    "fashion-mnist": Source(
        name="fashion-mnist",
        experiments=("ssvae", "bitvector-vae"),
        mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        packaged_in=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's dataset-fashion-mnist
        train=_train("f4a8712d7a061bf5bd6d2ca38dc4d50a", 26_421_880, "9018921c3c673c538a1fc5bad174d6f9", 29_515),
        test=_test("8181f5470baa50b63fa0f6fddb340f0a", 4_422_102, "15d484375f8d13e6eb1aabb0c3f46965", 5_148),
    ),
}
