"""Sweeps on a real Ray: two nodes on this machine, workers and nodes that are killed, and what cannot be reached."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sparsum_experiments.errors import UsageError
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.sweep import Phase, PlannedRun, cluster, make_plan, sweep, sweep_command
from sparsum_experiments.sweep.launch import Entry
from sparsum_experiments.sweep.plan import State, state_of

from tests.experiments.sweep.test_sweep import Quiet, n_attempts, processes_of, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]  # Ray warns of its own plans

N_EPOCHS = 12
# What a machine measures of itself, which is never the same twice.
OF_THE_MACHINE = {"seconds", "validation_seconds", "peak_memory_mb"}


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("SPARSUM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A cluster of Ray with two nodes of one core; the head has none, so that either can be lost."""
    from ray.cluster_utils import Cluster as Nodes

    found = Nodes(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        found.add_node(num_cpus=1)
    yield found
    found.shutdown()


def eight_runs(out: Path) -> list[PlannedRun]:
    options = {"batch_size": 1000, "warm_epochs": 0, "device": "cpu", "epochs": N_EPOCHS}
    return make_plan("ssvae", ["sparse", "dense"], options, {"lr": [1e-3, 2e-3]}, 2, out)


def measured(run: PlannedRun) -> list[dict[str, Any]]:
    lines = RunFolder(run.folder).metrics()
    return [{name: value for name, value in line.items() if name not in OF_THE_MACHINE} for line in lines]


def parent_of(pid: int) -> int:
    text = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return int(text.rsplit(")", 1)[1].split()[1])


def descendants(pid: int) -> list[int]:
    """All processes below one, the deepest last."""
    children: dict[int, list[int]] = {}
    for file in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            children.setdefault(parent_of(int(file.parent.name)), []).append(int(file.parent.name))
        except OSError:
            continue  # it has ended meanwhile
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]


class Killer(Quiet):
    """Kills the worker of the first run that is seen in the middle, and then the whole node of a later one."""

    def __init__(self, nodes: Any) -> None:
        super().__init__(self.kill)
        self.nodes, self.worker_of, self.node_of, self.lost_address = nodes, "", "", ""

    def kill(self, entries: Sequence[Entry]) -> None:
        if self.node_of:
            return
        for entry in entries:
            key, n_lines = entry.run.key, len(RunFolder(entry.run.folder).metrics())
            pids = processes_of(entry.run.folder)
            if entry.phase is not Phase.RUNNING or not pids or not 0 < n_lines < N_EPOCHS - 2 or key == self.worker_of:
                continue
            if not self.worker_of:
                os.kill(parent_of(pids[0]), signal.SIGKILL)
                self.worker_of = key
            else:
                self.kill_node(pids[0])
                self.node_of = key
            return

    def kill_node(self, pid: int) -> None:
        """Kill everything on the node on which a process is, as a power failure would."""
        for node in list(self.nodes.worker_nodes):
            raylet = node.all_processes["raylet"][0].process.pid
            if pid in (below := descendants(raylet)):
                for each in (raylet, *below):
                    os.kill(each, signal.SIGKILL)
                self.lost_address = node.node_id[:8]
                self.nodes.worker_nodes.discard(node)
                return
        pytest.fail("no node has the run")


@pytest.mark.skipif(not pathlib.Path("/proc").exists(), reason="looks for processes as Linux lists them")
def test_runs_survive_a_lost_worker_and_a_lost_node_to_the_same_bits(tmp_path: Path, nodes: Any) -> None:
    """Eight runs end once each, with the metrics of ``--jobs 1``, though a worker and then a node are killed."""
    watcher, plan = Killer(nodes), eight_runs(tmp_path / "ray")
    with cluster.Cluster(nodes.address, 1, watcher) as connected:
        assert connected.n_at_a_time(plan) == 2
        entries, is_stopped = connected.sweep(plan, watcher)
        again, _ = connected.sweep(plan, Quiet(lambda _: pytest.fail("nothing was to be done")))
    assert not is_stopped
    assert watcher.worker_of
    assert watcher.node_of
    assert [entry.phase for entry in [*entries, *again]] == [Phase.FINISHED] * 16
    assert [entry.n_attempts for entry in entries] == [1] * 8, "Ray starts lost tasks again, and not the sweep"
    killed = {watcher.worker_of, watcher.node_of}
    for run in plan:
        assert sum(text.startswith(f"{run.key} finished") for text in watcher.said) == 1
        assert n_attempts(run) >= 1 + (run.key in killed)
    assert any(f"id {watcher.lost_address}) was lost" in text for text in watcher.said)
    alone = eight_runs(tmp_path / "jobs")
    sweep(alone, 1, Quiet())
    for run, other in zip(plan, alone, strict=True):
        assert [line["epoch"] for line in measured(run)] == list(range(N_EPOCHS))
        assert json.dumps(measured(run)) == json.dumps(measured(other))


COMMAND = """
import pathlib, sys
from sparsum_experiments.sweep import sweep_command
options = {"batch_size": 1000, "warm_epochs": 0, "device": "cpu", "epochs": 100_000}
sys.exit(sweep_command("ssvae", methods="sparse", options=options, grid=[], seeds=2, out=pathlib.Path(sys.argv[1]), jobs=1,
                       plan_only=False, ray="local"))
"""


@pytest.mark.skipif(not pathlib.Path("/proc").exists(), reason="looks for processes as Linux lists them")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_sweep_leaves_runs_to_resume_and_no_process(tmp_path: Path, number: signal.Signals) -> None:
    options = {"batch_size": 1000, "warm_epochs": 0, "device": "cpu", "epochs": 100_000}
    plan = make_plan("ssvae", ["sparse"], options, {}, 2, tmp_path / "out")
    words = [sys.executable, "-c", COMMAND, str(tmp_path / "out")]
    parent = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0)
    wait_until(lambda: any(RunFolder(run.folder).metrics() for run in plan))
    os.killpg(parent.pid, number)  # as a terminal does
    _, said = parent.communicate(timeout=90)
    if number != signal.SIGKILL:
        assert parent.returncode == 130
        assert b"stopped with 2 of 2 runs left; run the same command again to resume" in said
    wait_until(lambda: not processes_of(tmp_path))
    begun = [run for run in plan if RunFolder(run.folder).metrics()]
    assert all(state_of(run) is State.PARTIAL for run in begun)
    if number != signal.SIGKILL:  # Ray kills what a killed driver leaves; then up to a minute is lost
        assert all(RunFolder(run.folder).load("last") is not None for run in begun)


def test_a_failing_run_is_tried_twice_and_a_folder_that_is_not_shared_is_named(
    tmp_path: Path, nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"batch_size": 1000, "warm_epochs": 0, "device": "cpu", "epochs": 3, "lr": 1e30}
    watcher, (run,) = Quiet(), make_plan("ssvae", ["sparse"], options, {}, 1, Path("out"))
    with cluster.Cluster(nodes.address, 1, watcher) as connected:
        (entry,), _ = connected.sweep([run], watcher)
        assert (entry.phase, entry.n_attempts) == (Phase.FAILED, 2)
        assert "NaN" in entry.reason
        assert n_attempts(run) == 2
        assert state_of(run) is State.FAILED
        monkeypatch.setattr(os, "getcwd", lambda: str(tmp_path / "elsewhere"))  # as if it were on this machine alone
        (entry,), _ = connected.sweep([run], watcher)
        assert "elsewhere: it must be on a file system that all nodes share" in entry.reason


def test_a_search_is_handed_to_a_ray_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"batch_size": 1000, "warm_epochs": 0, "device": "cpu", "epochs": 3}
    words: dict[str, Any] = {"methods": "sparse", "options": options, "seeds": 1, "jobs": 1, "plan_only": False}
    assert sweep_command("ssvae", **words, grid=["lr=1e-4..1e-2"], search=3, out=tmp_path / "out", ray="local") == 0
    said = capsys.readouterr()
    assert "search: 1 of 3 settings of sparse continue after epoch 1" in said.err
    assert said.out.count("1 of 3   elbo") == 2
    assert said.out.count("finished") == 1
    assert len(list((tmp_path / "out").rglob("stopped.json"))) == 2


def test_an_address_where_something_else_answers_is_an_error_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "START_SECONDS", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"--ray {address}: no Ray answers"), cluster.Cluster(address, 1, Quiet()):
            pass
