"""A VAE with 200 bits in plain user code: steps as they are, beside those that `sparsum.capture` made.

``python -m benchmarks.gpu.captured --steps 100000`` looks at the memory of a long training whose supports grow and shrink.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import sparsum as sp
from benchmarks.gpu.table import Line

_N_BITS, _N_PIXELS, _BATCH = 200, 784, 100
_WARM, _TIMED = 300, 200

Step = Callable[[Tensor], Tensor]


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLU in between."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make_step(method: str, *, lr: float = 1e-3) -> Step:
    """A new model's training step."""
    torch.manual_seed(0)
    encoder = perceptron(_N_PIXELS, 200, 200, _N_BITS).cuda()
    decoder = perceptron(_N_BITS, 200, 200, _N_PIXELS).cuda()
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=lr, fused=True)
    bits = sp.Bits(_N_BITS)

    def negative_elbo(x: Tensor, estimator: sp.estimators.AbstractEstimator) -> Tensor:
        def loss(z: Tensor, row: Tensor) -> Tensor:
            return nn.functional.binary_cross_entropy_with_logits(decoder(z), x[row], reduction="none").sum(-1)

        estimate = estimator(encoder(x), bits, loss)
        return (estimate.surrogate - estimate.distribution.entropy()).mean()

    def negative_bound(x: Tensor) -> Tensor:
        def log_joint(z: Tensor, row: Tensor) -> Tensor:
            return -nn.functional.binary_cross_entropy_with_logits(decoder(z), x[row], reduction="none").sum(-1)

        return -sp.estimators.distinct_bound(encoder(x), bits, log_joint, k=30).surrogate.mean()

    objectives: dict[str, Callable[[Tensor], Tensor]] = {
        "distinct_bound, k = 30": negative_bound,
        "GumbelSoftmax": lambda x: negative_elbo(x, gumbel),
        "SparseMAP": lambda x: negative_elbo(x, sparsemap),
    }
    gumbel, sparsemap = sp.estimators.GumbelSoftmax(0.5), sp.estimators.SparseMAP()
    objective_of = objectives[method]

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        objective = objective_of(x)
        objective.backward()
        optimizer.step()
        return objective.detach()

    return step


#: The target in milliseconds of each method.
TARGETS = {"distinct_bound, k = 30": 1.3, "GumbelSoftmax": 1.0, "SparseMAP": 1.0}


def images() -> Tensor:
    """Binary images with some structure: random sums of few patterns."""
    generator = torch.Generator("cuda").manual_seed(0)
    patterns = torch.rand(20, _N_PIXELS, device="cuda", generator=generator) < 0.1
    chosen = torch.rand(6000, 20, device="cuda", generator=generator) < 0.2
    return ((chosen.float() @ patterns.float()) > 0).float()


def milliseconds(step: Step, x: Tensor, n: int) -> list[float]:
    """The times of n steps, each waited for."""
    times = []
    for i in range(n):
        batch = x[i * _BATCH % len(x) :][:_BATCH]
        begin = time.perf_counter()
        step(batch)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return times


def lines() -> Iterator[Line]:
    """The median time of a step, early and later, as it is and captured."""
    x = images()
    for method, wanted in TARGETS.items():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            plain, captured = make_step(method), sp.capture(make_step(method))
            slow = statistics.median(milliseconds(plain, x, _TIMED)[_TIMED // 2 :])
            early = statistics.median(milliseconds(captured, x, _WARM)[_WARM // 3 :])
            late = statistics.median(milliseconds(captured, x, _TIMED))
            in_a_row = _in_a_row(captured, x)
            kernels, floor = _kernels(lambda step=captured: step(x[:_BATCH]))  # type: ignore[misc]
        yield Line(
            f"{method}, {_N_PIXELS}-200-200-{_N_BITS} and back, batch {_BATCH}: eager, captured early / late",
            f"{slow:.2f} ms, {early:.2f} / {late:.2f} ms; {in_a_row:.2f} not waited for",
            f"< {wanted} ms",
            early < wanted and late < wanted,
            f"{kernels} kernels that run for {floor:.2f} ms, {captured.n_captures} captures",
            "starts of dependent kernels, about 1 us each, and one reading of a size"
            + "".join(f"; {each.message}" for each in said if "captured" in str(each.message)),
        )


def _in_a_row(step: Step, x: Tensor) -> float:
    """Milliseconds of a step when steps are queued one after the other."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for i in range(_TIMED):
        step(x[i * _BATCH % len(x) :][:_BATCH])
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin) / _TIMED


def _kernels(run: Callable[[], object]) -> tuple[int, float]:
    """The number of kernels of a step, and their total milliseconds."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
        torch.cuda.synchronize()
    events = [event for event in profiled.events() if event.device_type == DeviceType.CUDA]
    return len(events), sum(event.device_time for event in events) / 1e3


def watch_memory(n_steps: int) -> None:
    """Print the memory of a training whose supports grow and shrink, ten times."""
    x, step = images(), sp.capture(make_step("SparseMAP", lr=1e-4))
    begin = time.perf_counter()
    for i in range(n_steps):
        # Darker images have smaller scores, and so larger supports.
        step(x[i * _BATCH % len(x) :][:_BATCH] * (1 + 10 * ((i // 500) % 20) / 20))
        if (i + 1) % max(1, n_steps // 10) == 0:
            torch.cuda.synchronize()
            reserved, allocated = torch.cuda.memory_reserved() / 2**20, torch.cuda.memory_allocated() / 2**20
            free, total = torch.cuda.mem_get_info()
            print(
                f"{i + 1} steps, {time.perf_counter() - begin:.0f} s: {allocated:.0f} MB in use, "
                f"{reserved:.0f} MB reserved, {(total - free) / 2**20:.0f} MB of the device, {step.n_captures} captures",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m benchmarks.gpu.captured", description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="how many steps to take")
    watch_memory(parser.parse_args().steps)
