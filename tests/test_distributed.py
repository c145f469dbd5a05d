"""Sparse sums and layers on two processes, which do what one does with the joint batch."""

from __future__ import annotations

import json
import os
import pathlib

import pytest
import torch
from torch import Tensor, distributed
from torch.multiprocessing.spawn import spawn

import sparsum as sp
from examples import distributed as example

N_STEPS = 6
#: Shares of 32 and 32 examples, of 3 and 2, and of 1 and none.
SIZES = (64, 5, 1)
WAYS = {"DistributedDataParallel": False, "fully_shard": True}

#: The numbers of rows of both processes.
SHARES = ((3, 2), (1, 1), (4, 0))


def normalized(shares: list[slice]) -> list[dict[str, Tensor]]:
    """Normalize shares of a batch of 8, each after the other, synchronized with other processes."""
    norm = sp.nn.ScoreNorm(3, sync=True).double()
    found = []
    for seed, share in enumerate(shares):
        generator = torch.Generator().manual_seed(seed)
        scores, weight = torch.randn(2, 8, 3, generator=generator, dtype=torch.float64)
        scores[2, 1] = -torch.inf
        mine = scores[share].requires_grad_()
        result = norm(mine)
        (weight[share] * result.masked_fill(result == -torch.inf, 0.0).square()).sum().backward()
        assert mine.grad is not None
        buffers = {name: buffer.clone() for name, buffer in norm.named_buffers()}
        found.append({"result": result.detach(), "gradient": mine.grad, **buffers})
    return found


def work(rank: int, path: pathlib.Path) -> None:
    """Train in each way with each size on one of two ranks, and write the losses."""
    distributed.init_process_group("gloo", init_method=(path / "store").as_uri(), rank=rank, world_size=2)
    found = {
        f"{way}-{size}": example.run(N_STEPS, is_sharded=is_sharded, batch_size=size, dtype=torch.float64)
        for way, is_sharded in WAYS.items()
        for size in SIZES
    }
    (path / f"{rank}.json").write_text(json.dumps(found))
    places = [slice(0, first) if rank == 0 else slice(first, first + second) for first, second in SHARES]
    torch.save(normalized(places), path / f"{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()
    # Threads of gloo and autograd that ask for the interpreter while it is finalized abort the process, once in hundreds of
    # runs; skip the finalization. An error above ends the process in the usual way.
    os._exit(0)


def test_two_processes_train_as_one_with_the_joint_batch(tmp_path: pathlib.Path) -> None:
    """Supports differ between the ranks, also their numbers of examples, and one can have none.

    All in one test: starting processes takes seconds.
    """
    spawn(work, (tmp_path,), nprocs=2)
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for size in SIZES:
            wanted = example.train(example.make(dtype=torch.float64), N_STEPS, batch_size=size, dtype=torch.float64)
            for way in WAYS:
                assert found[f"{way}-{size}"] == pytest.approx(wanted, rel=1e-9), (way, size)
    joint = normalized([slice(0, sum(sizes)) for sizes in SHARES])
    both = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for wanted, *shares in zip(joint, *both, strict=True):
        for name, value in wanted.items():
            if name in {"result", "gradient"}:
                torch.testing.assert_close(torch.cat([share[name] for share in shares]), value)
            else:
                assert all(torch.allclose(share[name], value) for share in shares), name
