"""The signal game: which concepts the symbols stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from sparsum_experiments.experiment import AbstractExperiment
from sparsum_experiments.report.html import Markup, element
from sparsum_experiments.report.latent.fields import Fields
from sparsum_experiments.report.latent.view import AbstractView
from sparsum_experiments.signal_game import SignalGame

# How many symbols are listed, and how many concepts of each.
_N_SYMBOLS, _N_CONCEPTS = 20, 4
# A million of images is more than any page will be of.
_MOST = 10**6
# How many images the sender sees at a time.
_AT_ONCE = 500


@dataclass(frozen=True)
class Symbol:
    """A symbol: for how many images it was sent, and for how many of which concepts, the most frequent first."""

    number: int
    count: int
    concepts: list[tuple[str, int]]


@dataclass(frozen=True)
class SymbolsView(AbstractView):
    """What the sender says of the test images by its most probable symbol.

    Args:
        n_images: how many test images there are.
        n_concepts: how many concepts they are of.
        n_symbols: how many symbols there are.
        n_used: how many are sent at all.
        n_guessed: images whose concept is the most frequent one of their symbol.
        n_named: concepts that are most of what some symbol is sent for.
        n_own: those among them for most of whose images that symbol is sent.
        symbols: the most frequent ones.
    """

    title: ClassVar[str] = "What the symbols stand for"
    n_images: int
    n_concepts: int
    n_symbols: int
    n_used: int
    n_guessed: int
    n_named: int
    n_own: int
    symbols: list[Symbol]

    @classmethod
    def of(cls, experiment: AbstractExperiment, generator: torch.Generator) -> Self:  # noqa: ARG003
        """Count symbols over the test images; nothing is random."""
        assert isinstance(experiment, SignalGame)
        test, names = experiment.games.test, experiment.games.names
        scores = torch.cat([experiment.model.sender(x) for x in test.x.split(_AT_ONCE)])
        if not scores.isfinite().all():
            raise ValueError("a score of the sender is not finite")
        sent = scores.argmax(-1)
        return cls.from_counts(counts_of(sent, test.concept, experiment.args.n_symbols, len(names)), names)

    @classmethod
    def from_counts(
        cls,
        counts: Tensor,  # shape: (n_symbols, n_concepts), int64
        names: tuple[str, ...],
    ) -> Self:
        """From how often each symbol was sent for each concept."""
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

    @classmethod
    def from_json(cls, fields: Fields) -> Self:
        """Read and check."""
        symbols = []
        for part in fields.parts("symbols", 0, 10 * _N_SYMBOLS):
            concepts = [(each.text("name"), each.whole("count", 1, _MOST)) for each in part.parts("concepts", 1, 20)]
            symbols.append(Symbol(part.whole("symbol", 0, _MOST), part.whole("count", 1, _MOST), concepts))
        view = cls(
            n_images=fields.whole("n_images", 0, _MOST),
            n_concepts=fields.whole("n_concepts", 0, _MOST),
            n_symbols=fields.whole("n_symbols", 0, _MOST),
            n_used=fields.whole("n_used", 0, _MOST),
            n_guessed=fields.whole("n_guessed", 0, _MOST),
            n_named=fields.whole("n_named", 0, _MOST),
            n_own=fields.whole("n_own", 0, _MOST),
            symbols=symbols,
        )
        view.check()
        return view

    def check(self) -> None:
        """Raise if a part is larger than what it is a part of."""
        pairs = [("n_guessed", "n_images"), ("n_used", "n_symbols"), ("n_named", "n_concepts"), ("n_own", "n_named")]
        for part, whole in pairs:
            if getattr(self, part) > getattr(self, whole):
                raise ValueError(f"its {part} is larger than its {whole}")
        if sum(symbol.count for symbol in self.symbols) > self.n_images:
            raise ValueError("its symbols have more images than there are")
        for symbol in self.symbols:
            if symbol.number >= self.n_symbols:
                raise ValueError(f"there is a symbol {symbol.number}, and they end before {self.n_symbols}")
            if sum(count for _, count in symbol.concepts) > symbol.count:
                raise ValueError(f"the concepts of symbol {symbol.number} have more images than the symbol")

    def to_json(self) -> dict[str, Any]:
        """Names and counts."""
        symbols = [
            {
                "symbol": symbol.number,
                "count": symbol.count,
                "concepts": [{"name": name, "count": count} for name, count in symbol.concepts],
            }
            for symbol in self.symbols
        ]
        return vars(self) | {"symbols": symbols}

    def markup(self) -> Markup:
        """A few numbers in words, and a table."""
        n_images = max(self.n_images, 1)
        summary = (
            f"For {self.n_images:,} test images of {self.n_concepts} concepts the sender uses {self.n_used} of its "
            f"{self.n_symbols} symbols, taking its most probable one. {self.n_named} concepts make up more than half of "
            f"what some symbol is sent for; {self.n_own} of them also have that symbol for more than half of their images. "
            f"Guessing each symbol's most frequent concept is right for {self.n_guessed / n_images:.1%} of the images."
        )
        header = element("tr", *(element("th", name, scope="col") for name in ("symbol", "images", "concepts")))
        rows = [_row(symbol, n_images) for symbol in self.symbols]
        caption = element("caption", "The most frequent symbols, each with the shares of its concepts")
        table = element("table", caption, element("thead", header), element("tbody", *rows))
        return element("div", element("p", summary), element("div", table, class_="wide"), class_="latent-symbols")


def counts_of(
    symbols: Tensor,  # shape: (n_images,), int64
    concepts: Tensor,  # shape: (n_images,), int64
    n_symbols: int,
    n_concepts: int,
) -> Tensor:
    """How often each symbol was sent for each concept: (n_symbols, n_concepts)."""
    return (symbols * n_concepts + concepts).bincount(minlength=n_symbols * n_concepts).reshape(n_symbols, n_concepts)


def _symbol(number: int, counts: Tensor, names: tuple[str, ...]) -> Symbol:
    best = counts.argsort(descending=True, stable=True)[:_N_CONCEPTS].tolist()
    concepts = [(names[concept][:200], int(counts[concept])) for concept in best if counts[concept] > 0]
    return Symbol(number, int(counts.sum()), concepts)


def _row(symbol: Symbol, n_images: int) -> Markup:
    rest = symbol.count - sum(count for _, count in symbol.concepts)
    shares = [_share(name, count / symbol.count) for name, count in symbol.concepts]
    if rest > 0:
        shares.append(_share("others", rest / symbol.count))
    often = f"{symbol.count:,} ({symbol.count / n_images:.1%})"
    cells = [element("th", str(symbol.number), scope="row"), element("td", often), element("td", element("ul", *shares))]
    return element("tr", *cells)


def _share(name: str, share: float) -> Markup:
    text = "<1%" if share < 0.005 else f"{share:.0%}"
    return element("li", f"{name} ", element("span", text, class_="latent-share"))
