"""Sparse sums under DistributedDataParallel and fully_shard: two processes do what one does with the joint batch."""

from __future__ import annotations

import json
import pathlib

import pytest
import torch
from torch import distributed

from examples import distributed as example

N_STEPS = 6
#: Shares of 32 and 32 examples, of 3 and 2, and of 1 and none.
SIZES = (64, 5, 1)
WAYS = {"DistributedDataParallel": False, "fully_shard": True}


def work(rank: int, path: pathlib.Path) -> None:
    """Train in each way with each size on one of two ranks, and write the losses."""
    distributed.init_process_group("gloo", init_method=(path / "store").as_uri(), rank=rank, world_size=2)
    found = {
        f"{way}-{size}": example.run(N_STEPS, is_sharded=is_sharded, batch_size=size, dtype=torch.float64)
        for way, is_sharded in WAYS.items()
        for size in SIZES
    }
    (path / f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[float]]]:
    """The losses of all cases on both ranks, of processes that are started once."""
    path = tmp_path_factory.mktemp("distributed")
    torch.multiprocessing.spawn(work, (path,), nprocs=2)
    return [json.loads((path / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_train_as_one_with_the_joint_batch(way: str, size: int, losses: list[dict[str, list[float]]]) -> None:
    """Supports differ between the ranks, also their numbers of examples, and one can have none."""
    wanted = example.train(example.make(dtype=torch.float64), N_STEPS, batch_size=size, dtype=torch.float64)
    for found in losses:
        assert found[f"{way}-{size}"] == pytest.approx(wanted, rel=1e-9)
