"""Digits from sums: a reader of single digits learns from images of two numbers of which only the sum is known.

The digits are latent, and a rule connects them with what is observed. Columns are added from the right with a carry, so that
the rule is a small graph: a path through it is a choice of all digits, and a mask leaves those whose result is the observed
one. The probability of the result is the sum over the paths that are left.
"""

from __future__ import annotations

import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, final

import torch
from sparsum_experiments.data import Images, load_images
from torch import Tensor
from torch.nn import functional

import sparsum as sp
from benchmarks.tasks.task import AbstractTask, Column, Metrics, Options, Trial, clock

#: Assignments that "top-k" sums over, and samples of "REINFORCE".
K = 10
#: How often test images are paired anew: a single pairing has few numbers.
N_PAIRINGS = 10
#: Pairs of numbers.
BATCH = 16
_N_TIMED = 50  # batches

#: A loss for the log-probabilities of digits, (n, 2, N, 10), of each row's digits: (n, 2, N).
Objective = Callable[[Tensor, Tensor], Tensor]


class Rule:
    """Two numbers of n digits, of which a result is known: a structure whose parts are digits, and what each column shows.

    A path goes through the columns from the right: a digit of the first number, one of the second, and what they show. The
    last column shows its total, the others the last digit of theirs, and carry the rest. Parts are the digits, in the order
    of (2, n, 10), and then what columns can show: 10 each, more for the last one.
    """

    def __init__(self, n: int, combine: Callable[[Any, Any], Any] = operator.add) -> None:
        self.n, self._combine = n, combine
        vertices: defaultdict[Hashable, int] = defaultdict(itertools.count().__next__)
        edges: list[tuple[Hashable, Hashable]] = []
        parts, carries = [], {0}
        for column in range(n):
            ways = [(carry, a, b) for carry in sorted(carries) for a in range(10) for b in range(10)]
            totals = sorted({carry + combine(a, b) for carry, a, b in ways})
            for carry in sorted(carries):
                edges += [((column, carry), (column, carry, a)) for a in range(10)]
                parts += [10 * column + a for a in range(10)]
            edges += [((column, carry, a), (column, "total", carry + combine(a, b))) for carry, a, b in ways]
            parts += [10 * (n + column) + b for _, _, b in ways]
            is_last = column == n - 1
            edges += [((column, "total", each), "end" if is_last else (column + 1, each // 10)) for each in totals]
            parts += [10 * (2 * n + column) + (each if is_last else each % 10) for each in totals]
            carries = {each // 10 for each in totals}
        self.structure = sp.Paths([(vertices[tail], vertices[head]) for tail, head in edges], parts)

    def results(
        self,
        digits: Tensor,  # shape: (*batch, 2, n)
    ) -> Tensor:
        """What the columns show: (*batch, n)."""
        shown, carry = [], torch.zeros_like(digits[..., 0, 0])
        for first, second in zip(*(number.unbind(-1) for number in digits.unbind(-2)), strict=True):
            shown.append(self._combine(first, second) + carry)
            carry = shown[-1] // 10
        return torch.stack([*(total % 10 for total in shown[:-1]), shown[-1]], -1)

    def scores(
        self,
        log_probs: Tensor,  # shape: (n_rows, 2, n, 10)
    ) -> Tensor:
        """The scores of the parts, 0 for what is shown: (n_rows, n_parts)."""
        return functional.pad(log_probs.flatten(1), (0, self.structure.n_parts - 20 * self.n))

    def mask(
        self,
        results: Tensor,  # shape: (n_rows, n)
    ) -> Tensor:
        """The parts that agree with what is known: (n_rows, n_parts)."""
        part = torch.arange(self.structure.n_parts - 20 * self.n, device=results.device)
        column = (part // 10).clamp_max(self.n - 1)
        return functional.pad(results[:, column] == part - 10 * column, (20 * self.n, 0), value=True)


def exact(rule: Rule) -> Objective:
    """-log of the probability of the result."""

    def loss(log_probs: Tensor, digits: Tensor) -> Tensor:
        p = sp.Gibbs(rule.scores(log_probs), rule.structure, mask=rule.mask(rule.results(digits)))
        return -p.log_partition.mean()

    return loss


def best(rule: Rule) -> Objective:
    """-log of the summed probability of the K best assignments with this result."""

    def loss(log_probs: Tensor, digits: Tensor) -> Tensor:
        scores = rule.scores(log_probs)

        def log_joint(z: Tensor, row: Tensor) -> Tensor:
            return scores[row.unsqueeze(-1), rule.structure.parts(z)].sum(-1)

        mask = rule.mask(rule.results(digits))
        bound = sp.estimators.topk_bound(scores.detach(), rule.structure, log_joint, K, mask=mask)
        return -bound.surrogate.mean()

    return loss


def sparse(rule: Rule) -> Objective:
    r"""How much :math:`\max_\mu t^\top \mu - \frac12 \|\mu\|^2` is lost if all digits must have the result.

    The largest value over all digits is that of `sparsemax`, and with the rule that of `sparsemap`. The difference is a
    Fenchel-Young loss whose target is the mean with the rule, as -log p is the difference of two log-partition functions.
    """
    solver = sp.solvers.ActiveSet()

    def loss(log_probs: Tensor, digits: Tensor) -> Tensor:
        scores, mask = rule.scores(log_probs).detach(), rule.mask(rule.results(digits))
        mean = sp.sparsemap(scores, rule.structure, mask=mask, solver=solver).mean
        assert isinstance(mean, Tensor)
        target = mean[:, : 20 * rule.n].reshape(log_probs.shape)
        return sp.sparsemax_loss(log_probs, target, reduction="sum") / len(log_probs)

    return loss


def sampled(rule: Rule) -> Objective:
    """The expected share of wrong results, by samples of all digits."""
    estimator = sp.estimators.LeaveOneOut(K)

    def loss(log_probs: Tensor, digits: Tensor) -> Tensor:
        results = rule.results(digits)

        def is_wrong(z: Tensor, row: Tensor) -> Tensor:
            return (rule.results(z.unflatten(-1, digits.shape[1:])) != results[row]).any(-1).to(log_probs.dtype)

        n = log_probs[0, ..., 0].numel()
        return estimator(log_probs.flatten(1, 2), sp.Groups(n, 10), is_wrong).surrogate.mean()

    return loss


def labelled(_: Rule) -> Objective:
    """The cross-entropy of the digits, which other rows do not see."""

    def loss(log_probs: Tensor, digits: Tensor) -> Tensor:
        return functional.nll_loss(log_probs.flatten(0, 2), digits.flatten())

    return loss


OBJECTIVES: dict[str, Callable[[Rule], Objective]] = {
    "exact": exact,
    "top-k": best,
    "SparseMAP": sparse,
    "REINFORCE": sampled,
    "labels": labelled,
}


class LeNet(torch.nn.Sequential):
    """Log-probabilities of digits, (*batch, 10), of images, (*batch, 1, 28, 28)."""

    def __init__(self) -> None:
        super().__init__(
            torch.nn.Conv2d(1, 6, 5),
            torch.nn.MaxPool2d(2),
            torch.nn.ReLU(),
            torch.nn.Conv2d(6, 16, 5),
            torch.nn.MaxPool2d(2),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(256, 120),
            torch.nn.ReLU(),
            torch.nn.Linear(120, 84),
            torch.nn.ReLU(),
            torch.nn.Linear(84, 10),
            torch.nn.LogSoftmax(-1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images may have any number of batch dimensions."""
        read: Tensor = super().forward(x.flatten(0, -4)).unflatten(0, x.shape[:-3])
        return read


@final
class DigitSums(AbstractTask):
    """Digits of MNIST, of which only the sums or products are known."""

    name, about = "digit-sums", "MNIST digits from sums of numbers of N digits, and from products"
    settings = ("N=1", "N=2", "N=4", "product, N=1")
    rows: ClassVar = {
        "exact": "the sum over all digits with the observed result, `Gibbs` over `Paths`",
        "top-k": f"the sum over the {K} best, `topk_bound`",
        "SparseMAP": "a Fenchel-Young loss of distributions with few digits",
        "REINFORCE": f"{K} samples, `LeaveOneOut`",
        "labels": "the digits themselves: an upper bound",
    }
    rates, judge = (1e-3,), "validation"
    columns: ClassVar = {
        "test": Column("result accuracy", ".2%"),
        "digits": Column("digit accuracy", ".2%"),
        "ms": Column("ms per step", ".1f", with_spread=False),
        "ms_objective": Column("objective, once trained", ".1f", with_spread=False),
    }
    #: Passes over the training images.
    epochs: ClassVar = {"N=1": 4, "N=2": 6, "N=4": 24, "product, N=1": 4}
    left_out: ClassVar = {
        (setting, "REINFORCE"): "at most one sample in a hundred has the right result" for setting in ("N=2", "N=4")
    }

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        data = load_images(options.data or "mnist", options.data_dir)
        self._train, self._validation, self._test = (
            (_pixels(split.x, data).to(self.device), split.y.to(self.device))
            for split in (data.train, data.validation, data.test)
        )

    def train(self, trial: Trial, say: Callable[[str], None]) -> Metrics:
        """Train a reader; its judge is the share of validation results that it reads rightly."""
        torch.manual_seed(trial.seed)
        rule = Rule(int(trial.setting[-1]), operator.mul if trial.setting.startswith("product") else operator.add)
        objective = OBJECTIVES[trial.row](rule)
        reader = LeNet().to(self.device)
        optimizer = torch.optim.Adam(reader.parameters(), lr=trial.rate)
        x, y = self._train
        numbers = numbers_of(len(y), rule.n, torch.Generator().manual_seed(trial.seed)).to(self.device)  # in all epochs

        @sp.capture
        def step(index: Tensor) -> None:
            optimizer.zero_grad()
            objective(reader(x[index]), y[index]).backward()
            optimizer.step()

        curve, seconds, n_steps = [], 0.0, 0
        for epoch in range(1 if self.options.is_quick else self.epochs[trial.setting]):
            order = torch.randperm(len(numbers), device=self.device)
            batches = numbers[order[: 5 * BATCH if self.options.is_quick else len(order) // BATCH * BATCH]].split(BATCH)
            begin = clock(self.device)
            for index in batches:
                step(index)
            seconds, n_steps = seconds + clock(self.device) - begin, n_steps + len(batches)
            curve.append(accuracy(reader, rule, *self._validation)[0])
            say(f"epoch {epoch + 1}: {curve[-1]:.2%} of the validation results")
        test, digits = accuracy(reader, rule, *self._test)
        return {
            "validation": curve[-1],
            "test": test,
            "digits": digits,
            "ms": 1000 * seconds / n_steps,
            "ms_objective": self._time(objective, reader, [(x[index], y[index]) for index in batches[:_N_TIMED]]),
            "validation_by_epoch": curve,
        }

    def _time(self, objective: Objective, reader: LeNet, batches: list[tuple[Tensor, Tensor]]) -> float:
        """Milliseconds of the objective and of its gradient in the log-probabilities, once the reader is trained."""
        with torch.no_grad():
            inputs = [(reader(x), y) for x, y in batches]
        begin = clock(self.device)
        for log_probs, digits in inputs:
            objective(log_probs.requires_grad_(), digits).backward()
        return 1000 * (clock(self.device) - begin) / len(inputs)


def numbers_of(n_images: int, n: int, generator: torch.Generator) -> Tensor:
    """Two numbers of n digits per row, and each image in at most one of them: (n_rows, 2, n)."""
    order = torch.randperm(n_images, generator=generator)
    return order[: n_images // (2 * n) * 2 * n].reshape(-1, 2, n)


@torch.no_grad()
def accuracy(reader: LeNet, rule: Rule, x: Tensor, y: Tensor) -> tuple[float, float]:
    """The shares of results and of digits that are right, if every image is read by itself."""
    read = torch.cat([reader(some).argmax(-1) for some in x.split(1000)])
    generator = torch.Generator().manual_seed(0)
    index = torch.cat([numbers_of(len(y), rule.n, generator) for _ in range(N_PAIRINGS)]).to(y.device)
    is_right = (rule.results(read[index]) == rule.results(y[index])).all(-1)
    return is_right.double().mean().item(), (read == y).double().mean().item()


def _pixels(x: Tensor, data: Images) -> Tensor:
    """Images from -1 to 1, (n, 1, 28, 28); those of another size are scaled."""
    images = x.float().unflatten(-1, (1, *data.shape)) / (data.n_levels - 1)
    return 2 * (images if data.shape == (28, 28) else functional.interpolate(images, (28, 28), mode="bilinear")) - 1
