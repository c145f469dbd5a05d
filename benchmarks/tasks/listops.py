"""Latent trees: the value of an expression such as ``[MAX 2 [MIN 4 7 ] 0 ]``, whose tree is nowhere given.

A parser reads the expression and scores its trees. A reader computes the value along a tree, by messages from words to their
heads. It sees the words, neither their order nor the brackets, so that it needs the tree.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

import sparsum as sp
from benchmarks.tasks.task import AbstractTask, Column, Metrics, Options, Trial, clock
from sparsum import AbstractStructure
from sparsum.estimators import (
    AbstractEstimator,
    Estimate,
    Imle,
    LeaveOneOut,
    Problem,
    ReinMax,
    SelfCritic,
    Simple,
    SparseMAP,
    TopK,
)

OPERATORS = ("MIN", "MAX", "MED")
WORDS, DEPTH = 10, 3  # the most operators and digits of an expression, and how deep its lists are nested
PAD, CLOSE = 10 + len(OPERATORS), 11 + len(OPERATORS)  # after the digits and the operators
SIZE, BATCH, STEPS = 64, 32, 600
ENTROPY = 0.05  # the weight of the entropy of the trees at first; it is 0 in the second half of training
TOKENS = WORDS + 4  # with brackets: at most 4 lists of at least 2 words each


class Expressions(NamedTuple):
    """Expressions, padded; ``words`` are their tokens without the brackets."""

    tokens: Tensor  # shape: (n, TOKENS)
    words: Tensor  # shape: (n, WORDS)
    places: Tensor  # shape: (n, WORDS), of words among the tokens
    lengths: Tensor  # shape: (n,), the number of words
    heads: Tensor  # shape: (n, WORDS), the list that each word is in; 0 for the first word and for padding
    values: Tensor  # shape: (n,)

    def rows(self, index: Tensor) -> Expressions:
        """Some of the expressions."""
        return Expressions(*(each[index] for each in self))


def apply(operator: str, numbers: list[int]) -> int:
    """The value of a list of digits; the median of an even number of them is rounded down."""
    if operator == "MED":
        return int(statistics.median(numbers))
    return min(numbers) if operator == "MIN" else max(numbers)


def draw(source: random.Random, tokens: list[int], words: list[tuple[int, int]], head: int = 0, depth: int = 1) -> int:
    """Append a list to the tokens, and its words with their heads and places; returns its value."""
    operator, own = source.randrange(len(OPERATORS)), len(words)
    words.append((head, len(tokens)))
    tokens.append(10 + operator)
    numbers = []
    for _ in range(source.randint(2, 4)):
        if depth < DEPTH and source.random() < 0.35:
            numbers.append(draw(source, tokens, words, own, depth + 1))
        else:
            numbers.append(source.randrange(10))
            words.append((own, len(tokens)))
            tokens.append(numbers[-1])
    tokens.append(CLOSE)
    return apply(OPERATORS[operator], numbers)


def expressions(n: int, seed: int = 0) -> Expressions:
    """Different expressions of at most 8 words, with at least one list in another."""
    source = random.Random(seed)
    found: dict[tuple[int, ...], tuple[object, ...]] = {}
    while len(found) < n:
        tokens: list[int] = []
        words: list[tuple[int, int]] = []
        value = draw(source, tokens, words)
        if len(words) <= WORDS and tokens.count(CLOSE) > 1:
            pad = WORDS - len(words)
            found[tuple(tokens)] = (
                tokens + [PAD] * (TOKENS - len(tokens)),
                [tokens[place] for _, place in words] + [PAD] * pad,
                [place for _, place in words] + [0] * pad,
                len(words),
                [head for head, _ in words] + [0] * pad,
                value,
            )
    return Expressions(*map(torch.tensor, zip(*found.values(), strict=True)))


class Parser(torch.nn.Module):
    """Scores of all heads of all words, from the states of a recurrent network."""

    def __init__(self, size: int, *, is_normalized: bool) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(CLOSE + 1, size)
        self.encode = torch.nn.GRU(size, size, batch_first=True, bidirectional=True)
        self.modifier, self.head = torch.nn.Linear(2 * size, size), torch.nn.Linear(2 * size, size)
        shape = WORDS, WORDS
        self.norm = sp.nn.ScoreNorm(shape, learn_temperature=True) if is_normalized else torch.nn.Identity()

    def forward(self, x: Expressions) -> Tensor:
        """[modifier, head], -inf if it is not allowed: (n, WORDS, WORDS)."""
        states = self.states(x)
        scores = self.modifier(states) @ self.head(states).mT / self.embed.embedding_dim**0.5
        normed: Tensor = self.norm(scores)
        return normed.masked_fill(~allowed(x), -torch.inf)

    def states(self, x: Expressions) -> Tensor:
        """What the network knows at each word: (n, WORDS, 2 * size)."""
        states: Tensor = self.encode(self.embed(x.tokens))[0]
        return states.gather(1, x.places.unsqueeze(-1).expand(-1, -1, states.shape[-1]))


class Reader(torch.nn.Module):
    """The logits of the value, computed along a tree: each list is as likely to be a digit as its operator and words say."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(PAD + 1, size)
        self.message = torch.nn.Linear(size, size)
        self.update = torch.nn.Sequential(
            torch.nn.Linear(2 * size, 2 * size), torch.nn.ReLU(), torch.nn.Linear(2 * size, 10)
        )

    def forward(
        self,
        edges: Tensor,  # shape: (n, WORDS, WORDS), [modifier, head], 0 or 1, or relaxed
        words: Tensor,  # shape: (n, WORDS)
    ) -> Tensor:
        """After as many rounds as lists can be nested: (n, 10)."""
        is_self = torch.eye(WORDS, dtype=torch.bool, device=words.device)  # of the root, and of padding below
        to_heads = edges.masked_fill(is_self | (words == PAD).unsqueeze(-1), 0.0).mT
        own = state = self.embed(words)
        for _ in range(DEPTH):
            logits = self.update(torch.cat([own, to_heads @ self.message(state).relu()], -1))
            digits = logits.softmax(-1) @ self.embed.weight[:10]
            state = torch.where((words < 10).unsqueeze(-1), own, digits)
        value: Tensor = logits[:, 0]
        return value


class Listener(torch.nn.Module):
    """The logits of the value from the states of a recurrent network, without a tree."""

    def __init__(self, parser: Parser, size: int) -> None:
        super().__init__()
        self.parser = parser
        self.classify = torch.nn.Sequential(
            torch.nn.Linear(2 * size, 2 * size), torch.nn.ReLU(), torch.nn.Linear(2 * size, 10)
        )

    def forward(self, x: Expressions) -> Tensor:
        """The mean state of all words: (n, 10)."""
        is_word = (x.words != PAD).unsqueeze(-1)
        logits: Tensor = self.classify((self.parser.states(x) * is_word).sum(1) / is_word.sum(1))
        return logits


def allowed(x: Expressions) -> Tensor:
    """The first word is the root, the others modify an operator: (n, WORDS, WORDS), [modifier, head]."""
    place = torch.arange(WORDS, device=x.words.device)
    is_modifier = ((place < x.lengths.unsqueeze(-1)) & (place > 0)).unsqueeze(-1)
    is_operator = ((x.words >= 10) & (x.words < PAD)).unsqueeze(1)
    return torch.where(is_modifier, is_operator & (place[:, None] != place), place == 0)


def edges_of(z: Tensor) -> Tensor:
    """The edges of heads (n, WORDS), [modifier, head]; relaxed ones are what they are."""
    return z if z.is_floating_point() else functional.one_hot(z, WORDS).to(torch.get_default_dtype())


class StraightThrough(AbstractEstimator):
    """The loss of the best tree, with the gradient that the marginals of all trees would have."""

    is_unbiased, needs_relaxed_loss = False, True

    def n_calls(self, structure: AbstractStructure) -> int:
        """One."""
        return 1

    def estimate(self, problem: Problem) -> Estimate:
        """The loss at the best trees."""
        p, best = problem.gibbs(), best_edges(problem)
        losses = problem.relaxed_losses((best + p.mean - p.mean.detach()).unsqueeze(1)).squeeze(1)
        return Estimate(losses, losses, problem.calls(1), p)


class Spigot(StraightThrough):
    """The loss of the best tree, which moves against the slope of the loss and is projected to the mixtures of trees."""

    def estimate(self, problem: Problem) -> Estimate:
        """The loss at the best trees; the gradient of the scores is the move."""
        best, scores = best_edges(problem).requires_grad_(), problem.bound.scores
        losses = problem.relaxed_losses(best.unsqueeze(1)).squeeze(1)
        (slope,) = torch.autograd.grad(losses.sum(), best, retain_graph=True)
        is_allowed = scores > -torch.inf
        with torch.no_grad():
            target = (best - slope).masked_fill(~is_allowed, -torch.inf)
            move = best - sp.sparsemap(target, problem.structure).mean
        along = (move * scores.masked_fill(~is_allowed, 0.0)).sum((1, 2))
        return Estimate(losses + along, losses, problem.calls(1), problem.gibbs())


class PerturbedMarginals(StraightThrough):
    """The loss of a relaxed tree: the marginals of scores with Gumbel noise, a stochastic softmax trick."""

    def estimate(self, problem: Problem) -> Estimate:
        """The loss at the marginals."""
        scores = problem.bound.scores
        noise = -torch.empty_like(scores).exponential_(generator=problem.generator).log()
        mean = sp.Gibbs(scores + noise, problem.structure).mean
        losses = problem.relaxed_losses(mean.unsqueeze(1)).squeeze(1)
        return Estimate(losses, losses, problem.calls(1), problem.gibbs())


def best_edges(problem: Problem) -> Tensor:
    """The edges of the best trees of all rows."""
    return edges_of(problem.bound.argmax()).to(problem.dtype)


ESTIMATORS: dict[str, Callable[[], AbstractEstimator]] = {
    "SparseMAP": SparseMAP,
    "SparseMAP, active set": lambda: SparseMAP(sp.solvers.ActiveSet()),
    "top-k (8)": lambda: TopK(8),
    "self-critic (2)": SelfCritic,
    "leave-one-out (8)": lambda: LeaveOneOut(8),
    "I-MLE": Imle,
    "SIMPLE": Simple,
    "straight-through": StraightThrough,
    "SPIGOT": Spigot,
    "perturbed marginals": PerturbedMarginals,
    "ReinMax, free heads": ReinMax,
}


class Model(torch.nn.Module):
    """Parser and reader of a row, and what stands between them."""

    def __init__(self, row: str, *, is_normalized: bool) -> None:
        super().__init__()
        self.row = row
        self.parser = Parser(SIZE, is_normalized=is_normalized)
        self.reader = Listener(self.parser, SIZE) if row == "no tree" else Reader(SIZE)
        self.estimator = ESTIMATORS[row]() if row in ESTIMATORS else None

    def structure(self, x: Expressions) -> AbstractStructure:
        """The trees of expressions, or all heads."""
        return sp.Groups(WORDS, WORDS) if "free heads" in self.row else sp.Tree(WORDS, lengths=x.lengths)

    def heads(self, x: Expressions) -> Tensor:
        """Those that values are computed along: (n, WORDS)."""
        if self.estimator is not None:
            return self.structure(x).argmax(self.parser(x))
        return x.heads if self.row == "given tree" else torch.zeros_like(x.heads)

    def objective(self, x: Expressions, entropy_weight: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """What is minimized, and the number of calls of the reader: (n,)."""

        def loss(z: Tensor, row: Tensor) -> Tensor:
            return functional.cross_entropy(self.reader(edges_of(z), x.words[row]), x.values[row], reduction="none")

        if self.estimator is None:
            return functional.cross_entropy(self.logits(x), x.values, reduction="none"), torch.ones_like(x.values)
        estimate = self.estimator(self.parser(x), self.structure(x), loss, generator=generator)
        return estimate.surrogate - entropy_weight * estimate.distribution.entropy(), estimate.calls

    def logits(self, x: Expressions) -> Tensor:
        """Of the values, along the best trees: (n, 10)."""
        logits: Tensor = self.reader(x) if self.row == "no tree" else self.reader(edges_of(self.heads(x)), x.words)
        return logits

    @torch.no_grad()
    def measure(self, x: Expressions) -> tuple[float, float]:
        """The share of values that are right, and of heads, the first word's aside."""
        self.eval()
        is_right = self.logits(x).argmax(-1) == x.values
        is_modifier = (x.words != PAD) & (torch.arange(WORDS, device=x.words.device) > 0)
        is_right_head = (self.heads(x) == x.heads)[is_modifier]
        self.train()
        return is_right.float().mean().item(), is_right_head.float().mean().item()


#: The rows that are trained with scores as they are, too.
PLAIN = (
    "SparseMAP, active set",
    "self-critic (2)",
    "leave-one-out (8)",
    "I-MLE",
    "SIMPLE",
    "straight-through",
    "perturbed marginals",
)


class ListOps(AbstractTask):
    """Expressions of lists in lists."""

    name, about = "listops", "values of expressions whose tree is latent"
    settings = ("ScoreNorm", "plain scores")
    rows: ClassVar = {
        "given tree": "the reader alone, with the true tree",
        "flat tree": "the reader alone; all words are in the first list",
        "no tree": "a classifier on the parser's recurrent network",
        "SparseMAP": "the exact sum over a sparse support, with the default solver",
        "SparseMAP, active set": "the same, with another solver",
        "top-k (8)": "sparsemax over the 8 best trees",
        "self-critic (2)": "the score function with 2 samples",
        "leave-one-out (8)": "the score function with 8 samples",
        "I-MLE": "the best tree of perturbed scores, and the best one where the loss is less",
        "SIMPLE": "a sampled tree, with the gradient of the marginals",
        "straight-through": "the best tree, with the gradient of the marginals",
        "SPIGOT": "the best tree, with the gradient of a projection",
        "perturbed marginals": "a stochastic softmax trick",
        "ReinMax, free heads": "each word takes a head, independently of the others",
    }
    rates = (2e-3, 5e-3)
    judge = "validation_accuracy"
    columns: ClassVar = {
        "test_accuracy": Column("test accuracy", ".1%"),
        "test_heads": Column("head accuracy", ".1%"),
        "calls": Column("calls", ".1f", with_spread=False),
        "ms": Column("ms per step", ".0f", with_spread=False),
    }
    left_out: ClassVar = {
        **{("plain scores", row): "without scores" for row in ("given tree", "flat tree", "no tree")},
        **{
            ("plain scores", row): "for lack of time"
            for row in rows
            if row not in {"given tree", "flat tree", "no tree", *PLAIN}
        },
    }

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        sizes = (200, 50, 50) if options.is_quick else (10_000, 1_000, 2_000)
        self.steps = 4 if options.is_quick else STEPS
        every = Expressions(*(each.to(self.device) for each in expressions(sum(sizes))))
        parts = torch.arange(sum(sizes), device=self.device).split(sizes)
        self.train_part, self.validation, self.test = (every.rows(index) for index in parts)

    def train(self, trial: Trial, say: Callable[[str], None]) -> Metrics:
        """Train parser and reader together, from the values alone."""
        torch.manual_seed(trial.seed)
        generator = torch.Generator(self.device).manual_seed(trial.seed)
        model = Model(trial.row, is_normalized=trial.setting == "ScoreNorm").to(self.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=trial.rate)

        @sp.capture
        def step(x: Expressions, entropy_weight: Tensor) -> Tensor:
            optimizer.zero_grad()
            objective, calls = model.objective(x, entropy_weight, generator)
            objective.mean().backward()
            optimizer.step()
            return calls.float().mean()

        n_steps = self.steps // 2 if trial.is_tuning else self.steps
        seconds, calls = 0.0, []
        curve: list[float] = []
        heads: list[float] = []
        for i in range(n_steps):
            index = torch.randint(len(self.train_part.values), (BATCH,), generator=generator, device=self.device)
            weight = torch.tensor(ENTROPY * max(0.0, 1 - 2 * i / n_steps), device=self.device)
            begin = clock(self.device)
            calls.append(step(self.train_part.rows(index), weight))
            seconds += clock(self.device) - begin
            if (i + 1) % max(1, n_steps // 10) == 0:
                for found, values in zip(model.measure(self.validation), (curve, heads), strict=True):
                    values.append(found)
                say(f"step {i + 1}: {curve[-1]:.1%} right, {heads[-1]:.1%} of heads")
        accuracy, right_heads = model.measure(self.test)
        return {
            "validation_accuracy": curve[-1],
            "test_accuracy": accuracy,
            "calls": torch.stack(calls).mean().item(),
            "last_calls": torch.stack(calls[-n_steps // 10 :]).mean().item(),
            "ms": 1000 * seconds / n_steps,
            "curve": curve,
            **({} if trial.row == "no tree" else {"test_heads": right_heads, "curve_heads": heads}),
        }
