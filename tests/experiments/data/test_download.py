"""Downloading from servers that behave well and badly, here on this machine."""

from __future__ import annotations

import contextlib
import gzip
import pickle
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from sparsum_experiments import data
from sparsum_experiments.data.sources import SOURCES

from tests.experiments.data.test_images import files as contents  # noqa: F401 - a fixture

BIG = "train-images-idx3-ubyte"


class Mirror:
    """A server of files.

    Args:
        files: what it has, by name.
        says_length: whether it announces how long a file is.
        cut: how many bytes it sends of one that is longer, before it closes the connection.
        stalls: whether it stays silent instead of closing.
        encodes: whether it says that its .gz files are encoded, so that clients uncompress them.
    """

    def __init__(
        self,
        files: dict[str, bytes],
        *,
        says_length: bool = True,
        cut: int | None = None,
        stalls: bool = False,
        encodes: bool = False,
    ) -> None:
        self.files, self.says_length, self.cut, self.stalls, self.encodes = files, says_length, cut, stalls, encodes
        self.asked: list[str] = []
        self.end = threading.Event()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.rpartition("/")[-1]
        self.asked.append(name)
        if name not in self.files:
            request.send_error(404)
            return
        content = self.files[name]
        request.send_response(200)
        if self.says_length:
            request.send_header("Content-Length", str(len(content)))
        if self.encodes:
            request.send_header("Content-Encoding", "gzip")
        request.end_headers()
        request.wfile.write(content[: self.cut])
        request.wfile.flush()
        if self.stalls:
            self.end.wait(60)

    def start(self) -> str:
        """Its address."""
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with contextlib.suppress(ConnectionError):  # some clients do not wait for the end
                    mirror.answer(self)

            def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - http.server's name
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_address[1]}/some/where"

    def stop(self) -> None:
        self.end.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def serve() -> Iterator[type[Mirror]]:
    """Mirrors that are stopped in the end."""
    started = []

    class Stopped(Mirror):
        def start(self) -> str:
            started.append(self)
            return super().start()

    yield Stopped
    for mirror in started:
        mirror.stop()


@pytest.fixture
def files(contents: dict[str, bytes]) -> dict[str, bytes]:  # noqa: F811
    """Compressed files that take the place of mnist's."""
    return {f"{name}.gz": gzip.compress(content) for name, content in contents.items()}


def states(data_dir: Path) -> set[str]:
    return {finding.state for finding in data.check("mnist", data_dir)}


def written(data_dir: Path) -> list[str]:
    return [path.name for path in data_dir.rglob("*") if path.is_file()]


@pytest.mark.parametrize("says_length", [True, False])
def test_all_files_arrive(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path, says_length: bool) -> None:
    mirror, seen = serve(files, says_length=says_length), []
    paths = data.get("mnist", tmp_path, mirrors=[mirror.start()], progress=lambda *numbers: seen.append(numbers))
    assert {path.name: path.read_bytes() for path in paths} == files
    assert {path.parent for path in paths} == {tmp_path / "mnist"}
    assert seen == sorted(seen)
    total = sum(map(len, files.values()))
    assert {number for _, number in seen} == {total}
    assert seen[-1] == (total, total)
    assert data.get("mnist", tmp_path, mirrors=[mirror.start()]) == paths
    assert len(mirror.asked) == 4  # what is right is not fetched again
    assert sorted(written(tmp_path)) == sorted(files)


def test_other_compression_and_none(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path) -> None:
    other = {name: gzip.compress(gzip.decompress(content), 1, mtime=5) for name, content in files.items()}
    data.get("mnist", tmp_path / "other", mirrors=[serve(other).start()])
    data.get("mnist", tmp_path / "none", mirrors=[serve(files, encodes=True).start()])
    assert states(tmp_path / "other") == states(tmp_path / "none") == {"right"}


def test_an_interrupted_download_leaves_nothing(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path) -> None:
    def interrupt(n_bytes: int, _: int) -> None:
        if n_bytes > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.get("mnist", tmp_path, mirrors=[serve(files).start()], progress=interrupt)
    assert not written(tmp_path)


def test_a_killed_download_leaves_nothing(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(pickle.dumps(SOURCES["mnist"]))
    stalled = serve(files, cut=100_000, stalls=True)
    script = (
        "import pickle, sys; from pathlib import Path; from sparsum_experiments.data import sources, get;"
        "sources.SOURCES['mnist'] = pickle.loads(Path(sys.argv[1], 'source').read_bytes());"
        "get('mnist', sys.argv[1], mirrors=[sys.argv[2]], progress=lambda *_: Path(sys.argv[1], 'begun').touch())"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path), stalled.start()])
    until = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert sorted(written(tmp_path)) == ["begun", "source"]
    assert states(tmp_path) == {"missing"}
    data.get("mnist", tmp_path, mirrors=[serve(files).start()])
    assert states(tmp_path) == {"right"}


def test_mirrors_are_tried_in_order(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path) -> None:
    broken, whole, last = serve(files, cut=30_000), serve(files), serve(files)
    addresses = ["http://127.0.0.1:9", serve({}).start(), broken.start(), whole.start(), last.start()]
    data.get("mnist", tmp_path, mirrors=addresses)
    assert whole.asked == [f"{BIG}.gz", "t10k-images-idx3-ubyte.gz"]
    assert not last.asked
    assert states(tmp_path) == {"right"}


def test_when_all_mirrors_fail(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path) -> None:
    addresses = ["http://127.0.0.1:9", "http://no-such-host.invalid", serve({}).start(), serve(files, cut=30_000).start()]
    with pytest.raises(data.DownloadFailed) as caught:
        data.get("mnist", tmp_path, mirrors=addresses)
    again = f"`sparsum data get mnist --data-dir {tmp_path}` tries again. Or copy the file into {tmp_path / 'mnist'}"
    for words in (*addresses, "Connection refused", "404", "30000 bytes read", "Check the network connection", again):
        assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == len(addresses) + 2
    assert not written(tmp_path)
    assert states(tmp_path) == {"missing"}


@pytest.mark.parametrize("what", ["another", "cut", "page", "bomb", "endless"])
def test_wrong_content_is_not_written(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path, what: str) -> None:
    content = files[f"{BIG}.gz"]
    wrong, words = {
        "another": (files["t10k-images-idx3-ubyte.gz"], "holds 50 x 28 x 28 entries"),
        "cut": (content[:5000], "ends in the middle"),
        "page": (b"<html>pay first</html>", "begins with the bytes 3c 68 74 6d"),
        "bomb": (gzip.compress(gzip.decompress(content) + bytes(50_000_000)), "has more than the 156,816 bytes"),
        "endless": (content + bytes(500_000), "bytes, which are too many"),
    }[what]
    address = serve({**files, f"{BIG}.gz": wrong}, says_length=what != "cut").start()
    with pytest.raises(data.DownloadFailed, match=f"{BIG}.gz: the download .*{words}") as caught:
        data.get("mnist", tmp_path, mirrors=[address])
    assert f"`sparsum data get mnist --data-dir {tmp_path}` tries again" in str(caught.value)
    assert not written(tmp_path)


def test_a_full_disk(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path) -> None:
    address = serve(files).start()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(OSError, match=f"{BIG}.gz could not be written .*`sparsum data get mnist"):
            data.get("mnist", tmp_path, mirrors=[address])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not written(tmp_path)


def test_a_wrong_file_is_replaced(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path) -> None:
    address = serve(files).start()
    path = data.get("mnist", tmp_path, mirrors=[address])[0]
    path.write_bytes(b"damaged")
    (tmp_path / BIG).write_bytes(b"damaged too")
    assert data.get("mnist", tmp_path, mirrors=[address])[0] == path
    assert states(tmp_path) == {"right"}


def test_arguments(tmp_path: Path) -> None:
    assert data.get("digits", tmp_path) == []
    with pytest.raises(
        ValueError, match=r"minst: no such data set; did you mean 'mnist'\? Known: digits, mnist, fashion-mnist"
    ):
        data.get("minst", tmp_path)
    cases: tuple[Sequence[str], ...] = ([], "http://127.0.0.1")
    for mirrors in cases:
        with pytest.raises(ValueError, match=r"mirrors is .* at least one"):
            data.get("mnist", tmp_path, mirrors=mirrors)
    assert not list(tmp_path.iterdir())
