"""Exact sums over sparse supports on several devices: DistributedDataParallel, and parameters sharded by fully_shard.

Vectors are made of six hidden bits. An encoder scores the bits, SparseMAP keeps a few codes of each vector, and the loss is
the exact expectation over them. The number of codes differs between ranks at every step. That changes the sizes of what each
rank computes, and nothing that ranks send each other, as long as the model is called once per step on each rank and its loss
is a mean over examples: not over codes, of which ranks have different numbers.

Run it with ``python -m examples.distributed``, which starts two processes, or with
``torchrun --nproc-per-node 2 -m examples.distributed``; add ``--shard`` for fully_shard.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import tempfile

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import sparsum as sp

N_BITS, N_VALUES, BATCH = 6, 16, 64


class Coder(torch.nn.Module):
    """An autoencoder whose code is a bit vector; called with vectors (n, N_VALUES), it returns the loss of each, (n,)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(N_VALUES, 64), torch.nn.ReLU(), torch.nn.Linear(64, N_BITS))
        self.decoder = torch.nn.Sequential(torch.nn.Linear(N_BITS, 64), torch.nn.ReLU(), torch.nn.Linear(64, N_VALUES))

    def forward(self, x: Tensor) -> Tensor:
        """The expected squared error, less a small bonus for entropy."""
        codes = sp.sparsemap(self.encoder(x), sp.Bits(N_BITS))

        def error(z: Tensor, row: Tensor) -> Tensor:
            decoded: Tensor = self.decoder(z.to(x.dtype))
            return (decoded - x[row]).square().mean(-1)

        # One call of the decoder, whatever the support. In chunks, ranks would call it different numbers of times, which
        # DistributedDataParallel allows, and fully_shard, which collects the weights for each call, does not.
        expected: Tensor = codes.expect(error)
        return expected - 0.01 * codes.entropy()


def examples(n: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Vectors of hidden bits: (n, N_VALUES)."""
    mixing = torch.randn(N_BITS, N_VALUES, dtype=dtype, generator=torch.Generator().manual_seed(1))
    bits = torch.randint(2, (n, N_BITS), generator=generator)
    return (2.0 * bits - 1).to(dtype) @ mixing


def train(
    model: torch.nn.Module, n_steps: int, *, rank: int = 0, n_ranks: int = 1, batch_size: int = BATCH, dtype: torch.dtype
) -> list[float]:
    """The loss at each step. All ranks draw the same batch, and each takes its share."""
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(n_steps):
        x = examples(batch_size, dtype, generator).tensor_split(n_ranks)[rank]
        # The gradients of the ranks are averaged: a share counts by its part of the batch.
        loss = model(x).sum() * (n_ranks / batch_size)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach() / n_ranks)
    total = torch.stack(losses)
    if n_ranks > 1:
        distributed.all_reduce(total)
    return total.tolist()


def make(*, dtype: torch.dtype) -> Coder:
    """The same model on all ranks."""
    torch.manual_seed(0)
    return Coder().to(dtype)


def run(n_steps: int, *, is_sharded: bool, batch_size: int = BATCH, dtype: torch.dtype = torch.float32) -> list[float]:
    """Train on one rank of a process group that exists; returns the losses of the joint batches."""
    model: torch.nn.Module = make(dtype=dtype)
    rank, n_ranks = distributed.get_rank(), distributed.get_world_size()
    if is_sharded:
        mesh = init_device_mesh("cpu", (n_ranks,))
        for part in model.children():
            fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    return train(model, n_steps, rank=rank, n_ranks=n_ranks, batch_size=batch_size, dtype=dtype)


def process(rank: int, n_ranks: int, store: str, n_steps: int, is_sharded: bool) -> None:
    """One of the processes that `main` starts."""
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=n_ranks)
    losses = run(n_steps, is_sharded=is_sharded)
    if rank == 0:
        print(f"loss at first {losses[0]:.3f}, after {n_steps} steps {losses[-1]:.3f}")
    distributed.destroy_process_group()


def main() -> None:
    """Join the processes of torchrun, or start two."""
    parser = argparse.ArgumentParser(description="Sparse sums on several devices.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--shard", action="store_true", help="shard the parameters by fully_shard")
    options = parser.parse_args()
    if "RANK" in os.environ:
        process(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", options.steps, options.shard)
        return
    with tempfile.TemporaryDirectory() as folder:
        store = (pathlib.Path(folder) / "store").as_uri()
        spawn(process, (2, store, options.steps, options.shard), nprocs=2)


if __name__ == "__main__":
    main()
