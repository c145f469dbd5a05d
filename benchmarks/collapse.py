"""Do supports stay alive? Remedies against saturated scores, over learning rates and seeds, on four tasks.

Adam trains each model for 2,000 steps. Then, on test data and in evaluation mode, the same objective is measured for all
remedies, without their own terms; so are atoms per row, the share of parts in use, and saturation. Results are appended to
benchmarks/collapse.jsonl, so that only what is missing there is made. Run it with ``OMP_NUM_THREADS=1 python -m
benchmarks.collapse``: an hour of one core for everything. docs/collapse.md has the table and says what it means.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import pathlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional

import sparsum as sp

RATES, SEEDS, STEPS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2), 5, 2000
N_TRAIN, N_PIXELS, N_IMAGES = 1497, 16, 16
# The runs of docs/collapse.md. Those that are missing there are made, and appended.
FILE = pathlib.Path(__file__).with_suffix(".jsonl")
# The weight of a remedy's term, relative to that of the entropy.
WEIGHT = 0.3


@functools.cache
def digits() -> Tensor:
    """Scikit-learn's digits in a fixed random order, 4 x 4 pixels of them to save time, (1797, 16), from 0 to 1."""
    images = functional.avg_pool2d(torch.tensor(load_digits().images, dtype=torch.float32) / 16, 2).flatten(1)
    return images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]


class Task(torch.nn.Module):
    """An encoder of scores, and the loss of assignments; the objective is the expected loss less weighted entropy."""

    entropy: float = 1.0
    batch_size: int = 8
    max_atoms: int | None = None
    encoder: torch.nn.Module

    def __init__(self, structure: Any, decoder: torch.nn.Module) -> None:
        super().__init__()
        self.structure, self.decoder, images = structure, decoder, digits()
        self.train_data, self.test_data = images[:N_TRAIN], images[N_TRAIN:]
        size = torch.Size(structure.score_shape)
        last = torch.nn.Sequential(torch.nn.Linear(64, size.numel()), torch.nn.Unflatten(-1, size))
        self.encoder = torch.nn.Sequential(torch.nn.Linear(N_PIXELS, 64), torch.nn.ReLU(), last)

    def batch(self, generator: torch.Generator) -> Tensor:
        """The data of a step."""
        return self.train_data[torch.randint(N_TRAIN, (self.batch_size,), generator=generator)]

    def loss(self, x: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """The loss of packed assignments, given their rows."""
        return lambda z, row: functional.binary_cross_entropy_with_logits(self.decoder(z), x[row], reduction="none").sum(-1)


class Linear(Task):
    """A linear encoder and decoder of random pixels, with 32 bits."""

    entropy = 0.1

    def __init__(self) -> None:
        super().__init__(sp.Bits(32), torch.nn.Linear(32, 392))
        self.encoder = torch.nn.Linear(392, 32)
        self.train_data = self.test_data = torch.rand(16, 392)

    def batch(self, generator: torch.Generator) -> Tensor:
        """All rows."""
        return self.train_data

    def loss(self, x: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Squared errors."""
        return lambda z, row: (self.decoder(z) - x[row]).square().mean(-1)


class BitsVAE(Task):
    """A VAE with 200 bits."""

    batch_size = 6

    def __init__(self) -> None:
        super().__init__(sp.Bits(200), torch.nn.Linear(200, N_PIXELS))


class Tables(torch.nn.Module):
    """The sum of the embeddings of 32 categorical variables."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = torch.nn.Parameter(torch.randn(32, 32, N_PIXELS) / 32**0.5)

    def forward(self, z: Tensor) -> Tensor:
        """Categories (n, 32) -> logits (n, 16)."""
        return sp.embed(z, self.tables).sum(-2)


class GroupsVAE(Task):
    """A VAE with 32 categorical variables of 32 categories."""

    max_atoms = 8  # of up to 331 at the start

    def __init__(self) -> None:
        super().__init__(sp.Groups(32, 32), Tables())


class SignalGame(Task):
    """The sender sees one of 16 images and sends one of 64 symbols; the receiver tells which image it was."""

    entropy, batch_size = 0.1, N_IMAGES

    def __init__(self) -> None:
        super().__init__(sp.OneOf(64), torch.nn.Linear(N_PIXELS, 64))
        self.test_data = self.test_data[: len(self.test_data) // N_IMAGES * N_IMAGES]
        self.symbols = torch.nn.Parameter(torch.randn(64, 64))

    def loss(self, x: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Games of 16 images, each of which the sender sees once."""
        images, wanted = self.decoder(x).unflatten(0, (-1, N_IMAGES)), torch.arange(len(x)) % N_IMAGES
        return lambda z, row: functional.cross_entropy(
            torch.einsum("nd,nid->ni", self.symbols[z], images[row // N_IMAGES]), wanted[row], reduction="none"
        )


TASKS: dict[str, Callable[[], Task]] = {
    "linear": Linear,
    "bits": BitsVAE,
    "groups": GroupsVAE,
    "game": SignalGame,
}


@dataclass
class Step:
    """What a remedy may use."""

    task: Task
    x: Tensor
    scores: Tensor
    q: sp.SparseDistribution

    @property
    def objective(self) -> Tensor:
        """The objective of each row."""
        expected: Tensor = self.q.expect(self.task.loss(self.x))
        return expected - self.task.entropy * self.q.entropy()


def fenchel_young(step: Step, target: Tensor) -> Tensor:
    """A term with the gradient of `sparsum.sparsemap_loss`, the mean less the target, in one line: (batch,)."""
    is_bits = isinstance(step.task.structure, sp.Bits)
    mean = (step.scores / 2 + 0.5).clamp(0, 1) if is_bits else sp.sparsemax(step.scores)
    return ((mean - target).detach() * step.scores).flatten(1).sum(-1)


def prior(step: Step) -> Tensor:
    """A Fenchel-Young loss towards the mean of the uniform distribution."""
    n = 2 if isinstance(step.task.structure, sp.Bits) else step.scores.shape[-1]
    return fenchel_young(step, torch.full_like(step.scores, 1 / n))


def posterior(step: Step) -> Tensor:
    """A Fenchel-Young loss towards the mean of the posterior over the atoms of q."""
    q = step.q
    with torch.no_grad():
        weights = (-step.task.loss(step.x)(q.atoms, q.row) / step.task.entropy).exp().double().clamp_min(1e-300)
        total = torch.zeros(len(step.x), dtype=weights.dtype).index_add_(0, q.row, weights)
        vectors = step.task.structure.vectors(q.atoms)
        shares = (weights / total[q.row]).float().reshape(-1, *[1] * (vectors.ndim - 1))
        target = torch.zeros_like(step.scores).index_add_(0, q.row, shares * vectors)
    return fenchel_young(step, target)


def window(step: Step) -> Tensor:
    """Half the squared distance of the scores from the mean vectors of all distributions: 0 inside the window."""
    if isinstance(step.task.structure, sp.Bits):
        outside = (step.scores.abs() - 1).relu() / 2
    else:
        outside = step.scores - sp.sparsemax(step.scores)
        outside = outside - outside.mean(-1, keepdim=True)
    return outside.square().flatten(1).sum(-1) / 2


TERMS: dict[str, Callable[[Step], Tensor]] = {"prior": prior, "posterior": posterior, "window": window}
REMEDIES = ("nothing", *TERMS, "norm")


@dataclass(frozen=True)
class Run:
    """A task, a remedy, a learning rate and a seed."""

    task: str
    remedy: str
    rate: float
    seed: int

    def train(self, steps: int) -> dict[str, float]:
        """Train a model and measure it."""
        torch.manual_seed(self.seed)
        generator = torch.Generator().manual_seed(self.seed)
        task = TASKS[self.task]()
        if self.remedy == "norm":
            task.encoder = torch.nn.Sequential(task.encoder, sp.nn.ScoreNorm(task.structure.score_shape))
        optimizer = torch.optim.Adam(task.parameters(), lr=self.rate, fused=True)
        for _ in range(steps):
            step = self.step(task, task.batch(generator))
            objective = step.objective.mean()
            if self.remedy in TERMS:
                objective = objective + WEIGHT * task.entropy * TERMS[self.remedy](step).mean()
            optimizer.zero_grad()
            objective.backward()
            optimizer.step()
        with torch.no_grad():
            step = self.step(task.eval(), task.test_data)
            found = {
                "objective": step.objective.mean(),
                "atoms": step.q.n_atoms_per_row.float().mean(),
                "used": used(step),
                "saturation": step.q.saturation,
            }
        return {name: float(value) for name, value in found.items()}

    @staticmethod
    def step(task: Task, x: Tensor) -> Step:
        """The distributions of a batch."""
        scores = task.encoder(x)
        return Step(task, x, scores, sp.sparsemap(scores, task.structure, max_atoms=task.max_atoms))


def used(step: Step) -> Tensor:
    """The share of bits with a mean from .01 to .99, or of categories with at least a tenth of the uniform share."""
    usage = step.q.usage
    assert isinstance(usage, Tensor)
    is_used = (usage - 0.5).abs() <= 0.49 if isinstance(step.task.structure, sp.Bits) else usage * usage.shape[-1] >= 0.1
    return is_used.float().mean()


@dataclass
class Results:
    """The lines of a file, by run."""

    path: pathlib.Path
    found: dict[Run, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            values = json.loads(line)
            self.found[Run(*(values.pop(name) for name in ("task", "remedy", "rate", "seed")))] = values

    def add(self, run: Run, values: dict[str, float]) -> None:
        """Append a line."""
        self.found[run] = values
        with self.path.open("a") as file:
            file.write(json.dumps(vars(run) | values) + "\n")

    def table(self) -> str:
        """Markdown: for each task a line per remedy, with columns for the rates."""
        lines = list[str]()
        for task in dict.fromkeys(run.task for run in self.found):
            rates = sorted({run.rate for run in self.found if run.task == task})
            head = " | ".join(f"{rate:g}" for rate in rates)
            counts = Counter((run.rate, run.remedy) for run in self.found if run.task == task).values()
            seeds = str(max(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
            lines += ["", f"| {task}, {seeds} seeds | {head} |", "| --- " * (len(rates) + 1) + "|"]
            for remedy in REMEDIES:
                cells = [self.cell(task, remedy, rate) for rate in rates]
                lines += [f"| {remedy} | " + " | ".join(cells) + " |"] if any(cells) else []
        return "\n".join(lines)

    def cell(self, task: str, remedy: str, rate: float) -> str:
        """Means over seeds: the objective and its standard error, atoms, percent of parts in use and of saturated rows."""
        runs = [v for run, v in self.found.items() if (run.task, run.remedy, run.rate) == (task, remedy, rate)]
        if not runs:
            return ""
        objective, atoms, parts, saturation = torch.tensor([list(values.values()) for values in runs]).T
        error = f" ± {objective.std() / len(runs) ** 0.5:.3f}" if len(runs) > 1 else ""
        shares = f"{100 * parts.mean():.0f}%, {100 * saturation.mean():.0f}%"
        return f"{objective.mean():.3f}{error}; {atoms.mean():.1f}, {shares}"


def main(arguments: Iterable[str] | None = None) -> None:
    """Make the runs that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="by default all")
    parser.add_argument("--remedies", nargs="+", choices=REMEDIES, default=list(REMEDIES), help="by default all")
    parser.add_argument("--quick", action="store_true", help="one seed, three rates and 100 steps, to see that it works")
    parser.add_argument("--file", type=pathlib.Path, help="of results (by default benchmarks/collapse.jsonl)")
    options = parser.parse_args(None if arguments is None else list(arguments))
    steps, seeds, rates = (100, 1, RATES[::2]) if options.quick else (STEPS, SEEDS, RATES)
    torch.set_num_threads(1)
    results = Results(options.file or (pathlib.Path("collapse-quick.jsonl") if options.quick else FILE))
    for seed, task, rate, remedy in itertools.product(range(seeds), options.tasks, rates, options.remedies):
        run = Run(task, remedy, rate, seed)
        if run not in results.found:
            results.add(run, run.train(steps))
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in results.found[run].items())
            print(f"{task}, {remedy}, rate {rate:g}, seed {seed}: {numbers}", file=sys.stderr, flush=True)
    print(results.table())


if __name__ == "__main__":
    main()
