"""Files of a signal game made from images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sparsum_experiments import data
from torch import Tensor


def colour(concept: int, i: int) -> tuple[int, int, int]:
    return 10 + concept, 100 + i, 200


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Images of 16 concepts with one colour each, of different sizes and kinds, at different depths."""
    for concept in range(16):
        folder = tmp_path / "pictures" / f"concept {concept:02}" / ("deeper" if concept % 2 else ".")
        folder.mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (5 + i, 9), colour(concept, i)).save(folder / f"{i}.{'PNG' if i % 2 else 'bmp'}")
        (folder / "notes.txt").write_text("not an image")
        (folder / ".hidden.png").write_text("not an image")
    return tmp_path / "pictures"


def mean_colour(x: Tensor) -> Tensor:
    return x.mean((2, 3)) * 255


def test_features_of_images(pictures: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    paths = data.make_features(
        pictures, mean_colour, tmp_path / "out", size=4, batch_size=7, progress=lambda *numbers: seen.append(numbers)
    )
    assert paths == (tmp_path / "out" / "train.npz", tmp_path / "out" / "test.npz")
    assert seen == [(min(n, 96), 96) for n in range(7, 103, 7)]
    found: list[tuple[int, ...]] = []
    for path, n_each in zip(paths, (4, 2), strict=True):
        made = np.load(path)
        assert np.bincount(made["y"]).tolist() == [n_each] * 16
        assert made["names"].tolist() == [f"concept {i:02}" for i in range(16)]
        assert made["x"].dtype == np.float32
        np.testing.assert_allclose(made["x"][:, 0], 10 + made["y"], atol=1e-3)
        found += [tuple(row) for row in made["x"].round().astype(int).tolist()]
    assert sorted(found) == sorted(colour(concept, i) for concept in range(16) for i in range(6))
    assert data.load_games(tmp_path / "out", "").n_features == 3
    assert not list(tmp_path.rglob("*.part"))


def test_a_module_is_used_in_evaluation_mode(pictures: Path, tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(48))
    network[1].eval()
    data.make_features(pictures, network, tmp_path / "out", size=4)
    assert [module.training for module in network] == [True, False, True]
    assert network[2].num_batches_tracked == 0


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (lambda x: x, r"network returned \(64, 3, 4, 4\) for 64 images"),
        (lambda x: x.mean((1, 2, 3)), r"network returned \(64,\)"),
        (lambda x: None, "network returned NoneType"),
        (lambda x: mean_colour(x)[1:], r"network returned \(63, 3\)"),
        (lambda x: mean_colour(x) * torch.nan, "not finite, or all zero, for .*concept 00/0.bmp"),
        (lambda x: mean_colour(x) * 0, "not finite, or all zero"),
        (lambda x: x.flatten(1)[:, : len(x)], "network returned 32 features, and 48 before"),
    ],
)
def test_bad_networks(pictures: Path, tmp_path: Path, network: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        data.make_features(pictures, network, tmp_path / "out", size=4)
    assert not (tmp_path / "out").exists()


def test_bad_folders_and_arguments(pictures: Path, tmp_path: Path) -> None:
    def make(folder: Path, **arguments: Any) -> None:
        data.make_features(folder, mean_colour, tmp_path / "out", **arguments)

    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere does not exist"):
        make(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="has no sub-folders"):
        make(pictures / "concept 00")
    for arguments, words in (
        ({"size": 0}, "size is 0"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"test_fraction": 1.0}, "is 1.0"),
    ):
        with pytest.raises(ValueError, match=words):
            make(pictures, **arguments)
    (pictures / "concept 02" / "3.PNG").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    with pytest.raises(ValueError, match=r"concept 02/3\.PNG cannot be read as an image"):
        make(pictures)
    (pictures / "\x1b[2J").mkdir()
    with pytest.raises(ValueError, match=r"sub-folder '\\x1b\[2J', whose name cannot be printed"):
        make(pictures)
    (pictures / "\x1b[2J").rename(pictures / "empty")
    with pytest.raises(ValueError, match=r"empty has 0 image.* at least 2"):
        make(pictures)


def test_what_was_there_stays_if_writing_fails(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = data.make_features(pictures, mean_colour, tmp_path / "out", size=4)
    before = [path.read_bytes() for path in paths]

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        data.make_features(pictures, lambda x: mean_colour(x) + 1, tmp_path / "out", size=4)
    assert [path.read_bytes() for path in paths] == before
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["test.npz", "train.npz"]


def test_without_pillow(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install pillow"):
        data.make_features(pictures, mean_colour, tmp_path)
