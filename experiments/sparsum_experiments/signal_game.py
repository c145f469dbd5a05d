"""Experiment two: a signal game, in which one symbol identifies an image among others.

A sender sees one image and sends one of 256 symbols z with probability pi(z | image); a receiver sees 16 images and the
symbol, and picks an image. The loss of a symbol is -log p(y | images, z), where y is the index of the sender's image.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

import sparsum as sp
from sparsum.segments import Segments
from sparsum_experiments.data import Features, Games, draw_games, load_games
from sparsum_experiments.experiment import CATEGORICAL, AbstractExperiment, Step
from sparsum_experiments.models.estimators import ZeroOne
from sparsum_experiments.models.layers import ScalarMap
from sparsum_experiments.options import EPOCHS, MAX_SIZE, CommonArgs, option
from sparsum_experiments.seeds import generator_for, with_seed

_N_EVALUATED = {"validation": 1024, "test": 10_000}
_EVALUATED_AT_ONCE = {"cpu": 128, "cuda": 1024}
# On a GPU, if more than one in so many symbols has nonzero probability, the receiver multiplies all of them.
_MANY = 16


class Args(CommonArgs):
    """The options of this experiment."""

    data: str = option("digits", "The digits, or a folder of features (see 'sparsum data features').")
    epochs: int = option(500, "Epochs of steps-per-epoch batches of new games.", **EPOCHS)
    steps_per_epoch: int = option(100, "Batches of games per epoch.", ge=1, le=MAX_SIZE)
    entropy: float = option(0.1, "Coefficient of the entropy bonus.", changes_cost=False, is_main=True)
    n_symbols: int = option(256, "Number of symbols.", ge=1, le=MAX_SIZE)
    embedding: int = option(256, "Size of the embeddings of images and symbols.", ge=1, le=MAX_SIZE)
    n_filters: int = option(512, "Hidden units of the sender's map of each coordinate.", ge=1, le=MAX_SIZE)
    # Without a temperature, the paper's sparsemax collapsed to one symbol.
    sender_temperature: float = option(10.0, "Divides the sender's scores.", gt=0)
    symbol_init: Literal["normal", "uniform"] | None = option(
        None, "Initial distribution of the receiver's symbols. [Gumbel methods: uniform]", changes_cost=False
    )
    k: int = option(1, "Symbols that are summed exactly.", ge=1, le=MAX_SIZE, methods=("sum-and-sample",), is_main=True)


ESTIMATORS: dict[str, Callable[[Args, int], sp.estimators.AbstractEstimator | ZeroOne]] = {
    **CATEGORICAL,
    "sfe-01": lambda args, _: ZeroOne(args.entropy, is_self_critic=False),
    "sfe-plus-01": lambda args, _: ZeroOne(args.entropy, is_self_critic=True),
}
# The mapping from scores to the probabilities pi; softmax for all other methods.
_MAPPINGS: dict[str, Callable[[Tensor], Tensor]] = {"sparse": sp.sparsemax, "entmax15": sp.entmax15}


class Sender(torch.nn.Module):
    r"""Scores s of the symbols for an image x.

    .. math:: e = W_1 x, \quad h_i = \sigma\bigl(w_3^\top \sigma(w_2 e_i)\bigr), \quad s = W_4 h / T
    """

    def __init__(self, args: Args, n_features: int) -> None:
        super().__init__()
        self.temperature = args.sender_temperature
        self.image = torch.nn.Linear(n_features, args.embedding, bias=False)
        self.coordinate = ScalarMap(args.n_filters)
        self.symbol = torch.nn.Linear(args.embedding, args.n_symbols, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Features (n, n_features) -> scores (n, n_symbols)."""
        scores: Tensor = self.symbol(self.coordinate(self.image(x)))
        # In mixed precision they are too coarse to determine a support.
        return scores.to(self.symbol.weight.dtype) / self.temperature


class Receiver(torch.nn.Module):
    r"""The probabilities of the images, :math:`p(i \mid z) \propto \exp(v_z^\top W x_i)`.

    The embeddings :math:`W x_i` do not depend on the symbol: `image` computes them once per game.
    """

    def __init__(self, args: Args, n_features: int) -> None:
        super().__init__()
        self.image = torch.nn.Linear(n_features, args.embedding, bias=False)
        self.symbol = torch.nn.Embedding(args.n_symbols, args.embedding)  # initialised from N(0, 1)
        start = args.symbol_init or ("uniform" if args.method in {"gumbel", "st-gumbel"} else "normal")
        if start == "uniform":
            bound = args.n_symbols**-0.5  # 1/16 for 256 symbols, as in a linear layer of one-hot vectors
            torch.nn.init.uniform_(self.symbol.weight, -bound, bound)

    def forward(
        self,
        embedded: Tensor,  # shape: (n_games, n_images, size)
        z: Tensor,  # shape: (n,), or (n, n_symbols) for relaxed symbols
        row: Tensor,  # shape: (n,), the game of each symbol, sorted
    ) -> Tensor:
        """The log-probabilities of the images in each symbol's game: (n, n_images)."""
        if row.is_cuda:
            return self._products(embedded, z, row).log_softmax(-1)
        # One product per game, of its symbols padded to the largest number in any game, reads the images of a game once.
        place = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)  # index within its game
        n_games, n_places = len(embedded), int(place.max()) + 1
        slot = row * n_places + place
        padded = z.new_zeros(n_games * n_places, *z.shape[1:]).index_copy(0, slot, z)
        symbols = sp.embed(padded, self.symbol.weight).reshape(n_games, n_places, -1)
        return (symbols @ embedded.transpose(1, 2)).flatten(0, 1).index_select(0, slot).log_softmax(-1)

    def _products(self, embedded: Tensor, z: Tensor, row: Tensor) -> Tensor:
        """The products of symbols with the images of their games, (n, n_images), without synchronising with the device."""
        n_symbols = len(self.symbol.weight)
        if z.ndim == 1 and len(z) * _MANY > len(embedded) * n_symbols:
            # With this many symbols, multiplying all of them costs less than copying the images for each.
            products = (self.symbol.weight @ embedded.transpose(1, 2)).flatten(0, 1)
            return products.index_select(0, row * n_symbols + z)
        images = Segments.from_row(row, len(embedded)).spread(embedded)
        return (images @ sp.embed(z, self.symbol.weight).unsqueeze(-1)).squeeze(-1)


class Play(NamedTuple):
    """A batch of games before a symbol is chosen."""

    seen: Tensor  # shape: (n_games, n_features), the sender's image
    scores: Tensor  # shape: (n_games, n_symbols)
    answer: Callable[[Tensor, Tensor], Tensor]  # symbols and their games -> log-probabilities of the images, (n, n_images)
    target: Tensor  # shape: (n_games,), the index of the sender's image

    def outcome(self, z: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each symbol, and whether the receiver's most probable image is the sender's, as 0 or 1: (n,) each."""
        answer, target = self.answer(z, row), self.target[row]
        loss = -answer.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return loss, (answer.argmax(-1) == target).float()

    def success(self) -> Tensor:
        """Whether the sender's most probable symbol identifies the image, for all methods alike: (n_games,)."""
        return self.outcome(self.scores.argmax(-1), torch.arange(len(self.target), device=self.target.device))[1]


def _expected_success(pi: Distribution, is_right: Tensor) -> Tensor:
    """The probability that a symbol sampled from the sender succeeds, of whether each of its symbols does: (n_games,)."""
    if isinstance(pi, sp.SparseDistribution):
        expected: Tensor = pi.expect(lambda z, row: is_right)
        return expected
    return (pi.mean * is_right.reshape(pi.mean.shape)).sum(-1)  # Dense evaluates all symbols, game by game


class Model(torch.nn.Module):
    r"""The sender and the receiver.

    Called with a batch of games, it returns :math:`\mathbb{E}_\pi[-\log p(y \mid z)] - c H(\pi)`, or the loss of `ZeroOne`.
    """

    def __init__(self, args: Args, n_features: int) -> None:
        super().__init__()
        self.entropy = args.entropy
        self.sender, self.receiver = Sender(args, n_features), Receiver(args, n_features)
        self.estimator = ESTIMATORS[args.method](args, n_features)
        self.mapping = _MAPPINGS.get(args.method, functools.partial(torch.softmax, dim=-1))

    def play(self, batch: Mapping[str, Tensor]) -> Play:
        """Compute the sender's scores, and embed the images for the receiver."""
        images, target = batch["images"], batch["target"]
        seen = images[torch.arange(len(target), device=target.device), target]
        answer = functools.partial(self.receiver, self.receiver.image(images))
        return Play(seen, self.sender(seen), answer, target)

    def forward(self, batch: Mapping[str, Tensor], generator: torch.Generator) -> Step:
        """The loss of a step."""
        play, is_right = self.play(batch), list[Tensor]()

        def loss(z: Tensor, row: Tensor) -> Tensor:
            values, found = play.outcome(z, row)
            is_right.append(found)  # so that the receiver is not called again
            return values

        if isinstance(self.estimator, ZeroOne):
            estimate = self.estimator(play.scores, play.answer, play.target, generator)
        else:
            symbols = sp.OneOf(play.scores.shape[-1])
            estimate = self.estimator(play.scores, symbols, loss, context=play.seen, generator=generator)
        entropy = estimate.distribution.entropy()
        terms = {"loss": estimate.value, "entropy": entropy.detach()}
        with torch.no_grad():
            terms["success"] = play.success()
            if isinstance(self.estimator, sp.estimators.Sparse | sp.estimators.Dense):
                terms["expected_success"] = _expected_success(estimate.distribution, is_right[-1])
        objective = (estimate.surrogate - self.entropy * entropy).mean()
        means = torch.stack(list(terms.values())).mean(-1)  # in one launch
        return Step(objective, dict(zip(terms, means.unbind(), strict=True)), estimate.calls)

    def distribution(self, play: Play) -> sp.SparseDistribution:
        """The sender's distribution pi over the symbols with nonzero probability."""
        return sp.SparseDistribution.from_dense(self.mapping(play.scores))

    def measures(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Metrics of each game, by exact sums over symbols for all methods: (n_games,) each."""
        play = self.play(batch)
        pi = self.distribution(play)
        loss, expected_success = pi.expect(play.outcome)
        measures = {"loss": loss, "success": play.success(), "expected_success": expected_success}
        return measures | {"entropy": pi.entropy(), "calls": pi.n_atoms_per_row}


class SignalGame(AbstractExperiment):
    """The second experiment of the paper."""

    name: ClassVar[str] = "signal-game"
    methods: ClassVar[tuple[str, ...]] = tuple(ESTIMATORS)
    criterion: ClassVar[str] = "success"
    judges: ClassVar[Mapping[str, int]] = {"expected_success": 1}
    remedy: ClassVar[str] = " or a larger --sender-temperature"
    args_class: ClassVar[type[CommonArgs]] = Args
    args: Args

    def __init__(self, args: Args, device: torch.device, games: Games | None = None) -> None:
        self.args, self.device = args, device
        self.games = load_games(args.data, args.data_dir, device=device) if games is None else games.to(device)
        self.data_files = self.games.digests
        self.n_steps, self.n_calls_per_step = args.steps_per_epoch, args.batch_size
        self.model: Model = with_seed(lambda: Model(args, self.games.n_features), args.seed, "weights").to(device)

    def start_epoch(self, generator: torch.Generator) -> Tensor:
        """Draw new games of training images: (n_images + 1, n_games), the images and the index of the sender's."""
        n_games = self.n_steps * self.args.batch_size
        images, target = draw_games(self.games.train, n_games, self.games.n_images, generator)
        return torch.cat([images.t(), target.unsqueeze(0)])

    def batch(self, order: Tensor, i: int, generator: torch.Generator) -> Mapping[str, Tensor]:
        """The games of step i."""
        games = order[:, i * self.args.batch_size : (i + 1) * self.args.batch_size].t()
        return {"images": self.games.train.x[games[:, :-1]], "target": games[:, -1]}

    def measures(self, generator: torch.Generator, split: str, limit: int | None) -> Iterator[Mapping[str, Tensor]]:
        """Success, and expectations under the sender's distribution, on games that are the same for all runs."""
        for batch in self.evaluated(split, limit):
            yield self.model.measures(batch)

    def usage(self, generator: torch.Generator, split: str, limit: int | None) -> dict[str, float]:
        """``used_symbols``: the number of symbols that are the most probable one in some game."""
        best = [self.model.play(batch).scores.argmax(-1) for batch in self.evaluated(split, limit)]
        return {"used_symbols": float(len(torch.cat(best).unique()))}

    def evaluated(self, split: str, limit: int | None) -> Iterator[Mapping[str, Tensor]]:
        """Games of a split, in batches."""
        features: Features = getattr(self.games, split)
        drawn = draw_games(features, _N_EVALUATED[split], self.games.n_images, generator_for(self.device, 0, "games", split))
        chunks = zip(*(part[:limit].split(_EVALUATED_AT_ONCE[self.device.type]) for part in drawn), strict=True)
        for images, target in chunks:
            yield {"images": features.x[images], "target": target}
