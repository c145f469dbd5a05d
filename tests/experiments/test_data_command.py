"""The commands of `sparsum data`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image
from sparsum_experiments.data_command import data_command
from sparsum_experiments.errors import UsageError

from tests.experiments.data.test_images import own


def sparsum_data(*words: str | Path) -> Result:
    return CliRunner().invoke(data_command, list(map(str, words)))


def test_nothing_heavy_is_imported() -> None:
    script = (
        "import sys, sparsum_experiments.data_command; print({'torch', 'numpy', 'PIL', 'pooch', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, encoding="utf-8", check=True)
    assert done.stdout == "set()\n"


def test_list(tmp_path: Path) -> None:
    own(tmp_path / "mine\x1b[31m")
    result = sparsum_data("list", "--data-dir", tmp_path)
    assert result.exit_code == 0
    for words in ("digits", "fashion-mnist", "scikit-learn", "nowhere:"):
        assert words in result.output
    assert "\x1b" not in result.output
    assert "\\x1b" in result.output


def test_get() -> None:
    result = sparsum_data("get", "digits")
    assert (result.exit_code, result.stdout) == (0, "digits comes with a package: there is nothing to download\n")
    error = sparsum_data("get", "minst").exception
    assert isinstance(error, UsageError)
    assert str(error) == "minst: no such data set; did you mean 'mnist'? Known: digits, mnist, fashion-mnist"


def test_check(tmp_path: Path) -> None:
    result = sparsum_data("check", "mnist", "--data-dir", tmp_path)
    assert result.exit_code == 1
    assert result.output.count("missing ") == 4
    result = sparsum_data("check", own(tmp_path / "mine\x1b[31m"))
    assert (result.exit_code, result.output.count("right "), result.output.count("mine\\x1b[31m")) == (0, 4, 4)
    error = sparsum_data("check", "minst").exception
    assert isinstance(error, UsageError)
    assert "minst: no such data set or folder; did you mean 'mnist'? Known: digits, mnist" in str(error)


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with images and a module of networks."""
    for concept in range(2):
        (tmp_path / "photos" / str(concept)).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (4, 4), (50, 100, i)).save(tmp_path / "photos" / str(concept) / f"{i}.png")
    module = "import torch\ndef flat(): return torch.nn.Flatten()\nnumber = 3\n"
    (tmp_path / "my_networks_of_a_test.py").write_text(module, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    return tmp_path


def test_features(pictures: Path) -> None:
    result = sparsum_data("features", "photos", "out", "--network", "my_networks_of_a_test:flat", "--size", "4")
    assert result.stdout == "out/train.npz\nout/test.npz\n"
    assert sorted(path.name for path in (pictures / "out").iterdir()) == ["test.npz", "train.npz"]


@pytest.mark.parametrize(
    ("network", "device", "words"),
    [
        ("my_networks_of_a_test:flat", "foo", "--device foo: not available here; valid: cpu"),
        ("my_networks_of_a_test:flat", "cuda:99", "--device cuda:99: not available here; valid: cpu"),
        ("my_networks_of_a_test:flat", "meta", "--device meta: not available here; valid: cpu"),
        ("torch", "cpu", "--network must be MODULE:FUNCTION, got 'torch'"),
        ("no_such_module:f", "cpu", "--network no_such_module:f: No module named"),
        ("my_networks_of_a_test:deep", "cpu", "--network my_networks_of_a_test:deep: .* no attribute"),
        ("my_networks_of_a_test:number", "cpu", "--network my_networks_of_a_test:number: expected a function that .* got 3"),
        ("os:getpid", "cpu", "--network os:getpid: expected a function that returns a torch.nn.Module"),
        ("..above:f", "cpu", "--network ..above:f: "),
    ],
)
def test_bad_options_of_features(pictures: Path, network: str, device: str, words: str) -> None:
    result = sparsum_data("features", "photos", "out", "--network", network, "--device", device)
    with pytest.raises(UsageError, match=words):
        raise result.exception or AssertionError
    assert not (pictures / "out").exists()
