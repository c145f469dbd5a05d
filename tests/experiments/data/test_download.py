"""Downloading from servers that behave well and badly, here on this machine."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import pickle
import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from sparsum_experiments import data
from sparsum_experiments.data.sources import SOURCES, SourceFile

BIG = "train-images-idx3-ubyte"


class Mirror:
    """A server of files.

    Args:
        files: what it has, by name.
        has_ranges: whether it can begin in the middle of a file.
        says_length: whether it announces how long a file is.
        cut: how many bytes it sends of one that is longer, before it closes the connection.
        stalls: whether it stays silent instead of closing.
    """

    def __init__(
        self,
        files: dict[str, bytes],
        *,
        has_ranges: bool = True,
        says_length: bool = True,
        cut: int | None = None,
        stalls: bool = False,
    ) -> None:
        self.files, self.has_ranges, self.says_length, self.cut, self.stalls = files, has_ranges, says_length, cut, stalls
        self.asked: list[tuple[str, int]] = []  # file and first byte of each request
        self.end = threading.Event()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.rpartition("/")[-1]
        start = int(request.headers.get("Range", "bytes=0-")[6:-1])
        self.asked.append((name, start))
        if name not in self.files:
            request.send_error(404)
            return
        content = self.files[name]
        if self.has_ranges and start >= len(content):
            request.send_error(416)
            return
        start = start if self.has_ranges else 0
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if self.says_length:
            request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        request.wfile.write(content[start : None if self.cut is None else start + self.cut])
        request.wfile.flush()
        if self.stalls:
            self.end.wait(60)

    def start(self) -> str:
        """Its address."""
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
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
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Compressed files that take the place of mnist's: random images, so that they are long."""
    rng = random.Random(0)
    made = {}

    def small(file: SourceFile) -> SourceFile:
        shape = (300, *file.shape[1:])
        entries = bytes(rng.randrange(10) for _ in range(300)) if file.is_labels else rng.randbytes(300 * 28 * 28)
        content = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + entries
        made[f"{file.name}.gz"] = gzip.compress(content)
        return SourceFile(file.name, shape, hashlib.md5(content).hexdigest(), len(made[f"{file.name}.gz"]))

    source = SOURCES["mnist"]
    train, test = ((small(images), small(labels)) for images, labels in (source.train, source.test))
    monkeypatch.setitem(SOURCES, "mnist", dataclasses.replace(source, train=train, test=test))
    return made


def states(data_dir: Path) -> set[str]:
    return {finding.state for finding in data.check("mnist", data_dir)}


def parts(data_dir: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in data_dir.rglob("*.part")}


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
    assert not parts(tmp_path)


def test_an_interrupted_download_is_resumed(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path) -> None:
    mirror = serve(files)
    address = mirror.start()

    def interrupt(n_bytes: int, _: int) -> None:
        if n_bytes > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.get("mnist", tmp_path, mirrors=[address], progress=interrupt)
    (kept,) = parts(tmp_path).values()
    assert kept > 100_000
    finding = data.check("mnist", tmp_path)[0]
    assert finding.state == "missing"
    assert f"{kept:,} of about" in finding.detail
    data.get("mnist", tmp_path, mirrors=[address])
    assert mirror.asked[1] == (f"{BIG}.gz", kept)
    assert states(tmp_path) == {"right"}


def test_a_killed_download_is_resumed(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(pickle.dumps(SOURCES["mnist"]))
    stalled = serve(files, cut=150_000, stalls=True)
    script = (
        "import pickle, sys; from pathlib import Path; from sparsum_experiments.data import sources, get;"
        "sources.SOURCES['mnist'] = pickle.loads(Path(sys.argv[1], 'source').read_bytes());"
        "get('mnist', sys.argv[1], mirrors=[sys.argv[2]])"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path), stalled.start()])
    until = time.monotonic() + 60
    while not any(parts(tmp_path).values()) and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.wait()
    ((name, kept),) = parts(tmp_path).items()
    assert name == f"{BIG}.gz.part"
    assert 0 < kept <= 150_000
    assert states(tmp_path) == {"missing"}
    mirror = serve(files)
    data.get("mnist", tmp_path, mirrors=[mirror.start()])
    assert mirror.asked[0] == (f"{BIG}.gz", kept)
    assert states(tmp_path) == {"right"}


def test_a_server_without_ranges_begins_again(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path) -> None:
    part = tmp_path / "mnist" / f"{BIG}.gz.part"
    part.parent.mkdir()
    part.write_bytes(files[f"{BIG}.gz"][:1000])
    mirror = serve(files, has_ranges=False)
    data.get("mnist", tmp_path, mirrors=[mirror.start()])
    assert mirror.asked[0] == (f"{BIG}.gz", 1000)
    assert states(tmp_path) == {"right"}


def test_a_broken_transfer_goes_on_at_the_next_mirror(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path) -> None:
    broken, whole = serve(files, cut=70_000), serve(files)
    data.get("mnist", tmp_path, mirrors=["http://127.0.0.1:9", serve({}).start(), broken.start(), whole.start()])
    assert whole.asked == [(f"{BIG}.gz", 70_000), ("t10k-images-idx3-ubyte.gz", 70_000)]
    assert states(tmp_path) == {"right"}


def test_when_all_mirrors_fail(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path) -> None:
    addresses = ["http://127.0.0.1:9", serve({}).start(), serve(files, cut=70_000).start()]
    with pytest.raises(data.DownloadFailed) as caught:
        data.get("mnist", tmp_path, mirrors=addresses)
    again = f"{BIG}.gz.part keeps what arrived; `sparsum data get mnist --data-dir {tmp_path}` goes on from there"
    for words in (*addresses, "refused", "404", "after 70,000 of", again):
        assert words in str(caught.value)
    assert parts(tmp_path) == {f"{BIG}.gz.part": 70_000}
    assert states(tmp_path) == {"missing"}


@pytest.mark.parametrize("what", ["another", "cut", "page"])
def test_wrong_content_is_deleted(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path, what: str) -> None:
    content = files[f"{BIG}.gz"]
    wrong = {"another": files["t10k-images-idx3-ubyte.gz"], "cut": content[:5000], "page": b"<html>pay first</html>"}[what]
    address = serve({**files, f"{BIG}.gz": wrong}, says_length=what != "cut").start()
    with pytest.raises(data.DownloadFailed, match="it was deleted") as caught:
        data.get("mnist", tmp_path, mirrors=[address])
    assert f"`sparsum data get mnist --data-dir {tmp_path}` tries again" in str(caught.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("left", ["whole", "too long", "of another mirror"])
def test_what_an_earlier_attempt_left(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path, left: str) -> None:
    content = files[f"{BIG}.gz"]
    part = tmp_path / "mnist" / f"{BIG}.gz.part"
    part.parent.mkdir()
    other = gzip.compress(gzip.decompress(content), 1, mtime=5)[:50_000]
    part.write_bytes({"whole": content, "too long": content + b"0", "of another mirror": other}[left])
    mirror = serve(files)
    data.get("mnist", tmp_path, mirrors=[mirror.start()])
    n_requests = {"whole": 1, "too long": 2, "of another mirror": 2}[left]
    assert [name for name, _ in mirror.asked].count(f"{BIG}.gz") == n_requests
    assert states(tmp_path) == {"right"}
    assert not parts(tmp_path)


def test_a_wrong_file_is_replaced(files: dict[str, bytes], serve: type[Mirror], tmp_path: Path) -> None:
    address = serve(files).start()
    path = data.get("mnist", tmp_path, mirrors=[address])[0]
    path.write_bytes(b"damaged")
    (tmp_path / BIG).write_bytes(b"damaged too")
    assert data.get("mnist", tmp_path, mirrors=[address])[0] == path
    assert states(tmp_path) == {"right"}


def test_arguments(tmp_path: Path) -> None:
    assert data.get("digits", tmp_path) == []
    with pytest.raises(ValueError, match=r"name is 'minst', there are digits, mnist, fashion-mnist"):
        data.get("minst", tmp_path)
    cases: tuple[Sequence[str], ...] = ([], "http://127.0.0.1")
    for mirrors in cases:
        with pytest.raises(ValueError, match=r"mirrors is .* at least one"):
            data.get("mnist", tmp_path, mirrors=mirrors)
    assert not list(tmp_path.iterdir())
