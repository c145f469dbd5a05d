"""What a sweep asks of Ray, and its errors, as far as no Ray is needed; `test_ray` has the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from sparsum_experiments.errors import UsageError
from sparsum_experiments.sweep import make_plan
from sparsum_experiments.sweep.cluster import LOCAL, Cluster, Surroundings, check_address, gpu_share, make_run

from tests.experiments.sweep.test_sweep import Quiet


def test_shares_of_a_gpu_fit_into_it_as_ray_counts() -> None:
    """Ray counts ten-thousandths: as many runs fit as there are jobs, and no more than these."""
    for jobs in range(1, 100):
        assert 10_000 // round(gpu_share(jobs) * 10_000) == jobs


@pytest.mark.parametrize(
    ("device", "devices", "resources", "threads", "n"),
    [
        ("cpu", 1, {"CPU": 8.0, "GPU": 2.0}, 1, 8),
        ("cpu", 1, {"CPU": 8.0}, 3, 2),
        ("cpu", 3, {"CPU": 8.0}, 1, 2),
        ("auto", 1, {"CPU": 8.0}, 1, 8),
        ("auto", 1, {"CPU": 8.0, "GPU": 2.0}, 1, 6),
        ("auto", 2, {"CPU": 8.0, "GPU": 4.0}, 1, 2),
        ("cuda", 1, {"CPU": 4.0, "GPU": 2.0}, 1, 4),
        ("cuda", 1, {"CPU": 4.0}, 1, 0),
        ("cpu", 1, {}, 1, 0),
    ],
)
def test_runs_at_a_time_are_what_cores_and_gpus_allow(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    devices: int,
    resources: dict[str, float],
    threads: int,
    n: int,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    cluster = Cluster(LOCAL, 3, Quiet())
    cluster.ray = SimpleNamespace(cluster_resources=lambda: resources)
    assert cluster.n_at_a_time(make_plan("ssvae", ["sparse"], {"device": device, "devices": devices}, {}, 1, tmp_path)) == n


def test_a_run_has_one_thread_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert Cluster(LOCAL, 1, Quiet()).n_threads == 1


def test_ray_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="--ray needs Ray: pip install"), Cluster(LOCAL, 1, Quiet()):
        pass


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "--ray 127.0.0.1:1: nothing answers there"),
        ("no.such.host.invalid:6379", "nothing answers there"),
        ("ray://10.0.0.1:10001", "must be auto or HOST:PORT.*for ray:// run the command on a node"),
        ("10.0.0.1", "must be auto or HOST:PORT"),
        ("10.0.0.1:port", "must be auto or HOST:PORT"),
        ("10.0.0.1:70000", "must be auto or HOST:PORT"),
        ("", "must be auto or HOST:PORT"),
    ],
)
def test_wrong_and_unreachable_addresses_are_errors_at_once(address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_address(address)


def test_a_node_without_the_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (run,) = make_plan("ssvae", ["sparse"], {}, {}, 1, Path("out"))
    with pytest.raises(
        FileNotFoundError, match=r"does not have the folder .*out/sparse/seed-0: it must be on a file system"
    ):
        make_run(run, Surroundings(str(tmp_path), 1, {}), 1.0)
    with pytest.raises(FileNotFoundError, match=r"does not have the folder .*elsewhere"):
        make_run(run, Surroundings(str(tmp_path / "elsewhere"), 1, {}), 1.0)
