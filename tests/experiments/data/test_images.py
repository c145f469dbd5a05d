"""Images from published files: reading, splitting, downloading, checking, with small files of the same form."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import os
import socket
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sparsum_experiments import data
from sparsum_experiments.data.images import fixed_permutation
from sparsum_experiments.data.sources import SOURCES, SourceFile

N_TRAIN, N_TEST = 200, 50


def idx(array: torch.Tensor) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.numpy().tobytes()


def contents(seed: int) -> dict[str, bytes]:
    """Files like the published ones, with random images, which do not compress."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for file in SOURCES["mnist"].files:
        n = N_TRAIN if file.name.startswith("train") else N_TEST
        most = 10 if len(file.shape) == 1 else 256
        made[file.name] = idx(torch.randint(most, (n, *file.shape[1:]), generator=generator).to(torch.uint8))
    return made


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes]:
    """The content of a small mnist, which takes the place of the published one; fashion-mnist is another."""
    for seed, source in enumerate(SOURCES.copy().values()):
        made = contents(seed)

        def small(file: SourceFile, made: dict[str, bytes] = made) -> SourceFile:
            content = made[file.name]
            shape = (N_TRAIN if file.name.startswith("train") else N_TEST, *file.shape[1:])
            return SourceFile(file.name, shape, hashlib.md5(content).hexdigest(), len(gzip.compress(content)))

        packaged_in = tuple(tmp_path / "packages" / str(i) for i in range(len(source.packaged_in)))
        monkeypatch.setitem(
            SOURCES, source.name, dataclasses.replace(source, files=tuple(map(small, source.files)), packaged_in=packaged_in)
        )
    return contents(0)


def write(folder: Path, made: dict[str, bytes], *, is_compressed: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in made.items():
        (folder / f"{name}{'.gz' if is_compressed else ''}").write_bytes(
            gzip.compress(content) if is_compressed else content
        )


def test_the_split_of_the_digits() -> None:
    images = data.load_images("digits", "nowhere")
    assert (images.shape, images.n_levels, images.n_pixels) == ((8, 8), 17, 64)
    assert [len(split) for split in (images.train, images.validation, images.test)] == [1197, 300, 300]
    assert images.is_labelled.sum() == 100
    assert images.train.x.dtype == torch.uint8
    assert images.train.y.dtype == torch.int64
    x = torch.cat([images.train.x, images.validation.x, images.test.x])
    assert (int(x.min()), int(x.max())) == (0, 16)
    assert len(x.unique(dim=0)) == 1797  # no image is in two of them
    assert images.train.y[:8].tolist() == [9, 3, 6, 3, 0, 3, 7, 7]  # the same for ever


@given(st.integers(1, 1400), st.integers(0, 90), st.integers(1, 1400))
def test_splits_are_nested(n_validation: int, n_labelled: int, n_other: int) -> None:
    images = data.load_images("digits", "", n_validation=n_validation, n_labelled=n_labelled)
    other = data.load_images("digits", "", n_validation=n_other)
    assert (len(images.train), len(images.validation)) == (1497 - n_validation, n_validation)
    n_common = min(n_validation, n_other)
    assert torch.equal(images.validation.x[-n_common:], other.validation.x[-n_common:])
    assert torch.equal(images.test.y, other.test.y)
    assert images.is_labelled.sum() == n_labelled
    labelled = images.train.x[images.is_labelled]
    assert torch.equal(labelled, other.train.x[other.is_labelled][:n_labelled])


def test_a_fixed_permutation() -> None:
    order = fixed_permutation(60_000, "mnist")
    assert torch.equal(order.sort().values, torch.arange(60_000))
    assert not torch.equal(order, fixed_permutation(60_000, "fashion-mnist"))
    assert order[:4].tolist() == [41812, 31243, 5014, 37953]  # the same for ever


@pytest.mark.parametrize("is_compressed", [True, False])
@pytest.mark.parametrize("folder", ["mnist", "."])
def test_published_files(files: dict[str, bytes], tmp_path: Path, folder: str, is_compressed: bool) -> None:
    write(tmp_path / folder, files, is_compressed=is_compressed)
    images = data.load_images("mnist", tmp_path, n_validation=40, n_labelled=7)
    assert (images.name, images.shape, images.n_levels) == ("mnist", (28, 28), 256)
    order = fixed_permutation(N_TRAIN, "mnist")
    x = torch.frombuffer(bytearray(files["train-images-idx3-ubyte"][16:]), dtype=torch.uint8).view(-1, 784)
    y = torch.frombuffer(bytearray(files["train-labels-idx1-ubyte"][8:]), dtype=torch.uint8)
    assert torch.equal(torch.cat([images.train.x, images.validation.x]), x[order])
    assert torch.equal(torch.cat([images.train.y, images.validation.y]), y[order].long())
    assert images.test.x.numpy().tobytes() == files["t10k-images-idx3-ubyte"][16:]
    assert images.is_labelled.nonzero().flatten().tolist() == list(range(7))
    assert {finding.state for finding in data.check("mnist", tmp_path)} == {"right"}


def test_a_package_of_the_system(files: dict[str, bytes], tmp_path: Path) -> None:
    write(tmp_path / "packages" / "0", contents(1))
    assert len(data.load_images("fashion-mnist", tmp_path / "data", n_validation=1).test) == N_TEST
    found = {entry.name: entry.found for entry in data.known(tmp_path / "data")}
    assert found == {"digits": "scikit-learn", "mnist": None, "fashion-mnist": str(tmp_path / "packages" / "0")}
    assert (
        data.get("fashion-mnist", tmp_path / "data", mirrors=["http://127.0.0.1:9/"])[0].parent
        == tmp_path / "packages" / "0"
    )


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("name", "damage", "state", "words"),
    [
        (IMAGES, lambda c: b"\x89PNG" + c[4:], "wrong", "begins with the bytes 89 50 4e 47, not 00 00 08 03"),
        (IMAGES, lambda c: c[:7], "truncated", "has 7 bytes"),
        (IMAGES, lambda c: b"", "truncated", "has 0 bytes"),
        (IMAGES, lambda c: c[:-1], "truncated", "156,815 of the 156,816 bytes"),
        (IMAGES, lambda c: c + b"\0", "wrong", "has more than the 156,816 bytes"),
        (IMAGES, lambda c: c[:4] + struct.pack(">I", 100) + c[8 : 16 + 78_400], "wrong", "holds 100 x 28 x 28 entries"),
        (IMAGES, lambda c: c[:-1] + bytes([c[-1] ^ 1]), "wrong", "other content than the published file"),
        (IMAGES, lambda c: contents(1)[IMAGES], "wrong", "is fashion-mnist's train-images"),
        (IMAGES, lambda c: gzip.compress(c)[:-9], "truncated", "ends in the middle"),
        (IMAGES, lambda c: gzip.compress(c)[:-8] + bytes(8), "wrong", "cannot be uncompressed"),
        (IMAGES, lambda c: gzip.compress(c)[:10] + b"\xff" * 9 + gzip.compress(c)[19:], "wrong", "cannot be uncompressed"),
        (LABELS, lambda c: c[:-1] + b"\x0a", "wrong", "the label 10"),
    ],
)
def test_bad_files(
    files: dict[str, bytes], tmp_path: Path, name: str, damage: Callable[[bytes], bytes], state: str, words: str
) -> None:
    write(tmp_path / "mnist", files)
    path = tmp_path / "mnist" / f"{name}.gz"
    path.write_bytes(damage(files[name]))
    with pytest.raises(ValueError, match=words) as caught:
        data.load_images("mnist", tmp_path)
    assert str(path) in str(caught.value)
    assert f"`sparsum data get mnist --data-dir {tmp_path}`" in str(caught.value)
    findings = [finding for finding in data.check("mnist", tmp_path) if finding.state != "right"]
    assert [(finding.file, finding.state) for finding in findings] == [(str(path), state)]
    assert words in findings[0].detail


def test_missing_files(files: dict[str, bytes], tmp_path: Path) -> None:
    write(tmp_path / "mnist", {name: content for name, content in files.items() if name != LABELS})
    with pytest.raises(FileNotFoundError, match=LABELS) as caught:
        data.load_images("mnist", tmp_path)
    for words in (f"{tmp_path}/mnist and {tmp_path}", f"`sparsum data get mnist --data-dir {tmp_path}`"):
        assert words in str(caught.value)
    assert [finding.state for finding in data.check("mnist", tmp_path)] == ["right", "missing", "right", "right"]
    assert [entry.found for entry in data.known(tmp_path)] == ["scikit-learn", None, None]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name_or_folder": ""}, "--data '': no such data set or folder. Known: digits, mnist, fashion-mnist"),
        (
            {"name_or_folder": "minst"},
            "--data minst: no such data set or folder; did you mean 'mnist'. Known: digits, mnist, fashion-mnist",
        ),
        ({"n_validation": 0}, "n_validation is 0"),
        ({"n_validation": 1497}, "n_validation is 1497.* 1,496"),
        ({"n_validation": True}, "n_validation is True"),
        ({"n_labelled": -1}, "n_labelled is -1"),
        ({"n_labelled": 1198}, "n_labelled is 1198.* 1,197"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        data.load_images(**{"name_or_folder": "digits", "data_dir": "", **arguments})


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"pip install scikit-learn"):
        data.load_images("digits", "")
    assert data.check("digits", "")[0].state == "missing"


def test_a_folder_of_published_files_is_the_published_data_set(files: dict[str, bytes], tmp_path: Path) -> None:
    write(tmp_path / "anything", files, is_compressed=False)
    write(tmp_path / "mnist", files)
    named = data.load_images("mnist", tmp_path, n_validation=40)
    for name in (str(tmp_path / "anything"), "anything", tmp_path / "mnist"):
        images = data.load_images(name, tmp_path, n_validation=40)
        assert (images.name, images.shape, images.digests) == ("mnist", (28, 28), named.digests)
        assert torch.equal(images.train.x, named.train.x)
        assert torch.equal(images.is_labelled, named.is_labelled)


def own(folder: Path, n: int = 60, shape: tuple[int, int] = (3, 5), **changes: bytes) -> Path:
    """A data set of one's own."""
    x, y = torch.arange(n * shape[0] * shape[1]).view(n, *shape).to(torch.uint8), torch.arange(n).to(torch.uint8) % 10
    made = dict(zip(SOURCES["mnist"].files, (idx(x), idx(y), idx(x[: n // 2]), idx(y[: n // 2])), strict=True))
    write(folder, {file.name: changes.get(file.name[:7].replace("-", "_"), content) for file, content in made.items()})
    return folder


def test_a_data_set_of_ones_own(tmp_path: Path) -> None:
    images = data.load_images(own(tmp_path / "mine"), "nowhere")
    assert (images.name, images.shape, images.n_levels) == ("mine", (3, 5), 256)
    assert [len(split) for split in (images.train, images.validation, images.test)] == [50, 10, 30]
    assert images.is_labelled.sum() == 5
    x = torch.arange(900).view(60, 15).to(torch.uint8)[fixed_permutation(60, "mine")]
    assert torch.equal(torch.cat([images.train.x, images.validation.x]), x)
    assert torch.equal(data.load_images("mine", tmp_path).train.y, images.train.y)
    assert [finding.state for finding in data.check("mine", tmp_path)] == ["right"] * 4
    assert [entry.found for entry in data.known(tmp_path) if entry.name == "mine"] == [str(tmp_path / "mine")]
    few = data.load_images(own(tmp_path / "few", n=4), "")
    assert (len(few.train), len(few.validation), int(few.is_labelled.sum())) == (3, 1, 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "mnist"}, "is named mnist and does not hold the published files.*rename the folder"),
        ({"train_l": idx(torch.zeros(59, dtype=torch.uint8))}, "the train files have 60 images and 59 labels"),
        ({"t10k_im": idx(torch.zeros(30, 5, 3, dtype=torch.uint8))}, "different sizes, 3 x 5 and 5 x 3"),
        (
            {"n": 1, "t10k_im": idx(torch.zeros(1, 3, 5, dtype=torch.uint8)), "t10k_la": idx(torch.zeros(1).byte())},
            "1 image",
        ),
    ],
)
def test_files_that_do_not_belong_together(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    folder = own(tmp_path / changes.pop("name", "mine"), **changes)
    with pytest.raises(ValueError, match=words):
        data.load_images(folder, "")
    assert [finding.state for finding in data.check(str(folder), "")] == ["right"] * 4 + ["wrong"]


def test_an_incomplete_data_set_of_ones_own(tmp_path: Path) -> None:
    folder = own(tmp_path / "mine")
    (folder / f"{LABELS}.gz").unlink()
    with pytest.raises(FileNotFoundError, match=f"mine has no {LABELS}: .* the IDX files train-images"):
        data.load_images(folder, "")
    assert [finding.state for finding in data.check(str(folder), "")] == ["right", "missing", "right", "right"]


def test_digests_are_of_the_content(files: dict[str, bytes], tmp_path: Path) -> None:
    write(tmp_path, files)
    digests = data.load_images("mnist", tmp_path, n_validation=1).digests
    assert digests == {name: hashlib.blake2b(content, digest_size=16).hexdigest() for name, content in files.items()}
    assert data.load_images("digits", "").digests == {"digits": "eb6da2ce72169055db3026c6bf2fd393"}
    assert data.load_games("digits", "").digests == {"digits": "eb6da2ce72169055db3026c6bf2fd393"}


def bomb(n_images: int, n_zeros: int) -> bytes:
    """Many zeros in few bytes."""
    return gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", n_images, 1000, 1000) + bytes(n_zeros))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (bomb(100, 100_000_000), "announces 100,000,016 bytes in .* compressed ones, more than 250 times as many"),
        (bomb(4_000_000_000, 1000), "announces 4,000,000,000,000,016 bytes of content, more than the maximum"),
        (bomb(1, 100_000_000), "has more than the 1,000,016 bytes that it announces"),
        (idx(torch.zeros(0, 4, 4)), "holds no entries, but 0 x 4 x 4"),
    ],
    ids=["ratio", "size", "more than announced", "nothing"],
)
def test_bombs_are_refused_before_they_are_uncompressed(tmp_path: Path, content: bytes, words: str) -> None:
    path = own(tmp_path / "mine") / f"{IMAGES}.gz"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(data.BadFile, match=words):
        data.load_images(tmp_path / "mine", "")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000_000


@pytest.mark.parametrize("kind", ["fifo", "device", "socket", "folder"])
def test_what_is_not_a_file_is_refused_at_once(files: dict[str, bytes], tmp_path: Path, kind: str) -> None:
    write(tmp_path / "mnist", {name: content for name, content in files.items() if name != IMAGES})
    path = tmp_path / "mnist" / f"{IMAGES}.gz"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(tmp_path / "mnist"):  # its path may not be long
            bound.bind(path.name)
    else:
        path.mkdir()
    words = "is a folder, not a file" if kind == "folder" else "is a FIFO, socket or device, not a file"
    for name in ("mnist", tmp_path / "mnist"):
        with pytest.raises(ValueError, match=f"{path.name}: {words}"):
            data.load_images(name, tmp_path)
    assert [finding.state for finding in data.check("mnist", tmp_path)] == ["wrong", "right", "right", "right"]


def test_errors_of_the_disk_name_the_file(files: dict[str, bytes], tmp_path: Path) -> None:
    write(tmp_path / "mnist", files)
    path = tmp_path / "mnist" / f"{IMAGES}.gz"
    path.unlink()
    path.symlink_to("/proc/self/mem")  # a file that cannot be read from its beginning
    with pytest.raises(OSError, match=str(path)):
        data.load_images("mnist", tmp_path)
    assert "cannot be read" in data.check("mnist", tmp_path)[0].detail
