"""Signal games: their files, and the images that are drawn."""

from __future__ import annotations

import hashlib
import io
import math
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sparsum_experiments import data
from sparsum_experiments.data.games import read_npz
from sparsum_experiments.errors import UsageError
from torch import Tensor

from tests.simplex.test_devices import every_device, n_waits


def arrays(n_concepts: int, n_each: int, seed: int, **others: Any) -> dict[str, Any]:
    """A file with two features to tell an image by, among others."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(n_concepts), n_each)
    x = rng.uniform(1.0, 2.0, (len(y), 5))
    order = rng.permutation(len(y))
    return {"x": x[order], "y": y[order], **others}


def write(folder: Path, **changes: dict[str, Any]) -> Path:
    """The two files of a game, with changes; None takes an array away."""
    folder.mkdir(exist_ok=True)
    for seed, (name, n_each) in enumerate((("train", 20), ("test", 6))):
        content = {**arrays(18, n_each, seed), **changes.get(name, {}), **changes.get("both", {})}
        np.savez(folder / f"{name}.npz", **{key: value for key, value in content.items() if value is not None})
    return folder


def rows(x: Tensor) -> set[tuple[float, ...]]:
    return set(map(tuple, x.tolist()))


def test_the_digits_as_concepts() -> None:
    games, images = data.load_games("digits", "nowhere"), data.load_images("digits", "nowhere")
    assert (games.name, games.n_images, games.n_features, games.names) == ("digits", 8, 64, tuple("0123456789"))
    for features, split in ((games.train, images.train), (games.validation, images.validation), (games.test, images.test)):
        expected = torch.nn.functional.normalize(split.x[split.y.argsort(stable=True)] / 16)
        torch.testing.assert_close(features.x, expected)
        assert torch.equal(features.count, split.y.bincount())


def test_a_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "some", both={"names": np.array([f"concept {i}" for i in range(18)])})
    games = data.load_games("some", tmp_path)
    assert (games.name, games.n_images, games.names[17]) == ("some", 16, "concept 17")
    assert [features.n_concepts for features in (games.train, games.validation, games.test)] == [18] * 3
    assert games.train.count.tolist() == [18] * 18
    assert games.validation.count.tolist() == [2] * 18  # a tenth of 20
    made = np.load(folder / "train.npz")
    expected = torch.nn.functional.normalize(torch.from_numpy(made["x"]).float())
    found = torch.cat([games.train.x, games.validation.x])
    assert len(rows(found)) == 360  # none is in both
    concept = torch.cat([games.train.concept, games.validation.concept])
    for x, y in zip(found, concept.tolist(), strict=True):
        i = int((expected - x).square().sum(1).argmin())
        torch.testing.assert_close(expected[i], x)
        assert made["y"][i] == y
    again = data.load_games(folder, "nowhere")
    assert torch.equal(again.validation.x, games.validation.x)
    assert [finding.state for finding in data.check("some", tmp_path)] == ["right", "right"]
    assert data.known(tmp_path)[-1].name == "some"


def test_codes_and_scale(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(1, 256, (108, 5)).astype(np.uint8)
    for scale in (np.float32(0.5), np.linspace(0.1, 1, 5)):
        write(tmp_path, test={"x": None, "codes": codes, "scale": scale, "y": np.repeat(np.arange(18), 6).astype(np.int16)})
        found = data.load_games(tmp_path, "").test.x
        torch.testing.assert_close(found, torch.nn.functional.normalize(torch.tensor(codes * scale, dtype=torch.float32)))


@pytest.mark.parametrize("by_number", [True, False])
def test_concepts_with_any_numbers(tmp_path: Path, by_number: bool) -> None:
    numbers = np.arange(18) * 7 + (2 if by_number else -40)
    names = np.array([str(i) for i in range(200)]) if by_number else numbers.astype(str)
    changes = {split: {"y": numbers[arrays(18, n, i)["y"]]} for i, (split, n) in enumerate((("train", 20), ("test", 6)))}
    games = data.load_games(write(tmp_path, **changes, both={"names": names}), "")
    assert games.names == tuple(map(str, numbers))
    assert games.test.concept.unique().tolist() == list(range(18))


def test_concepts_that_only_one_file_has(tmp_path: Path) -> None:
    y = arrays(18, 6, 1)["y"]
    games = data.load_games(write(tmp_path, test={"y": np.where(y == 3, 30, y)}), "")
    assert games.names == (*map(str, range(18)), "30")
    assert games.test.concept[games.test.first].tolist() == [0, 1, 2, *range(4, 19)]


@given(st.lists(st.integers(1, 25), min_size=1, max_size=6), st.integers(0, 99))
def test_a_tenth_of_each_concept_is_held_out(counts: list[int], seed: int) -> None:
    from sparsum_experiments.data.games import held_out

    concept = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    concept = concept[torch.randperm(len(concept), generator=torch.Generator().manual_seed(seed))]
    n_held_out = concept[held_out(concept)].bincount(minlength=len(counts)).tolist()
    assert n_held_out == [0 if count == 1 else max(1, round(count / 10)) for count in counts]


def test_the_last_images_of_a_concept_are_held_out() -> None:
    from sparsum_experiments.data.games import held_out

    concept = torch.tensor([0, 1] * 20)
    assert held_out(concept).nonzero().squeeze(-1).tolist() == [36, 37, 38, 39]


NAN, ZERO = arrays(18, 6, 1)["x"], arrays(18, 6, 1)["x"]
NAN[4, 2], ZERO[[3, 5]] = math.nan, 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y": np.arange(5)}, "features of 108 images and the concepts .y. of 5"),
        ({"x": NAN}, r"the features of 1 image are not finite \(rows 4\)"),
        ({"x": ZERO}, r"the features of 2 images are all zero.* \(rows 3, 5\)"),
        ({"x": np.full((108, 5), 1e300)}, "108 images are not finite"),
        ({"x": None}, "has no x, but y"),
        ({"y": None}, "has no y, but x"),
        ({"x": None, "codes": np.ones((108, 5), np.uint8)}, "has no scale"),
        ({"x": None, "codes": np.ones((108, 5), np.uint8), "scale": np.ones(4)}, "scale has 4 numbers for 5 features"),
        ({"x": np.ones(108)}, r"x is float64 of shape \(108,\)"),
        ({"x": np.ones((108, 5), complex)}, "x is complex128"),
        ({"x": np.array([[None] * 5] * 108)}, "x holds Python objects.* array of numbers"),
        ({"names": np.array(["a", None], object)}, "names holds Python objects.* array of strings"),
        ({"names": np.arange(18)}, "names is int64"),
        ({"y": np.ones(108)}, "y is float64"),
        ({"x": np.ones((108, 4))}, "train.npz has 5 features per image, test.npz 4"),
        ({"names": np.array(["a"] * 3)}, "there are 3 names for 18 concepts, 0 to 17"),
        ({"y": np.repeat(np.arange(9), 12)}, "16 concepts, and some has 9 in its test data"),
    ],
)
def test_bad_content(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    folder = write(tmp_path / "some", test=changes)
    with pytest.raises(ValueError, match=words):
        data.load_games(folder, "")
    wrong = [finding for finding in data.check("some", tmp_path) if finding.state != "right"]
    assert [finding.state for finding in wrong] == ["wrong"]


def test_names_that_differ(tmp_path: Path) -> None:
    names = np.array([str(i) for i in range(18)])
    with pytest.raises(ValueError, match="different names"):
        data.load_games(write(tmp_path, train={"names": names}, test={"names": names[::-1]}), "")


@pytest.mark.parametrize(
    ("damage", "state", "words"),
    [
        (lambda content: content[:-30], "truncated", "ends in the middle"),
        (lambda content: b"text", "wrong", r"is not an \.npz file"),
        (lambda content: content[:500] + bytes([content[500] ^ 1]) + content[501:], "wrong", "is corrupted"),
    ],
)
def test_damaged_files(tmp_path: Path, damage: Callable[[bytes], bytes], state: str, words: str) -> None:
    path = write(tmp_path) / "test.npz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=words):
        data.load_games(tmp_path, "")
    assert [finding.state for finding in data.check(str(tmp_path), "")] == ["right", state]


def header(shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    """The beginning of an array."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize(
    ("key", "content", "words"),
    [
        ("x", header((10**9, 10**6)) + bytes(80), "x announces 8,000,000,000,000,000 bytes, shape .* and has 80"),
        ("x", header((-2, -5)) + bytes(80), "x announces 80 bytes"),
        ("x", header((2, 5)) + bytes(160), "x announces 80 bytes, shape .2, 5., and has 160"),
        ("x", header((10, 10_000_000), "|u1") + bytes(100_000_000), "announces 100,.* compressed ones, more than 250 times"),
        ("names", header((10**15,), "<U0"), "names announces 0 bytes"),
        ("names", header((1,), "<U1") + b"\x00\xdc\x00\x00", "names has characters that are not Unicode"),
        ("names", header((1,), "<U1") + b"\xff\xff\xff\xff", "names has characters that are not Unicode"),
        ("x", b"text", "is corrupted"),
    ],
    ids=["huge", "negative", "longer", "bomb", "strings of no length", "surrogate", "no character", "no array"],
)
def test_arrays_that_lie(tmp_path: Path, key: str, content: bytes, words: str) -> None:
    path = write(tmp_path, both={key: None}) / "test.npz"
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{key}.npy", content)
    del content
    tracemalloc.start()
    with pytest.raises(data.BadFile, match=words):
        read_npz(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000_000
    assert data.check(str(tmp_path), "")[1].state == "wrong"


def test_encrypted_files(tmp_path: Path) -> None:
    path = write(tmp_path) / "test.npz"
    content = bytearray(path.read_bytes())
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flags of members, here and in the directory
        start = -1
        while (start := content.find(magic, start + 1)) >= 0:
            content[start + offset] |= 1
    path.write_bytes(content)
    with pytest.raises(data.BadFile, match="x is encrypted; save it without a password"):
        data.load_games(tmp_path, "")


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_what_is_not_a_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path) / "test.npz"
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(data.BadFile, match=r"test\.npz: is a .* not a file"):
        data.load_games(tmp_path, "")
    assert [finding.state for finding in data.check(str(tmp_path), "")] == ["right", "wrong"]


def test_errors_of_the_disk_name_the_file(tmp_path: Path) -> None:
    path = write(tmp_path) / "test.npz"
    path.unlink()
    path.symlink_to("/proc/self/mem")  # a file that cannot be read from its beginning
    with pytest.raises(OSError, match=str(path)):
        data.load_games(tmp_path, "")
    assert "cannot be read" in data.check(str(tmp_path), "")[1].detail


def test_digests_are_of_the_files(tmp_path: Path) -> None:
    games = data.load_games(write(tmp_path), "")
    assert games.digests == {
        name: hashlib.blake2b((tmp_path / name).read_bytes(), digest_size=16).hexdigest()
        for name in ("train.npz", "test.npz")
    }


def test_a_folder_may_not_be_called_digits(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is named digits.*rename the folder"):
        data.load_games(write(tmp_path / "digits"), "")


def test_missing_folders_and_files(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    write(tmp_path / "others")
    with pytest.raises(
        UsageError, match=r"--data other: no such data set or folder; did you mean 'others'. Known: digits, others"
    ):
        data.load_games("other", tmp_path)
    (write(tmp_path) / "test.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"test\.npz is missing.*`sparsum data features`"):
        data.load_games(tmp_path, "")
    assert [finding.state for finding in data.check(str(tmp_path), "")] == ["right", "missing"]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=9), st.integers(0, 20), st.data())
def test_a_game_has_different_concepts(counts: list[int], n_games: int, more: st.DataObject) -> None:
    n_images = more.draw(st.integers(1, len(counts)))
    concept = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)) * 3
    features = data.Features.from_unsorted(torch.rand(len(concept), 2) + 1, concept)
    drawn = [data.draw_games(features, n_games, n_images, torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(drawn[0].images, drawn[1].images)
    assert torch.equal(drawn[0].target, drawn[1].target)
    images, target = drawn[0]
    assert images.shape == (n_games, n_images)
    assert target.shape == (n_games,)
    assert ((target >= 0) & (target < n_images)).all()
    assert all(len(set(game)) == n_images for game in features.concept[images].tolist())


def test_games_are_uniform(generator: torch.Generator) -> None:
    counts, n_games = [1, 2, 3, 4], 48_000
    features = data.Features.from_unsorted(torch.ones(10, 1), torch.arange(4).repeat_interleave(torch.tensor(counts)))
    images, target = data.draw_games(features, n_games, 2, generator)
    # Pairs of images in their places: 4 x 3 ordered pairs of concepts, then the images of each, and 2 targets.
    frequency = torch.bincount(((images[:, 0] * 10) + images[:, 1]) * 2 + target, minlength=200).view(10, 10, 2) / n_games
    n_like = features.count[features.concept].double()
    is_other = features.concept[:, None] != features.concept
    expected = (is_other / (12 * n_like[:, None] * n_like))[..., None].expand(10, 10, 2) / 2
    deviation = (frequency - expected) / (expected / n_games).sqrt().clamp_min(1e-9)
    assert deviation.abs().max() < 4.5
    assert deviation[is_other].square().mean() < 1.3


@pytest.mark.parametrize(("n_games", "n_images", "words"), [(1, 0, "is 0"), (1, 4, "from 1 to 3"), (-1, 2, "n_games is -1")])
def test_bad_games(n_games: int, n_images: int, words: str, generator: torch.Generator) -> None:
    features = data.Features.from_unsorted(torch.ones(3, 1), torch.arange(3))
    with pytest.raises(ValueError, match=words):
        data.draw_games(features, n_games, n_images, generator)


@every_device
def test_drawing_waits_for_nothing(device: str) -> None:
    games = data.load_games("digits", "", device=device)
    generator = torch.Generator(device).manual_seed(0)
    assert n_waits(lambda: data.draw_games(games.train, 64, games.n_images, generator), device) == 0
    assert data.draw_games(games.test, 2, 8, generator).images.device.type == device
    assert data.load_images("digits", "", device=device).is_labelled.device.type == device


@given(st.integers(-30, 30))
def test_features_of_any_size_get_the_length_one(exponent: int) -> None:
    x = (torch.rand(4, 3, generator=torch.Generator().manual_seed(exponent)) + 0.1) * 10.0**exponent
    features = data.Features.from_unsorted(x.clone(), torch.zeros(4, dtype=torch.int64))
    torch.testing.assert_close(features.x, torch.nn.functional.normalize(x.double(), eps=0.0).float())
