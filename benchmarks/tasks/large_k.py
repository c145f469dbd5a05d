"""Routing among a thousand to a million options, of which one is right: what a step costs, and what is learned in 200 steps.

Each option has a key and a hidden value. A query is the key of an option plus noise, rotated by an unknown rotation; its
target is what a network makes of the query and the option's value. The loss of an option is the error of what the network
makes of *its* value. From these losses a projection of the queries is learned, which has to undo the rotation. Which option
is right is known for measurement alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import sparsum as sp
from benchmarks.tasks.task import AbstractTask, Column, Metrics, Options, Trial, clock
from benchmarks.timing import peak_bytes
from sparsum import estimators as es

#: Cells of similar keys, and options in each.
CELLS = {"1,000": (25, 40), "10,000": (100, 100), "100,000": (250, 400), "1,000,000": (1000, 1000)}
#: Sizes of keys and values; cosines of a key with its cell's centre, and with its own key under the rotation.
DIM, VALUE, SIMILAR, START = 64, 16, 0.5**0.5, 0.6
NOISE, HIDDEN = 0.7, 64
STEPS, BATCH, K, N_PROBES = 200, 16, 10, 8
#: Options that a query is spread over at the start: the exponential of the entropy.
PERPLEXITY = 10.0
N_TEST, N_VALIDATION, N_EXPECTED = 512, 256, 64

ESTIMATORS: dict[str, Callable[[int], es.AbstractEstimator]] = {
    "dense": lambda n: es.Dense(max_count=n),
    "reinforce": lambda _: es.ScoreFunction(),
    "leave-one-out": lambda _: es.LeaveOneOut(K),
    "straight-through": lambda _: es.StraightThrough(),
}


@dataclass
class Problem:
    """Options and a network, and the inverse temperatures from which methods start."""

    centres: Tensor  # shape: (n_cells, DIM)
    keys: Tensor  # shape: (n_options, DIM), cell by cell
    values: Tensor  # shape: (n_options, VALUE)
    reader: torch.nn.Module

    @classmethod
    def of(cls, n_cells: int, n_each: int, device: torch.device) -> Problem:
        """The same for all trials."""
        generator = torch.Generator().manual_seed(0)

        def directions(*shape: int) -> Tensor:
            return torch.nn.functional.normalize(torch.randn(*shape, DIM, generator=generator), dim=-1)

        centres = directions(n_cells)
        keys = SIMILAR * centres.unsqueeze(1) + (1 - SIMILAR**2) ** 0.5 * directions(n_cells, n_each)
        values = torch.randn(n_cells * n_each, VALUE, generator=generator)
        layers = torch.nn.Linear(DIM + VALUE, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, VALUE)
        reader = torch.nn.Sequential(*layers).requires_grad_(False)
        for weight in reader.parameters():
            weight.normal_(std=weight.shape[-1] ** -0.5, generator=generator)
        keys = torch.nn.functional.normalize(keys, dim=-1).flatten(0, 1)
        return cls(centres.to(device), keys.to(device), values.to(device), reader.to(device))

    def read(self, x: Tensor, z: Tensor) -> Tensor:
        """What the network makes of queries (n, DIM) and the values of options (n,), or of mixtures of options."""
        found: Tensor = self.reader(torch.cat([x, sp.embed(z, self.values)], -1))
        return found

    def queries(self, right: Tensor, rotation: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Queries for options, and their targets."""
        noise = torch.randn(len(right), DIM, generator=generator, device=right.device) * NOISE / DIM**0.5
        x = (self.keys[right] + noise) @ rotation
        return x, self.read(x, right)

    def candidates(self, query: Tensor) -> Tensor:
        """The options in the cells whose centres are nearest: (n, N_PROBES * n_each)."""
        n_each = len(self.keys) // len(self.centres)
        cells = (query @ self.centres.T).topk(N_PROBES).indices
        return (cells.unsqueeze(-1) * n_each + torch.arange(n_each, device=query.device)).flatten(1)


def rotation(generator: torch.Generator) -> Tensor:
    """A random rotation that turns every vector by the same angle, whose cosine is START."""
    basis, _ = torch.linalg.qr(torch.randn(DIM, DIM, generator=generator))
    sine = (1 - START**2) ** 0.5
    turn = torch.block_diag(*[torch.tensor([[START, -sine], [sine, START]])] * (DIM // 2))
    found: Tensor = basis @ turn @ basis.T
    return found


def sharpness(scores: Tensor, mapping: Callable[[Tensor], Tensor]) -> float:
    """The factor of scores with which rows have the perplexity PERPLEXITY on average, by bisection."""
    low, high = -4.0, 12.0  # base-2 logarithms
    for _ in range(16):
        middle = (low + high) / 2
        entropy = torch.special.entr(mapping(scores * 2**middle)).sum(-1).mean()
        low, high = (middle, high) if entropy.exp() > PERPLEXITY else (low, middle)
    return float(2**high)


class Model(torch.nn.Module):
    """A projection of queries, and a method that chooses among options."""

    def __init__(self, row: str, problem: Problem, sharpness: float) -> None:
        super().__init__()
        self.row, self.problem, self.sharpness = row, problem, sharpness
        self.query = torch.nn.Linear(DIM, DIM, bias=False)
        torch.nn.init.eye_(self.query.weight)
        self.structure = sp.OneOf(len(problem.keys))
        self.estimator = ESTIMATORS[row](self.structure.n) if row in ESTIMATORS else None
        if row.startswith("sparse"):
            with torch.device("meta"):  # keys are fixed, and shared
                self.router = sp.nn.Router(DIM, self.structure.n, temperature=1 / (sharpness * DIM**0.5))
            self.router = self.router.to_empty(device=problem.keys.device)
            self.router.reset_usage()
            self.router.weight = torch.nn.Parameter(problem.keys, requires_grad=False)

    def scores(self, x: Tensor) -> Tensor:
        """The scores of all options."""
        found: Tensor = self.query(x) @ self.problem.keys.T * self.sharpness
        return found

    def forward(self, x: Tensor, target: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """The surrogate of the expected loss, its value, and the number of calls of each query."""

        def loss(z: Tensor, row: Tensor) -> Tensor:
            return (self.problem.read(x[row], z) - target[row]).square().mean(-1)

        if self.estimator is not None:
            estimate = self.estimator(self.scores(x), self.structure, loss, generator=generator)
            return estimate.surrogate, estimate.value, estimate.calls
        q = self.choose(x)
        expected: Tensor = q.expect(loss)
        return expected, expected.detach(), q.n_atoms_per_row

    def choose(self, x: Tensor) -> sp.SparseDistribution:
        """The options with mass."""
        if self.row == "top-k":
            best, options = self.scores(x).topk(K)
            q = sp.SparseDistribution.from_dense(best.softmax(-1))
            return q.with_atoms(options[q.row, q.atoms], self.structure)
        query = self.query(x)
        found: sp.SparseDistribution = self.router(
            query, self.problem.candidates(query) if self.row == "sparse, index" else None
        )
        return found

    def best(self, x: Tensor) -> Tensor:
        """The most probable options."""
        if self.row == "sparse, index":
            query = self.query(x)
            options = self.problem.candidates(query)
            place = torch.einsum("nd,ncd->nc", query, self.problem.keys[options]).argmax(-1, keepdim=True)
            return options.gather(-1, place).squeeze(-1)
        return self.scores(x).argmax(-1)


class LargeK(AbstractTask):
    """A projection of queries, learned from the losses of a few of many options."""

    name, about = "large-k", "routing among 1,000 to 1,000,000 options, of which one is right"
    settings = tuple(CELLS)
    rows: ClassVar = {
        "sparse": "the exact sum over the support of sparsemax (Router)",
        "sparse, index": f"the same, among the options of the {N_PROBES} nearest cells",
        "top-k": f"softmax over the {K} best options",
        "dense": "the exact sum over all options of softmax",
        "reinforce": "one sample, and the mean of earlier losses as baseline",
        "leave-one-out": f"{K} samples that are each other's baseline",
        "straight-through": "straight-through Gumbel-softmax, temperature 1",
    }
    rates = (5e-3, 2e-2)
    judge = "validation"
    columns: ClassVar = {
        "before": Column("accuracy before training", ".1%", with_spread=False),
        "accuracy": Column("after, test", ".1%"),
        "loss": Column("expected loss, test", ".3f"),
        "calls": Column("calls per query", ".1f", with_spread=False),
        "last_calls": Column("in the last tenth", ".1f", with_spread=False),
        "ms": Column("ms per step", ".1f", with_spread=False),
        "megabytes": Column("peak memory, MB", ".1f", with_spread=False),
    }
    left_out: ClassVar = {
        **{(n, "sparse, index"): "all keys are scored as fast" for n in ("1,000", "10,000")},
        ("100,000", "dense"): "1.6 million calls, 1.9 GB and more than a second per step",
        ("1,000,000", "dense"): "16 million calls, 19 GB per step",
        ("1,000,000", "straight-through"): "the time: at 100,000 it has the slowest steps",
    }
    fewer_seeds: ClassVar = {("1,000,000", row): 1 for row in ("sparse", "top-k", "reinforce", "leave-one-out")}

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.problem: tuple[str, Problem, dict[str, float]] | None = None

    def prepare(self, setting: str) -> tuple[Problem, dict[str, float]]:
        """The options of a setting, and where sparsemax and softmax start; the last ones are kept."""
        if self.problem is None or self.problem[0] != setting:
            problem = Problem.of(*CELLS["1,000" if self.options.is_quick else setting], self.device)
            generator = torch.Generator().manual_seed(0)
            turn = rotation(generator).to(self.device)
            right = torch.randint(len(problem.keys), (BATCH,), generator=generator).to(self.device)
            x, _ = problem.queries(right, turn, torch.Generator(self.device).manual_seed(0))
            scores = x @ problem.keys.T
            start = {"sparse": sharpness(scores, sp.sparsemax), "softmax": sharpness(scores, lambda s: s.softmax(-1))}
            self.problem = setting, problem, start
        return self.problem[1:]

    def train(self, trial: Trial, say: Callable[[str], None]) -> Metrics:
        """Train for 200 steps, or 50 in tuning."""
        problem, start = self.prepare(trial.setting)
        turn = rotation(torch.Generator().manual_seed(trial.seed)).to(self.device)
        generator = torch.Generator(self.device).manual_seed(trial.seed)
        is_sparse = trial.row.startswith("sparse")
        model = Model(trial.row, problem, start["sparse" if is_sparse else "softmax"]).to(self.device)
        optimizer = torch.optim.Adam(model.query.parameters(), lr=trial.rate, fused=True)

        def draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
            right = torch.randint(len(problem.keys), (n,), generator=generator, device=self.device)
            return right, *problem.queries(right, turn, generator)

        @sp.capture
        def step(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            optimizer.zero_grad()
            surrogate, value, calls = model(x, target, generator)
            surrogate.mean().backward()
            optimizer.step()
            return value.mean(), calls.double().mean()

        @torch.no_grad()
        def measure(seed: int, n: int) -> tuple[float, float]:
            """The share of queries whose most probable option is right, and the mean loss of the first ones."""
            noise, losses, n_right = torch.Generator(self.device).manual_seed(seed), list[Tensor](), 0
            model.eval()
            for i in range(0, n, BATCH):
                right, x, target = draw(BATCH, noise)
                n_right += int((model.best(x) == right).sum())
                if i < N_EXPECTED:
                    losses.append(model(x, target, noise)[1])
            model.train()
            return n_right / n, torch.cat(losses).mean().item()

        n_steps = 4 if self.options.is_quick else STEPS // (4 if trial.is_tuning else 1)
        n_validation, n_test = (BATCH, BATCH) if self.options.is_quick else (N_VALIDATION, N_TEST)
        found: Metrics = {} if trial.is_tuning else {"before": measure(3000, n_test)[0]}
        seconds, values, calls = 0.0, list[float](), list[float]()
        for i in range(n_steps):
            _, x, target = draw(BATCH, generator)
            begin = clock(self.device)
            value, n_calls = step(x, target)
            seconds += (clock(self.device) - begin) * (i > 0)  # the first one prepares
            values.append(value.item())
            calls.append(n_calls.item())
            say(f"step {i + 1}, loss {value:.3f}, {n_calls:.1f} calls")
        found |= {"validation": measure(2000, n_validation)[0], "ms": 1000 * seconds / (n_steps - 1)}
        found |= {"calls": sum(calls) / n_steps, "loss_curve": _tenths(values), "calls_curve": _tenths(calls)}
        if not trial.is_tuning:
            found["accuracy"], found["loss"] = measure(3000, n_test)
            found["last_calls"] = _tenths(calls)[-1]
            if self.device.type == "cpu":
                found["megabytes"] = peak_bytes(lambda: step(x, target)) / 1e6
        return found


def _tenths(values: list[float]) -> list[float]:
    """The mean of each tenth of a curve."""
    n = max(1, len(values) // 10)
    return [sum(values[i : i + n]) / n for i in range(0, len(values), n)]
