"""The signal game: which concepts the symbols stand for."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

import pydantic
import torch
from torch import Tensor

from sparsum_experiments.experiment import AbstractExperiment
from sparsum_experiments.report.latent.view import AbstractView, Part, Text
from sparsum_experiments.signal_game import SignalGame

# How many symbols are listed, and how many concepts of each.
_N_SYMBOLS, _N_CONCEPTS = 20, 4
# How many images the sender sees at a time.
_AT_ONCE = 500
# More than any data set has.
_Count = Annotated[int, pydantic.Field(ge=0, le=10**6)]


class Concept(Part):
    """A concept, and for how many of its images a symbol was sent."""

    name: Text
    count: Annotated[_Count, pydantic.Field(ge=1)]


class Symbol(Part):
    """A symbol: for how many images it was sent, and for how many of which concepts, the most frequent first."""

    number: Annotated[_Count, pydantic.Field(alias="symbol")]
    count: Annotated[_Count, pydantic.Field(ge=1)]
    concepts: Annotated[list[Concept], pydantic.Field(min_length=1, max_length=20)]

    @property
    def rest(self) -> int:
        """The images of concepts that are not listed."""
        return self.count - sum(concept.count for concept in self.concepts)


class SymbolsView(AbstractView):
    """What the sender says about the test images with its most probable symbol; the most frequent symbols are listed."""

    kind: ClassVar[str] = "symbols"
    title: ClassVar[str] = "What the symbols stand for"
    n_images: _Count
    n_concepts: _Count
    n_symbols: _Count
    n_used: _Count  # symbols that are sent at all
    n_guessed: _Count  # images whose concept is the most frequent one of their symbol
    n_named: _Count  # concepts that are most of what some symbol is sent for
    n_own: _Count  # those among them for most of whose images that symbol is sent
    symbols: Annotated[list[Symbol], pydantic.Field(max_length=10 * _N_SYMBOLS)]

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        pairs = [("n_guessed", "n_images"), ("n_used", "n_symbols"), ("n_named", "n_concepts"), ("n_own", "n_named")]
        for part, whole in pairs:
            if getattr(self, part) > getattr(self, whole):
                raise ValueError(f"{part} is larger than {whole}")
        if sum(symbol.count for symbol in self.symbols) > self.n_images:
            raise ValueError("the symbols have more images than there are")
        for symbol in self.symbols:
            if symbol.number >= self.n_symbols:
                raise ValueError(f"there is a symbol {symbol.number}, but only {self.n_symbols} symbols")
            if symbol.rest < 0:
                raise ValueError(f"the concepts of symbol {symbol.number} have more images than the symbol")
        return self

    @classmethod
    def of(cls, experiment: AbstractExperiment, generator: torch.Generator) -> Self:  # noqa: ARG003
        """Count symbols over the test images; nothing is random."""
        assert isinstance(experiment, SignalGame)
        test, names = experiment.games.test, experiment.games.names
        scores = torch.cat([experiment.model.sender(x) for x in test.x.split(_AT_ONCE)])
        if not scores.isfinite().all():
            raise ValueError("a score of the sender is not finite")
        n_symbols, n_concepts = experiment.args.n_symbols, len(names)
        pairs = scores.argmax(-1) * n_concepts + test.concept
        return cls.from_counts(pairs.bincount(minlength=n_symbols * n_concepts).reshape(n_symbols, n_concepts), names)

    @classmethod
    def from_counts(cls, counts: Tensor, names: tuple[str, ...]) -> Self:
        """From how often each symbol was sent for each concept: (n_symbols, n_concepts)."""
        per_symbol, per_concept = counts.sum(1), counts.sum(0)
        is_most = 2 * counts > per_symbol.unsqueeze(1)
        is_own = is_most & (2 * counts > per_concept)
        order = per_symbol.argsort(descending=True, stable=True)[:_N_SYMBOLS].tolist()
        return cls(
            n_images=int(counts.sum()),
            n_concepts=int((per_concept > 0).sum()),
            n_symbols=len(counts),
            n_used=int((per_symbol > 0).sum()),
            n_guessed=int(counts.amax(1).sum()),
            n_named=int(is_most.any(0).sum()),
            n_own=int(is_own.any(0).sum()),
            symbols=[_symbol(z, counts[z], names) for z in order if per_symbol[z] > 0],
        )


def _symbol(number: int, counts: Tensor, names: tuple[str, ...]) -> Symbol:
    best = counts.argsort(descending=True, stable=True)[:_N_CONCEPTS].tolist()
    concepts = [Concept(name=names[i][:200], count=int(counts[i])) for i in best if counts[i] > 0]
    return Symbol(number=number, count=int(counts.sum()), concepts=concepts)
