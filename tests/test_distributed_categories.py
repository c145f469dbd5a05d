"""Mappings over categories that are sharded across processes, against one process: real gloo groups of 2 and 4."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pathlib
import re
import socket
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

import sparsum as sp
from tests.simplex.test_devices import by_fork

ALPHAS = (2.0, 1.5, 1.3)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


def _work(rank: int, n_processes: int, port: int, body: Callable[[int], Any], found: Any) -> None:
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=n_processes, timeout=timedelta(seconds=60))
    try:
        found[rank] = body(rank)
    finally:
        dist.destroy_process_group()


def in_processes(n_processes: int, body: Callable[[int], Any]) -> list[Any]:
    """What each process of a group returns."""
    with multiprocessing.get_context("fork").Manager() as manager:
        found = manager.dict()
        start_processes(_work, (n_processes, free_port(), body, found), n_processes, start_method="fork")
        return [found[rank] for rank in range(n_processes)]


def scores() -> Tensor:
    """Random, tied, with -inf, with +inf, of one category alone: (5, 23)."""
    x = torch.randn(5, 23, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[1] = (2 * x[1]).round() / 2
    x[2, ::2] = -torch.inf
    x[3, 7] = x[3, 20] = torch.inf
    x[4, 11] = 50.0
    return x


def shards(n_processes: int) -> list[slice]:
    """Shards of different sizes, one of them empty in a group of 4."""
    bounds = {2: [0, 5, 23], 4: [0, 9, 9, 20, 23]}[n_processes]
    return [slice(*pair) for pair in itertools.pairwise(bounds)]


def _gradients_and_values(
    x: Tensor, mapping: Callable[[Tensor], Tensor], reduce: Callable[[Tensor], Tensor], w: Tensor
) -> Any:
    local = x.clone().requires_grad_()
    probs = mapping(local)
    loss = reduce((probs * w).sum(-1)).square().sum()
    loss.backward()
    return probs.detach().numpy(), local.grad.numpy() if local.grad is not None else None


@by_fork
@pytest.mark.parametrize("n_processes", [2, 4])
def test_probabilities_and_gradients(n_processes: int) -> None:
    """Of all rows and alphas at once: those of one process, to rounding."""
    x = scores()
    weight = torch.linspace(-1, 2, x.shape[1], dtype=torch.float64)

    def body(rank: int) -> Any:
        mine = shards(n_processes)[rank]
        return [
            _gradients_and_values(
                x[:, mine],
                partial(sp.distributed.entmax, alpha=alpha),
                sp.distributed.all_reduce_sum,
                weight[mine],
            )
            for alpha in ALPHAS
        ]

    found = in_processes(n_processes, body)
    for index, alpha in enumerate(ALPHAS):
        wanted = _gradients_and_values(x, partial(sp.entmax, alpha=alpha), torch.clone, weight)
        for part in (0, 1):
            joined = torch.cat([torch.from_numpy(result[index][part]) for result in found], -1)
            torch.testing.assert_close(joined, torch.from_numpy(wanted[part]), atol=1e-12, rtol=0)


@by_fork
def test_distributions_and_what_is_wrong() -> None:
    """Expected losses, entropies and their gradients; rows without a distribution; processes with different batches."""
    x = scores()[:3]
    table = torch.randn(23, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def loss(z: Tensor, row: Tensor) -> Tensor:
        return table[z] * (row + 1)

    def body(rank: int) -> Any:
        mine = shards(2)[rank]
        local = x[:, mine].clone().requires_grad_()
        q = sp.distributed.sparsemap(local)
        value = q.expect(loss) - 0.1 * q.entropy()
        value.sum().backward()
        assert local.grad is not None
        messages = []
        bad = x[:, mine].clone()
        bad[1] = -torch.inf
        if rank == 1:
            bad[2, 0] = torch.nan
        probs = sp.distributed.sparsemax(bad)
        for function, argument in ((sp.distributed.sparsemap, bad), (sp.distributed.sparsemax, x[: rank + 1, mine])):
            with pytest.raises(ValueError) as caught:  # noqa: PT011 (the messages are compared below)
                function(argument)
            messages.append(str(caught.value))
        return value.detach().numpy(), local.grad.numpy(), q.atoms.numpy(), q.probs.detach().numpy(), probs.numpy(), messages

    found = in_processes(2, body)
    scores_of_one = x.clone().requires_grad_()
    q = sp.sparsemap(scores_of_one, sp.OneOf(23))
    wanted = q.expect(loss) - 0.1 * q.entropy()
    wanted.sum().backward()
    for value, *_ in found:
        torch.testing.assert_close(torch.from_numpy(value), wanted.detach(), atol=1e-12, rtol=0)
    assert scores_of_one.grad is not None
    joined = torch.cat([torch.from_numpy(result[1]) for result in found], -1)
    torch.testing.assert_close(joined, scores_of_one.grad, atol=1e-12, rtol=0)
    assert sorted(atom for result in found for atom in result[2].tolist()) == sorted(q.atoms.tolist())
    assert sum(result[3].sum() for result in found) == pytest.approx(3, abs=1e-12)
    for result in found:
        probs, messages = torch.from_numpy(result[4]), result[5]
        assert not probs[0].isnan().any()
        assert not probs[1].any()  # fully masked in both processes
        assert probs[2].isnan().all()  # a NaN in one of them
        assert "not so in 2 row(s): [1, 2]" in messages[0]
        assert "rows here and between 1 and 2 in the group" in messages[1]


def test_processes_that_do_not_agree() -> None:
    """Another dtype, alpha or group in one process is an error in all of them, and none waits."""
    x = torch.linspace(-1, 1, 6).view(2, 3)
    cases: list[Callable[[int], Any]] = [
        lambda rank: sp.distributed.sparsemap(x.double() if rank else x),
        lambda rank: sp.distributed.sparsemax(x.half() if rank else x.bfloat16()),
        lambda rank: sp.distributed.entmax(x, 1.5 if rank else 2.0),
    ]

    def body(rank: int) -> list[str]:
        messages = []
        for case in cases:
            with pytest.raises(ValueError) as caught:  # noqa: PT011 (the messages are compared below)
                case(rank)
            messages.append(str(caught.value))
        group = dist.new_group([0])
        if rank == 0:
            torch.testing.assert_close(sp.distributed.sparsemax(x, group), sp.sparsemax(x))
        else:
            with pytest.raises(ValueError, match="group must contain this process"):
                sp.distributed.sparsemax(x, group)
        return messages

    found = in_processes(2, body)
    for messages, dtypes, alpha in zip(found, (("float32", "bfloat16"), ("float64", "float16")), (2.0, 1.5), strict=True):
        for message, dtype in zip(messages[:2], dtypes, strict=True):
            assert f"the same dtype in all processes of the group, got torch.{dtype} here" in message
        assert f"got {alpha} here and between 1.5 and 2.0 in the group" in messages[2]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Half precision: probabilities and expected losses are those of one process, with an empty shard and an empty batch."""
    x = scores()[[0, 1, 4]].to(dtype)
    table = torch.linspace(-1, 2, x.shape[1])

    def body(rank: int) -> Any:
        mine = shards(4)[rank]
        nothing = sp.distributed.sparsemax(x[:0, mine])
        assert nothing.shape == x[:0, mine].shape
        expected = sp.distributed.sparsemap(x[:, mine]).expect(lambda z: table[z])
        assert not len(sp.distributed.sparsemap(x[:0, mine]).expect(lambda z: table[z]))
        return sp.distributed.sparsemax(x[:, mine]).float().numpy(), expected.float().numpy()

    found = in_processes(4, body)
    wanted = sp.sparsemax(x)
    joined = torch.cat([torch.from_numpy(probs) for probs, _ in found], -1)
    torch.testing.assert_close(joined, wanted.float(), atol=0, rtol=0)
    for _, expected in found:
        torch.testing.assert_close(torch.from_numpy(expected), wanted.float() @ table, atol=2e-2, rtol=0)


def test_long_rows() -> None:
    """Long enough to be read in blocks, in one process regular and in the other with infinities."""
    x = torch.randn(3, 40_000, generator=torch.Generator().manual_seed(0))
    x[1, :7] = -torch.inf
    x[2, 5] = torch.inf

    def body(rank: int) -> Any:
        return [sp.distributed.entmax(x[:, 20_000 * rank : 20_000 * (rank + 1)], alpha).numpy() for alpha in ALPHAS]

    found = in_processes(2, body)
    for index, alpha in enumerate(ALPHAS):
        joined = torch.cat([torch.from_numpy(result[index]) for result in found], -1)
        torch.testing.assert_close(joined, sp.entmax(x, alpha), atol=5e-7, rtol=0)


@by_fork
def test_the_example_of_the_documentation() -> None:
    """In two processes: the objective is the same in both, the gradients are those of one process with all categories."""
    text = (pathlib.Path(__file__).parents[1] / "docs" / "distributed.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    start = 'torch.distributed.init_process_group("gloo")'
    assert start in block

    def body(rank: int) -> Any:
        names: dict[str, Any] = {}
        exec(compile(block.replace(start, ""), "distributed.md", "exec"), names)
        scorer, table = names["scorer"], names["table"]
        weights = [scorer.weight, scorer.bias, table]
        return names["objective"].detach().numpy(), [(each.detach().numpy(), each.grad.numpy()) for each in weights]

    found = in_processes(2, body)
    w, b, table = (torch.cat([torch.from_numpy(weights[i][0]) for _, weights in found]).requires_grad_() for i in range(3))
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    q = sp.sparsemap(x @ w.T + b, sp.OneOf(len(w)))
    objective = q.expect(lambda z, row: (table[z] - x[row]).square().mean(-1)) - 0.1 * q.entropy()
    objective.mean().backward()
    for value, _ in found:
        torch.testing.assert_close(torch.from_numpy(value), objective.detach(), atol=1e-5, rtol=0)
    for i, weight in enumerate((w, b, table)):
        joined = torch.cat([torch.from_numpy(weights[i][1]) for _, weights in found])
        torch.testing.assert_close(joined, weight.grad, atol=1e-5, rtol=0)


def test_arguments() -> None:
    with pytest.raises(RuntimeError, match=r"call torch\.distributed\.init_process_group first"):
        sp.distributed.sparsemax(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="alpha must be above 1 and at most 2 for sharded scores, got 3"):
        sp.distributed.entmax(torch.zeros(2, 3), 3)
    with pytest.raises(TypeError, match="local_scores must have a floating-point dtype"):
        sp.distributed.sparsemax(torch.zeros(2, 3, dtype=torch.int64))
