"""Kills training, evaluation, sweeps, records and reports at random moments, and compares what they make in the end.

``python -m tools.chaos --kills 200 --seed 0`` runs each command undisturbed, then again and again with SIGKILLs: half of
them at a random time, half just before a random access to a file, where a crash does the most harm. Then it lets the
command finish, and compares metrics, weights, records and the page with those of the undisturbed run: times may differ,
nothing else. A process is a fork of this one, which has imported everything already. It needs Linux.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import vl_convert
from sparsum_experiments import report, sweep
from sparsum_experiments.main import main as sparsum
from sparsum_experiments.report import recording
from sparsum_experiments.runs import find_runs, read_records
from sparsum_experiments.training import evaluate, start

_IMPORTED = (evaluate, recording, report, start, sweep, vl_convert)
# What depends on clocks and memory, in metrics, records and checkpoints.
_TIMES = {"seconds", "validation_seconds", "peak_memory_mb", "epoch_seconds"}
# What differs between two runs that are the same, in a config.
_ABOUT = {"command", "started"}
# A command that takes longer hangs.
_MAX_SECONDS = 300.0
# What touches files, by the names of Python's audit events.
_FILE_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}
_GAME = ("signal-game", "sparse", "--data", "game", "--steps-per-epoch", "4", "--batch-size", "4", "--n-symbols", "4")
_IMAGES = ("--data", "images", "--batch-size", "8")
_RUNS = (
    (*_GAME, "--epochs", "4"),
    ("bitvector-vae", "topk", *_IMAGES, "--bits", "4", "--k", "3", "--epochs", "3"),
    ("bitvector-vae", "nvil", *_IMAGES, "--bits", "4", "--epochs", "3"),
    ("ssvae", "sparse", *_IMAGES, "--epochs", "2"),
)
_SWEEP = ("sweep", "signal-game", "--methods", "sparse,dense", *_GAME[2:], "--epochs", "2", "--jobs", "1", "--evaluate")


say = functools.partial(print, flush=True)


@dataclass
class Target:
    """A command that is killed.

    Args:
        name: for people.
        words: what is typed, in the folder of the attempt; asked again after each kill, as one would resume.
        found: what it made, in a form that can be compared.
        has_children: whether the processes that it starts are killed, too.
    """

    name: str
    words: Callable[[], Sequence[str]]
    found: Callable[[], Any]
    has_children: bool = False


@dataclass
class Count:
    """How often a kind of command was killed, resumed to its end and compared."""

    kills: int = 0
    ends: int = 0


class Defect(Exception):
    """A command failed after it was killed, or what it made differs; the message says where."""


class Process:
    """A command in a fork of this process.

    Args:
        words: what is typed after ``sparsum``.
        log: where its output goes.
        dies_before: the number of the access to a file before which it kills itself; None for none.
    """

    def __init__(self, words: Sequence[str], log: pathlib.Path, dies_before: int | None = None) -> None:
        self.words, self.log, self.status = words, log, -1
        self._began, self._counter = time.monotonic(), log.with_suffix(".count")
        self._id = os.fork()
        if not self._id:
            self._be(dies_before)

    def _be(self, dies_before: int | None) -> None:
        """Be the command."""
        status = 70
        try:
            with self.log.open("ab", 0) as log:
                for stream in (1, 2):
                    os.dup2(log.fileno(), stream)
            n_seen, here, me = 0, os.getcwd(), os.getpid()

            def count(event: str, values: tuple[Any, ...]) -> None:
                nonlocal n_seen
                if event not in _FILE_EVENTS or os.getpid() != me:
                    return
                is_read = event == "open" and isinstance(values[1], str) and not set("wax+") & set(values[1])
                if not is_read and isinstance(values[0], str | os.PathLike) and os.path.abspath(values[0]).startswith(here):
                    n_seen += 1
                    if n_seen == dies_before:
                        os.kill(me, signal.SIGKILL)

            sys.addaudithook(count)
            sys.argv = ["sparsum", *self.words]
            try:
                sparsum(list(self.words))
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
            self._counter.write_text(str(n_seen))
        finally:
            os._exit(status)

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Whether it ends within so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            ended, status = os.waitpid(self._id, os.WNOHANG)
            if ended:
                self.status = os.waitstatus_to_exitcode(status)
                return True
            if (left := deadline - time.monotonic()) <= 0:
                return False
            time.sleep(min(0.002, left))

    def end(self) -> tuple[float, int]:
        """Wait for its end, which must be a good one: its seconds, and how often it accessed files."""
        if not self.has_ended(_MAX_SECONDS):
            self.kill()
            raise Defect(f"{' '.join(self.words)} did not end within {_MAX_SECONDS:.0f} s; its output is in {self.log}")
        if self.status:
            raise Defect(f"{' '.join(self.words)} ended with {self.status}:\n{self.log.read_text()[-2000:]}")
        return time.monotonic() - self._began, int(self._counter.read_text())

    def kill(self) -> None:
        """Kill it, and see it dead."""
        os.kill(self._id, signal.SIGKILL)
        os.waitpid(self._id, 0)
        self.status = -signal.SIGKILL

    def children(self) -> list[int]:
        """The processes that it has started."""
        try:
            text = pathlib.Path(f"/proc/{self._id}/task/{self._id}/children").read_text(encoding="ascii")
        except OSError:
            return []
        return [int(word) for word in text.split()]


def run_content(folder: pathlib.Path) -> dict[str, Any]:
    """All that a run left in its folder, without times."""
    config = json.loads((folder / "config.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    checkpoints = {file.name: torch.load(file, weights_only=True) for file in sorted(folder.glob("checkpoints/*.pt"))}
    evaluations = {file.name: json.loads(file.read_text()) for file in sorted(folder.glob("evaluation*.json"))}
    left = [file.name for file in folder.rglob(".*.tmp")]
    found = {"metrics": lines, "checkpoints": checkpoints, "evaluations": evaluations, "left behind": left}
    kept = {name: value for name, value in config.items() if name not in _ABOUT}
    return dict(without_times(found | {"config": kept}))


def without_times(value: Any) -> Any:
    """A value without what clocks say."""
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if key not in _TIMES}
    return [without_times(each) for each in value] if isinstance(value, list | tuple) else value


def difference(one: Any, other: Any, where: str = "") -> str:
    """Where two values differ first; empty if they do not."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
        return "" if same else f"{where}: the tensors differ"
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return f"{where}: {sorted(map(str, one.keys() ^ other.keys()))} in one of them alone"
        return next(filter(None, (difference(one[key], other[key], f"{where}.{key}") for key in one)), "")
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return f"{where}: {len(one)} entries and {len(other)}"
        pairs = enumerate(zip(one, other, strict=True))
        return next(filter(None, (difference(*pair, f"{where}[{i}]") for i, pair in pairs)), "")
    return "" if one == other else f"{where}: {str(one)[:200]!r} and {str(other)[:200]!r}"


def make_data(folder: pathlib.Path) -> None:
    """Images of 4 x 4 pixels, and a game of 16 concepts."""
    rng = np.random.default_rng(0)
    for name, content in (("images", None), ("game", True)):
        (folder / name).mkdir(parents=True)
        for split, n, words in (("train", 192, "train"), ("test", 64, "t10k")):
            labels = np.arange(n) % 16 if content else np.arange(n) % 10
            if content:
                points = rng.normal(size=(n, 6)).astype(np.float32) + labels[:, None]
                np.savez(folder / name / f"{split}.npz", x=points.astype(np.float32), y=labels)
                continue
            pixels = rng.integers(0, 256, (n, 4, 4)).astype(np.uint8)
            for kind, array in (("images-idx3", pixels), ("labels-idx1", labels.astype(np.uint8))):
                header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
                (folder / name / f"{words}-{kind}-ubyte").write_bytes(header + array.tobytes())


def targets(finished: Sequence[pathlib.Path]) -> Iterator[tuple[str, list[Target]]]:
    """The commands of each kind; all work in the current folder."""

    def train(words: Sequence[str], seconds: str) -> list[str]:
        resume = ["--resume"] if pathlib.Path("run/config.json").exists() else []
        place = ["--device", "cpu", "--data-dir", str(finished[0].parents[1] / "data"), "--out", "run"]
        return ["train", *words, *place, "--checkpoint-seconds", seconds, *resume]

    yield (
        "training",
        [
            Target(
                f"{words[0]} {words[1]}, saving every {seconds} s",
                lambda words=words, seconds=seconds: train(words, seconds),  # type: ignore[misc]
                lambda: run_content(pathlib.Path("run")),
            )
            for words in _RUNS
            for seconds in ("0", "0.05", "60")
        ],
    )
    samples = ["--samples", "8", "--annealed", "2"]
    yield (
        "evaluation",
        [
            Target(f"evaluate {path.name}", lambda: ["evaluate", "run", *samples], lambda: run_content(pathlib.Path("run")))
            for path in finished
        ],
    )
    words = [*_SWEEP, "--data-dir", str(finished[0].parents[1] / "data"), "--device", "cpu", "--out", "sweep"]

    def swept() -> dict[str, Any]:
        here = pathlib.Path("sweep")
        return {str(path.relative_to(here.resolve())): run_content(path) for path in find_runs([here])}

    yield "sweep", [Target("sweep", lambda: words, swept, has_children=True)]

    def recorded() -> dict[str, bytes]:
        files = {str(file): file.read_bytes() for file in sorted(pathlib.Path("results").rglob("*")) if file.is_file()}
        for file in pathlib.Path("results").glob("*.jsonl.gz"):
            assert not read_records(file)[1]
            gzip.decompress(file.read_bytes())
        return {name: content for name, content in files.items() if not name.endswith(".tmp")}

    yield "record", [Target("record", lambda: ["record", "runs", "--latent"], recorded)]

    def page() -> str:
        return re.sub(r"Read on [^<]*", "", pathlib.Path("report.html").read_text(encoding="utf-8"))

    yield "report", [Target("report", lambda: ["report", "runs", "--out", "report.html"], page)]


class Chaos:
    """Kills commands, with counts.

    Args:
        folder: an empty one, for everything.
        rng: which command is killed, and when.
    """

    def __init__(self, folder: pathlib.Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self._truths = dict[str, tuple[Any, float, int]]()
        self._n_places = 0

    def prepare(self) -> list[pathlib.Path]:
        """Make the data, and a finished run of each kind."""
        make_data(self.folder / "data")
        (self.folder / "runs").mkdir()
        found = []
        for i, words in enumerate(_RUNS):
            path = self.folder / "runs" / f"{i}-{words[0]}-{words[1]}"
            place = ["--device", "cpu", "--data-dir", str(self.folder / "data"), "--out", str(path)]
            Process(["train", *words, *place], self.folder / "log.txt").end()
            Process(["evaluate", str(path), "--samples", "8"], self.folder / "log.txt").end()
            found.append(path)
        return found

    def _enter(self, target: Target, finished: Sequence[pathlib.Path]) -> None:
        """Go to a new folder, which has what the command works on."""
        self._n_places += 1
        place = self.folder / f"attempt-{self._n_places}"
        place.mkdir()
        os.chdir(place)
        if target.name.startswith("evaluate"):
            shutil.copytree(next(path for path in finished if target.name.endswith(path.name)), "run")
        elif target.name in {"record", "report"}:
            shutil.copytree(self.folder / "runs", "runs")

    def kill(self, target: Target, finished: Sequence[pathlib.Path], most: int) -> int:
        """Kill a command at most so many times, let it finish, and compare; returns how often it was killed."""
        if target.name not in self._truths:
            self._enter(target, finished)
            seconds, n_events = Process(target.words(), pathlib.Path("../undisturbed.txt").resolve()).end()
            self._truths[target.name] = target.found(), seconds, n_events
        truth, seconds, n_events = self._truths[target.name]
        self._enter(target, finished)
        log, done = pathlib.Path("../log.txt").resolve(), 0
        log.unlink(missing_ok=True)
        for _ in range(self.rng.randint(1, min(most, 4))):
            by_time, words = self.rng.random() < 0.5, target.words()
            process = Process(words, log, None if by_time else self.rng.randint(1, max(n_events, 1)))
            if process.has_ended(self.rng.uniform(0, seconds) if by_time else _MAX_SECONDS):
                if process.status not in {0, -signal.SIGKILL}:
                    raise Defect(f"{target.name}: ended with {process.status}:\n{log.read_text()[-2000:]}")
                done += process.status != 0
                continue
            children = process.children() if target.has_children else []
            if children and self.rng.random() < 0.5:  # a run of the sweep, which starts it again
                os.kill(self.rng.choice(children), signal.SIGKILL)
                process.end()
            else:
                process.kill()
            done += 1
        Process(target.words(), log).end()
        if problem := difference(truth, target.found()):
            raise Defect(f"{target.name}: after {done} kills, what it made differs, in {pathlib.Path.cwd()}: {problem}")
        shutil.rmtree(pathlib.Path.cwd())
        return done


def run(n_kills: int, seed: int, folder: pathlib.Path) -> tuple[dict[str, Count], list[str]]:
    """Kill so many times in all; returns the counts of each kind of command, and what was found."""
    rng = random.Random(seed)
    chaos = Chaos(folder, rng)
    finished = chaos.prepare()
    shares = {"training": 0.4, "evaluation": 0.15, "sweep": 0.1, "record": 0.15, "report": 0.2}
    counts, defects = dict[str, Count](), list[str]()
    for kind, kinds in targets(finished):
        counts[kind] = count = Count()
        before = _cpu_seconds()
        while count.kills < max(1, round(shares[kind] * n_kills)):
            target = kinds[count.ends % len(kinds)]
            try:
                count.kills += chaos.kill(target, finished, round(shares[kind] * n_kills) - count.kills or 1)
            except Defect as defect:
                defects.append(str(defect))
                say(f"DEFECT: {defect}")
                if len(defects) >= 10:
                    return counts, defects
            count.ends += 1
        used = _cpu_seconds() - before
        say(f"{kind}: {count.kills} kills, {count.ends} times resumed and compared, {used:.0f} s of CPU")
    return counts, defects


def _cpu_seconds() -> float:
    """Of this process, and of all that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> int:
    """Kill as often as the command line says; the exit status is 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200, help="how many, in all")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--keep", action="store_true", help="keep the folder, also if nothing was lost")
    given = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sparsum-chaos-"))
    os.environ |= {"SPARSUM_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    begin = time.monotonic()
    say(f"seed {given.seed}, {given.kills} kills, in {folder}")
    counts, defects = run(given.kills, given.seed, folder)
    n_kills, n_ends = (sum(getattr(count, name) for count in counts.values()) for name in ("kills", "ends"))
    took = f"{time.monotonic() - begin:.0f} s"
    say(f"{n_kills} kills, {n_ends} comparisons, {len(defects)} defects, in {took}")
    os.chdir("/")
    if not defects and not given.keep:
        shutil.rmtree(folder)
    return int(bool(defects))


if __name__ == "__main__":
    sys.exit(main())
