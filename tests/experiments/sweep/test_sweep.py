"""Sweeps: plans, processes that fail, are killed and are resumed, and the settings that are chosen in the end."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sparsum_experiments.errors import UsageError
from sparsum_experiments.registry import experiment_class, experiment_options
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.sweep import Board, Phase, PlannedRun, launch, make_plan, sweep, sweep_command
from sparsum_experiments.sweep.command import best_settings, seconds_left
from sparsum_experiments.sweep.estimate import estimate_plan
from sparsum_experiments.sweep.launch import Entry, default_jobs
from sparsum_experiments.sweep.plan import State, check_plan, grid_options, parse_grid, parse_methods, state_of

from tests.experiments.sweep.finished import write_finished

# One step an epoch: what is tested is the sweep, not the training.
TINY = {"batch_size": 1000, "warm_epochs": 0, "device": "cpu"}


class Quiet:
    """Watches a sweep, keeps its messages, and does something at every look."""

    def __init__(self, act: Callable[[Sequence[Entry]], None] = lambda entries: None) -> None:
        self.act, self.said, self.most_running = act, list[str](), 0

    def look(self, entries: Sequence[Entry]) -> None:
        self.most_running = max(self.most_running, sum(entry.phase is Phase.RUNNING for entry in entries))
        self.act(entries)

    def say(self, text: str) -> None:
        self.said.append(text)


def tiny_plan(out: Path, *, epochs: int = 2, grid: dict[str, list[Any]] | None = None, seeds: int = 1) -> list[PlannedRun]:
    return make_plan("ssvae", ["sparse"], TINY | {"epochs": epochs}, grid or {}, seeds, out)


def n_attempts(run: PlannedRun) -> int:
    return (run.folder / "log.txt").read_text(encoding="utf-8").count("=== sparsum sweep: attempt")


def wait_until(is_so: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def test_plan_names_runs_by_method_setting_and_seed(tmp_path: Path) -> None:
    grid = parse_grid("ssvae", ["lr=1e-3,5e-5", "batch-size=32"])
    plan = make_plan("ssvae", ["sparse", "dense"], {"epochs": 3, "k": None}, grid, 2, tmp_path)
    assert len({run.folder for run in plan}) == len(plan) == 2 * 2 * 2
    assert plan[1].folder == tmp_path / "sparse" / "batch-size-32_lr-5e-05" / "seed-0"
    assert plan[1].key == "sparse/batch-size-32_lr-5e-05/seed-0"
    assert (plan[1].args.lr, plan[1].args.batch_size, plan[1].args.seed) == (5e-5, 32, 0)
    assert plan[1].arguments()[:4] == ["ssvae", "sparse", "--epochs", "3"]
    assert "--batch-size" in plan[1].arguments()
    backwards = make_plan("ssvae", ["sparse"], {}, dict(reversed(grid.items())), 1, tmp_path)
    assert backwards[0].folder == plan[0].folder  # the order in which a grid is typed does not matter
    assert make_plan("ssvae", ["dense"], {}, {}, 1, tmp_path)[0].folder == tmp_path / "dense" / "seed-0"


def test_methods_that_ignore_an_option_are_not_swept_over_it(tmp_path: Path) -> None:
    grid = parse_grid("bitvector-vae", ["k=5,9", "entropy=1,3", "temperature-decay=0.1", "bit-order=fixed,random"])
    methods = ["topk", "topk-bound", "sparsemap", "gumbel", "sfe"]
    plan = make_plan("bitvector-vae", methods, {}, grid, 2, tmp_path)
    used = {method: {tuple(run.setting) for run in plan if run.method == method} for method in methods}
    assert used == {
        "topk": {("entropy", "k")},
        "topk-bound": {("k",)},
        "sparsemap": {("bit_order", "entropy")},
        "gumbel": {("entropy", "temperature_decay")},
        "sfe": {("entropy",)},
    }
    assert [sum(run.method == method for run in plan) for method in methods] == [8, 4, 8, 4, 4]
    assert len({run.folder for run in plan}) == len(plan)
    assert make_plan("bitvector-vae", ["gumbel"], {}, {"k": [5, 9]}, 1, tmp_path)[0].key == "gumbel/seed-0"


@pytest.mark.parametrize("experiment", ["ssvae", "signal-game", "bitvector-vae"])
def test_all_options_but_places_and_data_can_be_in_a_grid(experiment: str) -> None:
    options = experiment_options(experiment)
    assert options.keys() - grid_options(experiment).keys() == {"seed", "data", "data_dir", "device", "devices", "nodes"}
    for option in options.values():
        if option.methods is not None:  # an option that some methods use names methods of this experiment
            assert set(option.methods) & set(experiment_class(experiment).methods)


def test_an_option_that_no_method_uses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--grid k is not used by gumbel, sfe; leave it out, or add one of topk, topk-"):
        sweep_command(
            "bitvector-vae",
            methods="gumbel,sfe",
            options={},
            grid=["k=5,9", "lr=0.1,0.2"],
            seeds=1,
            jobs=1,
            out=tmp_path,
            plan_only=True,
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "must be NAME=VALUE"),
        ("lr=", "must be NAME=VALUE"),
        ("lr=1e-3,x", "--grid lr=1e-3,x: --lr: 'x' is not a number"),
        ("lr=nan", "'nan' is not a finite number"),
        ("batch-size=1.5", "'1.5' is not an integer"),
        ("batch-size=8,,9", "'' is not an integer"),
        ("lr=1e-3,0.001", "given twice"),
        ("rate=1", "'rate' cannot be in a grid of ssvae; .*known: epochs, lr, batch-size, "),
        ("latnt=4", "did you mean 'latent'"),
        ("device=cpu,cuda", "'device' cannot be in a grid"),
        ("seed=1,2", "--seeds"),
        ("method=sparse", "--methods"),
        ("data=mnist", "cannot be compared"),
    ],
)
def test_grid_errors_name_the_mistake(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_grid("ssvae", [text])


def test_plan_errors_name_the_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lr is given twice"):
        parse_grid("ssvae", ["lr=1", "lr=2"])
    with pytest.raises(UsageError, match="--lr is given both by itself and in --grid"):
        make_plan("ssvae", ["sparse"], {"lr": 1.0}, {"lr": [1.0]}, 1, tmp_path)
    with pytest.raises(UsageError, match="did you mean 'sparse'"):
        make_plan("ssvae", ["sparce"], {}, {}, 1, tmp_path)
    with pytest.raises(UsageError, match="--seeds must be at least 1"):
        make_plan("ssvae", ["sparse"], {}, {}, 0, tmp_path)
    with pytest.raises(UsageError, match="--seed is not an option of a sweep"):
        make_plan("ssvae", ["sparse"], {"seed": 3}, {}, 1, tmp_path)
    with pytest.raises(UsageError, match="--nodes 2: a sweep makes each run on one machine"):
        make_plan("ssvae", ["sparse"], {"nodes": 2}, {}, 1, tmp_path)
    with pytest.raises(UsageError, match="--methods sparse,sparse: a method is given twice; known: sparse, dense"):
        parse_methods("ssvae", "sparse,sparse")
    for empty in ("", " , "):
        with pytest.raises(UsageError, match="--methods is empty; known: sparse, dense"):
            parse_methods("ssvae", empty)


@pytest.mark.parametrize("name", [b"caf\xe9", b"\x1b[31mred", b"two\nlines"])
def test_a_folder_whose_name_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path, name: bytes) -> None:
    with pytest.raises(UsageError, match="the name must be UTF-8 without control characters") as raised:
        command(tmp_path / os.fsdecode(name), plan_only=False)
    assert str(raised.value).isprintable()
    assert not any(tmp_path.iterdir())


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file exists and is not a folder"):
        tiny_plan(tmp_path / "file" / "out")


def test_state_needs_metrics_and_checkpoint(tmp_path: Path) -> None:
    (run,) = tiny_plan(tmp_path)
    assert state_of(run) is State.NEW
    write_finished(run, [-3.0])
    assert state_of(run) is State.PARTIAL
    RunFolder(run.folder).add_metrics({"epoch": 1, "validation": {"elbo": -2.0}})
    assert state_of(run) is State.PARTIAL  # killed between the metrics and the checkpoint
    RunFolder(run.folder).save("last", {"place": {"epoch": 2}})
    assert state_of(run) is State.FINISHED
    RunFolder(run.folder).checkpoint_file("last").write_bytes(b"broken")
    assert state_of(run) is State.PARTIAL
    (run.folder / "failed.txt").write_text("why")
    assert state_of(run) is State.FAILED


def test_other_run_in_folder_is_an_error_that_names_the_difference(tmp_path: Path) -> None:
    (run,) = tiny_plan(tmp_path)
    write_finished(run, [-3.0, -2.0])
    (more,) = tiny_plan(tmp_path, epochs=3)
    assert state_of(more) is State.PARTIAL  # it continues with more epochs
    check_plan([more])
    (other,) = make_plan("ssvae", ["sparse"], TINY | {"epochs": 2, "batch_size": 500}, {}, 1, tmp_path)
    with pytest.raises(UsageError, match="its --batch-size is 1000, not 500"):
        sweep([other], 1, Quiet())
    config = json.loads((run.folder / "config.json").read_text(encoding="utf-8"))
    del config["args"]["batch_size"]  # as of an earlier version, which always had today's default
    (run.folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=r"its --batch-size is \d+, not 500"):
        sweep([other], 1, Quiet())
    (fewer,) = tiny_plan(tmp_path, epochs=1)
    with pytest.raises(UsageError, match="it has 2 epochs, more than 1"):
        sweep([fewer], 1, Quiet())


def test_processes_are_limited_and_failures_tried_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script = "import os, time; print('threads', os.environ['OMP_NUM_THREADS']); time.sleep(0.3); raise SystemExit(3)"
    monkeypatch.setattr(launch, "command_of", lambda run: [sys.executable, "-S", "-c", script])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(7), raising=False)
    watcher, plan = Quiet(), tiny_plan(tmp_path, seeds=5)
    entries, is_stopped = sweep(plan, 2, watcher)
    assert not is_stopped
    assert watcher.most_running == 2
    assert [n_attempts(run) for run in plan] == [2] * 5
    assert all(entry.phase is Phase.FAILED and "exit status 3; threads 3" in entry.reason for entry in entries)
    assert "threads 3" in (plan[0].folder / "failed.txt").read_text(encoding="utf-8")
    assert [state_of(run) for run in plan] == [State.FAILED] * 5
    assert sum("tried once more" in text for text in watcher.said) == 5


def test_runs_that_do_not_stop_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    monkeypatch.setattr(launch, "command_of", lambda run: [sys.executable, "-S", "-c", script])
    pids: list[int] = []

    def interrupt(entries: Sequence[Entry]) -> None:
        if all("deaf" in (entry.run.folder / "log.txt").read_text(encoding="utf-8") for entry in entries):
            pids.extend(entry.process.pid for entry in entries if entry.process is not None)
            raise KeyboardInterrupt

    entries, is_stopped = sweep(tiny_plan(tmp_path, seeds=2), 2, Quiet(interrupt), grace_seconds=0.5)
    assert is_stopped
    assert [entry.phase for entry in entries] == [Phase.WAITING] * 2
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_real_runs_finish_resume_and_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run is killed with SIGKILL in the middle and resumed; one has a learning rate at which it diverges."""
    monkeypatch.setenv("SPARSUM_CACHE", str(tmp_path / "cache"))
    plan = tiny_plan(tmp_path / "out", epochs=25, grid={"lr": [1e-3, 1e30]})
    killed: list[int] = []

    def kill_once(entries: Sequence[Entry]) -> None:
        process, lines = entries[0].process, RunFolder(plan[0].folder).metrics()
        if lines and process is not None and not killed:
            process.kill()
            killed.append(len(lines))

    watcher = Quiet(kill_once)
    (good, bad), is_stopped = sweep(plan, 2, watcher)
    assert not is_stopped
    assert killed[0] < 25
    assert (good.phase, good.n_attempts) == (Phase.FINISHED, 2)
    assert any("killed by SIGKILL" in text and "tried once more" in text for text in watcher.said)
    folder = RunFolder(plan[0].folder)
    assert [line["epoch"] for line in folder.metrics()] == list(range(25))
    assert folder.config().command[:4] == ["sparsum", "train", "ssvae", "sparse"]
    assert (bad.phase, bad.n_attempts) == (Phase.FAILED, 2)
    assert "exit status" in bad.reason
    assert "NaN" in bad.reason
    before = n_attempts(plan[0])
    entries, _ = sweep(plan[:1], 2, Quiet(lambda _: pytest.fail("nothing was to be done")))
    assert entries[0].phase is Phase.FINISHED
    assert n_attempts(plan[0]) == before


PARENT = """
import pathlib, sys
from sparsum_experiments.sweep import sweep_command
options = {"batch_size": 1000, "warm_epochs": 0, "device": "cpu", "epochs": 100_000}
sys.exit(sweep_command("ssvae", methods="sparse", options=options, grid=[], seeds=1, out=pathlib.Path(sys.argv[1]), jobs=1,
                       plan_only=False))
"""


def processes_of(folder: Path) -> list[int]:
    """The processes that have a folder on their command line."""
    found = []
    for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder) in file.read_text(encoding="utf-8"):
                found.append(int(file.parent.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def test_runs_are_evaluated_also_those_that_were_trained_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSUM_CACHE", str(tmp_path / "cache"))
    trained = tiny_plan(tmp_path / "out")
    sweep(trained, 1, Quiet())
    assert [state_of(run) for run in trained] == [State.FINISHED]
    evaluated = [dataclasses.replace(run, is_evaluated=True) for run in trained]
    assert [state_of(run) for run in evaluated] == [State.PARTIAL]
    ((entry,), _) = sweep(evaluated, 1, Quiet())
    assert (entry.phase, entry.n_attempts) == (Phase.FINISHED, 1)
    assert "accuracy" in json.loads((trained[0].folder / "evaluation.json").read_text(encoding="utf-8"))
    (trained[0].folder / "evaluation.json").write_text("{")
    assert [state_of(run) for run in evaluated] == [State.PARTIAL]
    anew = [dataclasses.replace(run, is_evaluated=True) for run in tiny_plan(tmp_path / "new")]
    assert [entry.phase for entry in sweep(anew, 1, Quiet())[0]] == [Phase.FINISHED]
    assert (anew[0].folder / "evaluation.json").exists()


@pytest.mark.skipif(not pathlib.Path("/proc").exists(), reason="looks for processes as Linux lists them")
def test_stopped_or_killed_sweep_leaves_runs_to_resume_and_no_orphans(tmp_path: Path) -> None:
    """After the first SIGKILL, the next sweep starts at once, and its run waits until the orphan has saved."""
    (run,) = tiny_plan(tmp_path / "out", epochs=100_000)
    folder, n_before = RunFolder(run.folder), 0
    signals = (signal.SIGKILL, signal.SIGINT, signal.SIGHUP, signal.SIGKILL)
    for i, number in enumerate(signals):
        command = [sys.executable, "-c", PARENT, str(tmp_path / "out")]
        parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0)
        wait_until(lambda n=n_before: len(folder.metrics()) > n and len(processes_of(tmp_path)) == 2)  # type: ignore[misc]
        parent.send_signal(number)
        _, said = parent.communicate(timeout=60)
        if number != signal.SIGKILL:
            assert parent.returncode == 130
            assert b"stopped with 1 of 1 run left; run the same command again to resume" in said
            assert not processes_of(tmp_path)
        if i:
            wait_until(lambda: not processes_of(tmp_path))
            assert state_of(run) is State.PARTIAL
            assert folder.load("last") is not None
        n_before = len(folder.metrics())
    assert n_attempts(run) == len(signals)
    assert [line["epoch"] for line in folder.metrics()] == list(range(n_before))  # each resumed the one before


def test_best_setting_is_that_of_the_last_epoch_and_statistics_are_right(tmp_path: Path) -> None:
    plan = make_plan("ssvae", ["sparse", "dense"], {"epochs": 2}, {"lr": [0.1, 0.2]}, 2, tmp_path)
    values = {  # epochs of seed 0 and seed 1
        "sparse/lr-0.1": [(-9.0, -4.0), (-9.0, -2.0)],  # the best mean at the end: -3
        "sparse/lr-0.2": [(-1.0, -5.0), (-1.0, -1.5)],  # the best epoch, but a mean of -3.25
        "dense/lr-0.1": [(-9.0, -8.0), (-9.0, -8.0)],
        "dense/lr-0.2": [(-9.0, -1.0)],  # better, but one of its seeds is missing
    }
    for run in plan:
        setting, seed = run.key.rsplit("/seed-", 1)
        if int(seed) < len(values[setting]):
            write_finished(run, values[setting][int(seed)], test={"elbo": -5.0 - int(seed), "elbo_se": 0.5})
    sparse, dense = best_settings(plan)
    assert (sparse.method, dict(sparse.setting), dict(dense.setting)) == ("sparse", {"lr": 0.1}, {"lr": 0.1})
    # Values -4 and -2: mean -3, variance 2, standard error sqrt(2 / 2) = 1.
    assert (sparse.validation["elbo"].mean, sparse.validation["elbo"].error) == (-3.0, 1.0)
    assert list(sparse.test) == ["elbo"]
    assert (sparse.test["elbo"].mean, sparse.test["elbo"].error) == (-5.5, 0.5)
    assert sparse.calls is not None
    assert (sparse.calls.mean, sparse.seconds.mean) == (2.0, 6.0)


def command(out: Path, **changes: Any) -> int:
    words: dict[str, Any] = {"methods": "sparse", "options": TINY | {"epochs": 2}, "grid": [], "seeds": 2, "jobs": 1}
    return sweep_command("ssvae", **(words | changes), out=out)


def test_plan_is_listed_with_times_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, plan_only=True) == 0
    said = capsys.readouterr().out
    assert "steps measured" in said
    assert "sparse/seed-1" in said
    assert not any(tmp_path.iterdir())
    run, _ = tiny_plan(tmp_path, seeds=2)
    write_finished(run, [-2.0])
    estimates = estimate_plan(tiny_plan(tmp_path, seeds=2), tmp_path, 1, print)
    assert [each.seconds for each in estimates] == [3.0, 6.0]  # an epoch took 3 seconds
    assert command(tmp_path, plan_only=True, ray="auto") == 0  # which needs no cluster
    assert "about 9 s of training, 6 s on a cluster that has room for all at once" in capsys.readouterr().out
    assert estimates[1].basis == "1 earlier epoch"
    assert command(tmp_path / "other", plan_only=True, options=TINY | {"batch_size": 10_000}) == 0
    assert "--batch-size must be at most" in capsys.readouterr().out


def test_messages_have_singulars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, plan_only=True, seeds=1) == 0
    said = capsys.readouterr().out
    assert said.startswith("1 run ")
    assert " with 1 job\n" in said
    (run,) = tiny_plan(tmp_path)
    console = Console(record=True, force_terminal=True, width=120)
    with Board(console, 1) as board:
        board.look([Entry(run, Phase.WAITING)])
    assert "1 run: 1 waiting; time left unknown" in console.export_text()


def test_terminal_escapes_of_a_log_do_not_reach_the_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "print('\\x1b]0;title\\x07 red \\x1b[31m'); raise SystemExit(1)"
    monkeypatch.setattr(launch, "command_of", lambda run: [sys.executable, "-S", "-c", script])
    watcher = Quiet()
    ((entry,), _) = sweep(tiny_plan(tmp_path), 1, watcher)
    for text in (entry.reason, *watcher.said, RunFolder(entry.run.folder).failure_file.read_text(encoding="utf-8")):
        assert "red" in text
        assert "\x1b" not in text
        assert "\x07" not in text
    console = Console(record=True, force_terminal=True, width=120)
    Board(console, 1).say("a\x1b[31mb")
    assert "a\\x1b[31mb" in console.export_text()


@pytest.mark.parametrize("value", ["many", "0", ""])
def test_a_wrong_number_of_threads_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    if value:
        with pytest.raises(UsageError, match=f"OMP_NUM_THREADS must be a positive integer, got '{value}'"):
            launch.n_threads_of(2)
    else:
        assert launch.n_threads_of(1) >= 1  # as if it were not set


def test_finished_sweep_is_reported_without_a_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in tiny_plan(tmp_path, seeds=2):
        write_finished(run, [-2.0, -1.0 - run.args.seed])
    assert command(tmp_path, plan_only=False) == 0
    said = capsys.readouterr()
    assert "-1.5 ±0.5" in said.out
    assert said.err.endswith(f"next: sparsum evaluate {tmp_path}; sparsum report {tmp_path}\n")


def test_board_shows_runs(tmp_path: Path) -> None:
    run, other = tiny_plan(tmp_path, seeds=2)
    progress = {"epoch": 2, "done": 0.25, "loss": 3.14159, "calls": 2.5, "seconds_left": 200.0, "time": time.time() + 1}
    entries = [Entry(run, Phase.RUNNING, began_at=time.time(), began=time.monotonic()), Entry(other, Phase.WAITING)]
    RunFolder(run.folder).write_progress(progress)
    console = Console(record=True, force_terminal=True, width=120)
    with Board(console, 1) as board:
        board.look(entries)
    shown = console.export_text()
    for text in ("sparse/seed-0", "25%", "3.142", "2.50", "3 min", "1 waiting, 1 running", "about 7 min left"):
        assert text in shown
    elsewhere = dataclasses.replace(other, experiment="signal-game", key="another")
    assert seconds_left(entries[:1], {run.key: progress}, 8) == 200, "one run is made by one job"
    long = Entry(elsewhere, Phase.FINISHED, n_attempts=1, seconds=9e9)  # the same method of another experiment
    assert seconds_left([*entries, long], {run.key: progress}, 1) == pytest.approx(400, abs=60)
    RunFolder(run.folder).write_progress(progress | {"time": time.time() - 100})  # of an earlier attempt
    console = Console(record=True, force_terminal=True, width=120)
    with Board(console, 1) as board:
        board.look(entries)
    assert "starting" in console.export_text()


def test_one_job_per_core_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With one thread each, or as many as OMP_NUM_THREADS says."""
    monkeypatch.setattr(launch, "n_cores_here", lambda: 8)
    plan = make_plan("signal-game", ["sparse"], {"device": "cpu"}, {}, 1, tmp_path)
    for n_threads, n_jobs in (("", 8), ("2", 4), ("16", 1)):
        monkeypatch.setenv("OMP_NUM_THREADS", n_threads)
        assert default_jobs(plan) == n_jobs
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    joint = make_plan("signal-game", ["sparse"], {"device": "cpu", "devices": 3}, {}, 1, tmp_path)
    assert default_jobs(joint) == 2


def test_runs_of_several_processes_share_the_cores_and_are_no_tasks_of_srun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a task of srun, as on a cluster of Ray, the processes of a run are started by itself."""
    monkeypatch.setattr(launch, "n_cores_here", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in {"PROCID": "0", "LOCALID": "0", "STEP_NUM_TASKS": "3", "STEP_NUM_NODES": "3"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURM_STEP_NODELIST", "127.0.0.1")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    plan = make_plan("ssvae", ["sparse"], TINY | {"epochs": 1, "devices": 2}, {}, 1, tmp_path)
    entries, _ = sweep(plan, 1, Quiet())
    assert [entry.phase for entry in entries] == [Phase.FINISHED], entries[0].reason
    assert RunFolder(plan[0].folder).config().threads == 2
