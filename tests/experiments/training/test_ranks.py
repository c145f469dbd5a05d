"""One model on several devices: two processes do what one does with the whole batch, and none is left waiting."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning_fabric import Fabric
from sparsum_experiments.errors import LostRankError, Stopped, UsageError
from sparsum_experiments.experiment import AbstractExperiment, Step
from sparsum_experiments.registry import make_args, make_experiment
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.signal_game import SignalGame
from sparsum_experiments.training import start
from sparsum_experiments.training.joint_steps import JointSteps, share_of
from sparsum_experiments.training.launch import run_ranks
from sparsum_experiments.training.ranks import Ranks, found_launch
from sparsum_experiments.training.start import Request, run, run_rank
from sparsum_experiments.training.steps import Steps

from tests.experiments.training.test_loop import same_weights, without_times

CPU = torch.device("cpu")
#: Without noise.
CASES = [("signal-game", method) for method in ("sparse", "dense", "entmax15")]
CASES += [("bitvector-vae", method) for method in ("topk", "sparsemap", "topk-bound", "dense")]
GAME = {"steps_per_epoch": 8, "epochs": 2, "batch_size": 9, "device": "cpu"}
NOISY = {"epochs": 2, "warm_epochs": 1, "batch_size": 33, "device": "cpu"}


def experiment_of(name: str, method: str) -> AbstractExperiment:
    small = {"n_symbols": 16, "embedding": 8, "n_filters": 8} if name == "signal-game" else {"bits": 5}
    experiment = make_experiment(name, make_args(name, method, {"device": "cpu", "batch_size": 5} | small), CPU)
    experiment.model.double()
    if isinstance(experiment, SignalGame):
        train = dataclasses.replace(experiment.games.train, x=experiment.games.train.x.double())
        experiment.games = dataclasses.replace(experiment.games, train=train)
    return experiment


def taken(steps: Steps) -> list[tuple[Step, list[torch.Tensor]]]:
    """Three steps and their gradients: of batches of 5 examples, and at last of a single one."""
    found = []
    order = steps.experiment.start_epoch(steps.generator.manual_seed(0))[..., :11]
    for i in range(3):
        step = steps.take(order, i)
        gradients = [parameter.grad for parameter in steps.experiment.model.parameters() if parameter.grad is not None]
        found.append((step, [gradient.clone() for gradient in gradients]))
    return found


def work(ranks: Ranks, path: pathlib.Path) -> None:
    """What each of two processes does for the tests of this module."""
    fabric = Fabric(accelerator="cpu", devices=1)
    found: dict[str, Any] = {"-".join(case): taken(JointSteps(experiment_of(*case), fabric, ranks)) for case in CASES}
    found["errors"] = [error_of(ranks, *each) for each in WRONG]
    found["until"] = error_of_until(ranks)
    with pytest.raises(LostRankError if ranks.is_first else OSError) as failure:
        ranks.together(lambda: None if ranks.is_first else fail())
    found["together"] = str(failure.value)
    run_rank(ranks, request("signal-game", "sparse", GAME, path / "game"))
    run_rank(ranks, request("ssvae", "sfe", NOISY, path / "whole"))
    found["stopped"] = stop_within_an_epoch(ranks, path / "stopped")
    run_rank(ranks, request("ssvae", "sfe", {}, path / "stopped", resume=True))
    (path / f"{ranks.rank}.pickle").write_bytes(pickle.dumps(found))


def request(name: str, method: str, options: dict[str, Any], out: pathlib.Path, *, resume: bool = False) -> Request:
    return Request(name, method, options, out, resume, checkpoint_seconds=60.0)


def fail() -> None:
    raise OSError("no such disk")


#: Options of rank 0, what is different on rank 1, and the message.
WRONG: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("topk", {"lr": 0.1}, {"lr": 0.2}, "the same options, but --lr is 0.1 on rank 0 and 0.2 on rank 1"),
    ("topk", {"batch_size": 1}, {}, "--batch-size 1 cannot be split over 2 processes: it must be at least 2"),
    ("topk", {"score_centre": "batch"}, {}, "--score-centre batch needs the whole batch on one device"),
]


def error_of(ranks: Ranks, method: str, options: dict[str, Any], others: dict[str, Any], _: str) -> str:
    options = {"device": "cpu"} | options | (others if ranks.rank else {})
    with pytest.raises(UsageError) as failure:
        run_rank(ranks, request("bitvector-vae", method, options, pathlib.Path("never")))
    return str(failure.value)


def error_of_until(ranks: Ranks) -> str:
    paused = dataclasses.replace(request("signal-game", "sparse", GAME, pathlib.Path("never")), until=1 + ranks.rank)
    with pytest.raises(UsageError) as failure:
        run_rank(ranks, paused)
    return str(failure.value)


def stop_within_an_epoch(ranks: Ranks, out: pathlib.Path) -> str:
    """In the second epoch, the process that started the ranks is asked to stop; it tells rank 0 alone."""
    take, n_taken = JointSteps.take, list[int]()

    def take_and_stop(self: JointSteps, order: torch.Tensor, i: int) -> Step:
        n_taken.append(i)
        if ranks.rank == 1 and n_taken.count(4) == 2 and i == 4:
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(1.0)  # until rank 0, which waits for this rank, knows it
        return take(self, order, i)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JointSteps, "take", take_and_stop)
        with pytest.raises(Stopped) as failure:
            run_rank(ranks, request("ssvae", "sfe", NOISY, out))
    return str(failure.value)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSUM_CACHE", str(tmp_path / "cache"))


def test_two_processes_do_what_one_does_with_the_whole_batch(tmp_path: pathlib.Path) -> None:
    """In steps and runs, with noise, when they are stopped, and when something is wrong on one of them.

    All in one test: starting processes takes seconds.
    """
    run_ranks(work, 2, tmp_path)
    found = [pickle.loads((tmp_path / f"{rank}.pickle").read_bytes()) for rank in range(2)]
    for case in CASES:
        check_steps(case, [each["-".join(case)] for each in found])
    _, one = run("signal-game", "sparse", GAME, out=tmp_path / "one")
    for line, wanted in zip(RunFolder(tmp_path / "game").metrics(), one, strict=True):
        for part in ("train", "validation", "calls"):
            assert line[part] == pytest.approx(wanted[part], rel=1e-5), part
    assert found[0]["stopped"] == found[1]["stopped"]
    assert "; saved in" in found[0]["stopped"]
    check_equal(tmp_path / "stopped", tmp_path / "whole")
    for rank in range(2):
        for error, (*_, message) in zip(found[rank]["errors"], WRONG, strict=True):
            assert message in error
        assert found[rank]["until"].endswith("the same options, but --until is 1 on rank 0 and 2 on rank 1")
        assert found[rank]["together"] == ("no such disk" if rank else "rank 1 failed: no such disk")
    assert not pathlib.Path("never").exists()


def check_steps(case: tuple[str, str], found: list[list[tuple[Step, list[torch.Tensor]]]]) -> None:
    """Shares of 3 and 2 examples, then of 1 and none: objective, terms, calls and gradients, on both ranks."""
    wanted = taken(Steps(experiment_of(*case), Fabric(accelerator="cpu", devices=1)))
    close: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12, "check_dtype": False}
    for steps in found:
        for (step, gradients), (one, one_gradients) in zip(steps, wanted, strict=True):
            assert torch.equal(step.calls, one.calls)
            torch.testing.assert_close(gradients, one_gradients, **close)
            torch.testing.assert_close([step.objective, *step.terms.values()], [one.objective, *one.terms.values()], **close)


def check_equal(one: pathlib.Path, other: pathlib.Path) -> None:
    """Two runs have the same metrics and weights, bit for bit."""
    assert without_times(RunFolder(one).metrics()) == without_times(RunFolder(other).metrics())
    assert same_weights(one, other)


def test_a_rank_that_is_killed_ends_the_others_and_the_run_can_be_resumed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "killed"
    file = out / "checkpoints" / "last.pt"
    words = ["train", "ssvae", "sfe", "--devices", "2", "--checkpoint-seconds", "0.01", "--out", str(out)]
    words += [word for name, value in NOISY.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "sparsum_experiments.main", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not file.exists():
        time.sleep(0.01)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, "rank 1 was ended by SIGKILL; the last checkpoint is whole" in errors) == (1, True), errors
    with pytest.raises(
        UsageError, match=r"stopped within an epoch of 2 processes.* cannot continue it with 1: .* \(--until [12]\)"
    ):
        run("ssvae", "sfe", {"devices": 1}, out=out, resume=True)
    started = list[int]()
    with monkeypatch.context() as patch:  # as many as before
        patch.setattr(start, "run_ranks", lambda work, n, request: started.append(n))
        run("ssvae", "sfe", {}, out=out, resume=True)
    assert started == [2]
    run_ranks(finish, 2, tmp_path)
    check_equal(out, tmp_path / "whole")


def finish(ranks: Ranks, path: pathlib.Path) -> None:
    run_rank(ranks, request("ssvae", "sfe", {}, path / "killed", resume=True))
    run_rank(ranks, request("ssvae", "sfe", NOISY, path / "whole"))


def test_errors_of_ranks_can_be_raised_by_another_process() -> None:
    for error in (Stopped("saved", pathlib.Path("a")), UsageError("no"), LostRankError("gone")):
        assert vars(pickle.loads(pickle.dumps(error))) == vars(error)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """The process ids of the ranks."""
    found = subprocess.run(["pgrep", "-P", str(process.pid), "-f", "spawn_main"], capture_output=True, text=True, check=True)
    return sorted(map(int, found.stdout.split()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 3, "batch_size": 2}, "--batch-size 2 cannot be split over 3 processes"),
        ({"devices": 2, "nodes": 2}, "--nodes 2 needs a process on each machine: start it by torchrun or srun"),
        ({"devices": 0}, "--devices must be at least 1, got 0"),
        ({"devices": 3, "device": "cuda"}, "--devices 3: torch finds 2 GPUs here; use --device cpu, or fewer"),
    ],
)
def test_processes_that_cannot_be_started_are_refused(
    options: dict[str, Any], message: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=message):
        run("ssvae", "sparse", options, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def started_by_hand(rank: int, words: list[str], **environment: object) -> subprocess.Popen[str]:
    """A process with the environment of one of two tasks of srun on this machine."""
    values: dict[str, object] = {
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": rank,
        "SLURM_STEP_NUM_TASKS": 2,
        "SLURM_STEP_NUM_NODES": 1,
    }
    values |= {"SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_JOB_ID": 1}
    values |= environment
    code = "from sparsum_experiments import main; from sparsum_experiments.training import ranks; "
    code += "ranks.PATIENCE_SECONDS = 0.0; main.main()"
    command = [sys.executable, "-c", code, "train", "signal-game", "sparse", "--device", "cpu", "--devices", "2", *words]
    everything = os.environ | {name: str(value) for name, value in values.items()}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=everything)


def test_a_port_that_is_taken_is_named(tmp_path: pathlib.Path) -> None:
    """Rank 0 opens it: another one does not wait for a process that never comes, since its launcher ends it."""
    with socket.socket() as taken_port:
        taken_port.bind(("127.0.0.1", 0))
        taken_port.listen()
        port = taken_port.getsockname()[1]
        process = started_by_hand(0, ["--out", str(tmp_path / "run")], MASTER_PORT=port)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 2, errors
    assert f"rank 0 cannot open port {port}" in errors
    assert "MASTER_PORT chooses another one" in errors
    assert not (tmp_path / "run").exists()


def test_stopping_processes_of_a_launcher(tmp_path: pathlib.Path) -> None:
    """Ctrl-C to all: once they train, both save and end, and rank 0 alone says how to continue.

    A process that still waits for the others says so, and ends at once.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    words = ["--epochs", "1000", "--checkpoint-seconds", "0", "--out", str(tmp_path / "run")]
    processes = [started_by_hand(rank, words, MASTER_PORT=port) for rank in range(2)]
    while not (tmp_path / "run" / "checkpoints" / "last.pt").exists() and all(each.poll() is None for each in processes):
        time.sleep(0.01)
    for process in processes:
        process.send_signal(signal.SIGINT)
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [130, 130], errors
    assert ["to continue: sparsum train signal-game sparse" in text for text in errors] == [True, False], errors

    alone = started_by_hand(1, ["--out", str(tmp_path / "other")], MASTER_PORT=port, SLURM_LOCALID=0)
    assert alone.stderr is not None
    assert alone.stderr.readline() == f"rank 1 waits at 127.0.0.1:{port} for all 2 processes of the run to start\n"
    alone.send_signal(signal.SIGINT)
    alone.communicate(timeout=60)
    assert alone.returncode == -signal.SIGINT


TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
TORCHRUN |= {"MASTER_ADDR": "host", "MASTER_PORT": "29500"}
SLURM = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_NODES": "2"}
SLURM |= {"SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_JOB_ID": "1234567"}


@pytest.mark.parametrize("environment", [TORCHRUN, SLURM], ids=["torchrun", "srun"])
def test_launchers_are_recognised(
    environment: dict[str, str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found_launch(8) is None
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    launch = found_launch(8)
    assert launch is not None
    assert (launch.ranks, launch.devices, launch.nodes) == (Ranks(5, 8, 1), 4, 2)
    assert launch.address == (None if environment is TORCHRUN else ("gpu07", 19567))
    monkeypatch.setenv("SLURM_STEP_ID", "2")  # two steps of a job may run at the same time
    step = found_launch(8)
    assert step is not None
    assert step.address == (None if environment is TORCHRUN else ("gpu07", 21585))
    with pytest.raises(UsageError, match="--devices is 2, but 8 processes were started on 2 nodes"):
        run("ssvae", "sparse", {"devices": 2}, out=tmp_path / "run")


def test_tasks_of_srun_are_runs_of_their_own_unless_asked_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    assert found_launch(1) is None
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS")  # a script of sbatch
    assert found_launch(8) is None


@given(n=st.integers(0, 100), n_ranks=st.integers(1, 20))
def test_shares_are_parts_of_a_batch_that_differ_by_one_at_most(n: int, n_ranks: int) -> None:
    shares = [range(n)[share_of(n, Ranks(rank, n_ranks))] for rank in range(n_ranks)]
    assert [i for share in shares for i in share] == list(range(n))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
