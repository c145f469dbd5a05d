"""Memory over many training steps, with supports that grow from one atom to all and back.

``python -m benchmarks.memory --steps 200000`` prints the resident memory of the process, the number of tensors that are
alive, and on a GPU the memory that torch has allocated: at the start, after a warm-up, and at the end of each tenth of the
steps. A leak is a number that keeps growing. Steps with structures whose search is slow come once in `SELDOM` steps. With
``--captured``, `sparsum.capture` takes the steps, which on a CPU is the eager step, and those with a slow search, which
stay eager on a GPU, are left out.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import sparsum as sp

N, BATCH, INPUTS = 16, 4, 8
#: The steps from one atom per row to all of them and back.
CYCLE = 400
#: Of so many steps, one has a structure whose search is slow.
SELDOM = 100
_LARGE, _SMALL = 50.0, 1e-3

OFTEN: list[sp.AbstractStructure] = [sp.OneOf(N), sp.Bits(N), sp.Subset(N, 4), sp.Groups(4, 4)]
SLOW: list[sp.AbstractStructure] = [sp.Sequence(4, 4), sp.Tree(4), sp.Matching(4), sp.Permutation(N), sp.Alignment(2, 8)]


@dataclass(frozen=True)
class Usage:
    """What is in use after some steps."""

    n_steps: int
    resident: int  # bytes
    n_tensors: int
    allocated: int  # bytes on the GPU
    fewest: float  # the smallest mean number of atoms per row of a step since the usage before
    most: float

    def __str__(self) -> str:
        sizes = f"{self.resident / 2**20:9.1f} {self.n_tensors:8} {self.allocated / 2**20:9.1f}"
        return f"{self.n_steps:8} {sizes} {self.fewest:7.1f} {self.most:7.1f}"


def resident() -> int:
    """The memory of this process, in bytes; where it cannot be read, the most that it has been."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def n_tensors() -> int:
    """The number of tensors that Python holds."""
    gc.collect()
    return sum(issubclass(type(each), Tensor) for each in gc.get_objects())


class Training:
    """A small model, trained by the sums of several structures and by estimators in turn."""

    def __init__(self, device: str = "cpu", *, is_captured: bool = False) -> None:
        torch.manual_seed(0)
        self.device, self.generator = device, torch.Generator(device).manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(INPUTS, N), sp.nn.ScoreNorm(N)).to(device)
        self.decoder = nn.Linear(N, INPUTS).to(device)
        self.estimators = [
            each.to(device) for each in (sp.estimators.SparseMAP(), sp.estimators.ScoreFunction(), sp.estimators.TopK(4))
        ]
        parameters = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.optimizer = torch.optim.Adam(parameters, 1e-3, capturable=device == "cuda")
        self.n_steps, self.fewest, self.most = 0, math.inf, 0.0
        self.has_slow = not is_captured
        # Each structure and estimator is captured by itself.
        most_forms = len(OFTEN) * len(self.estimators)
        self.step: Callable[[Tensor, Tensor, int, int], Tensor] = (
            sp.capture(self._step, most_forms=most_forms) if is_captured else self._step
        )

    def _step(self, x: Tensor, scale: Tensor, kind: int, way: int) -> Tensor:
        structure = [*OFTEN, *SLOW][kind]
        scores = (scale * self.encoder(x)).reshape(len(x), *structure.score_shape)

        def loss(z: Tensor, row: Tensor) -> Tensor:
            vectors = structure.vectors(z).flatten(1).to(self.decoder.weight)
            losses: Tensor = (self.decoder(vectors) - x[row]).square().mean(-1)
            return losses

        self.optimizer.zero_grad()
        estimator = self.estimators[way if structure.has_partition else 0]
        estimate = estimator(scores, structure, loss, generator=self.generator)
        estimate.surrogate.mean().backward()
        self.optimizer.step()
        return estimate.calls.double().mean()

    def run(self, n_steps: int) -> Usage:
        """Take steps, and measure."""
        for _ in range(n_steps):
            at = 0.5 - 0.5 * math.cos(2 * math.pi * self.n_steps / CYCLE)
            scale = round(_LARGE * (_SMALL / _LARGE) ** at, 6)
            is_slow = self.has_slow and self.n_steps % SELDOM == SELDOM - 1
            kind = len(OFTEN) + self.n_steps // SELDOM % len(SLOW) if is_slow else self.n_steps % len(OFTEN)
            # A tenth of the steps is taken by other estimators, so that the numbers of atoms are those of the sums.
            way = 1 + self.n_steps // 10 % 2 if self.n_steps % 10 == 9 and not is_slow else 0
            x = torch.randn(BATCH, INPUTS, device=self.device, generator=self.generator)
            calls = float(self.step(x, torch.tensor(scale, device=self.device), kind, way))
            if way == 0:
                self.fewest, self.most = min(self.fewest, calls), max(self.most, calls)
            self.n_steps += 1
        allocated = torch.cuda.memory_allocated() if self.device == "cuda" else 0
        found = Usage(self.n_steps, resident(), n_tensors(), allocated, self.fewest, self.most)
        self.fewest, self.most = math.inf, 0.0
        return found


def usages(training: Training, n_steps: int, n_parts: int = 10) -> Iterator[Usage]:
    """The usage after a warm-up of a cycle for each kind of step, and after each part of the steps."""
    yield training.run(CYCLE * len(SLOW))
    for _ in range(n_parts):
        yield training.run(n_steps // n_parts)


def main() -> None:
    """Print the usage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--captured", action="store_true")
    options = parser.parse_args()
    print(f"{'steps':>8} {'MiB':>9} {'tensors':>8} {'GPU MiB':>9} {'fewest':>7} {'most':>7}  seconds", flush=True)
    print(f"{0:8} {resident() / 2**20:9.1f} {n_tensors():8}", flush=True)
    started = time.process_time()
    for usage in usages(Training(options.device, is_captured=options.captured), options.steps):
        print(usage, f" {time.process_time() - started:7.0f}", flush=True)


if __name__ == "__main__":
    main()
