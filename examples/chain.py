"""A custom structure that is a chain of choices: align the frames of a signal to the symbols that it spells.

Every frame is aligned to one symbol; the alignment starts at the first symbol, ends at the last one, and each frame stays
at its symbol or moves on to the next. `argmax` makes this a structure. `potentials` says that it is a chain of choices, and
with that it has `sparsum.Gibbs`, every sampling estimator and every bound: the same model is trained here by an exact sum,
by sampling, and by a bound on its likelihood.

Run it with ``python -m examples.chain``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import sparsum as sp


@dataclass(frozen=True)
class Alignment(sp.AbstractStructure):
    """Monotone alignments of frames to symbols; atoms are int64 symbols of shape (n_atoms, n_frames)."""

    n_frames: int
    n_symbols: int

    is_fixed_size = True  # each frame uses one part

    @property
    def score_shape(self) -> tuple[int, int]:
        """A score for each frame and symbol."""
        return self.n_frames, self.n_symbols

    @property
    def group_size(self) -> int:
        """The parts of a frame are a group, of which one is used."""
        return self.n_symbols

    def log_count(self) -> float:
        """The steps to the next symbol are taken at n_symbols - 1 of the n_frames - 1 transitions."""
        return math.log(math.comb(self.n_frames - 1, self.n_symbols - 1))

    def argmax(self, scores: Tensor) -> Tensor:
        """The best alignment, by the Viterbi algorithm; if all are forbidden, any alignment."""
        # Very low scores for forbidden parts: what is left at -inf is not an alignment, and is never returned.
        rows = scores.reshape(-1, *self.score_shape).double().clamp_min(-1e30)
        best = sp.Sequence(*self.score_shape).argmax(tuple(self.potentials(rows)))
        return best.reshape(*scores.shape[:-2], self.n_frames)

    def vectors(self, atoms: Tensor) -> Tensor:
        """One-hot symbols."""
        return torch.nn.functional.one_hot(atoms, self.n_symbols).to(torch.get_default_dtype())

    def potentials(self, scores: Tensor) -> sp.Potentials:
        """The scores, with -inf where an alignment must not begin, end, or go."""
        symbol = torch.arange(self.n_symbols, device=scores.device)
        frame = torch.arange(self.n_frames, device=scores.device).unsqueeze(-1)
        is_open = ((frame > 0) | (symbol == 0)) & ((frame < self.n_frames - 1) | (symbol == self.n_symbols - 1))
        step = symbol - symbol.unsqueeze(-1)  # from the row's symbol to the column's
        moves = torch.where((step == 0) | (step == 1), 0.0, -torch.inf).to(scores.dtype)
        pairwise = moves.expand(len(scores), self.n_frames - 1, -1, -1)
        return sp.Potentials(scores.masked_fill(~is_open, -torch.inf), pairwise)


def signals(n: int, structure: Alignment, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Words of symbols, (n, n_symbols), their true alignments, (n, n_frames), and noisy frames, (n, n_frames, 8)."""
    words = torch.randint(6, (n, structure.n_symbols), generator=generator)
    truth = sp.Gibbs(torch.zeros(n, *structure.score_shape), structure).sample(generator=generator)
    sounds = torch.eye(6, 8)[words.gather(1, truth)]
    return words, truth, sounds + 0.3 * torch.randn(sounds.shape, generator=generator)


def train(method: str, steps: int) -> tuple[float, float]:
    """Learn the sound of each symbol without seeing an alignment; the share of frames that are aligned rightly."""
    generator, structure = torch.Generator().manual_seed(0), Alignment(n_frames=12, n_symbols=5)
    torch.manual_seed(0)
    words, truth, frames = signals(256, structure, generator)
    sound = torch.nn.Parameter(0.1 * torch.randn(6, 8, generator=generator))
    optimiser = torch.optim.Adam([sound], lr=0.03)
    estimator = {"sum": sp.estimators.TopK(8), "samples": sp.estimators.LeaveOneOut(8)}.get(method)

    def scores(batch: Tensor) -> Tensor:
        """How well each frame fits each symbol of its word: (n, n_frames, n_symbols)."""
        return -(frames[batch].unsqueeze(2) - sound[words[batch]].unsqueeze(1)).square().sum(-1)

    def accuracy() -> float:
        with torch.no_grad():
            return (structure.argmax(scores(torch.arange(256))) == truth).float().mean().item()

    before = accuracy()
    for _ in range(steps):
        batch = torch.randint(256, (32,), generator=generator)

        def log_joint(z: Tensor, row: Tensor, batch: Tensor = batch) -> Tensor:
            heard = sound[words[batch[row]].gather(1, z)]
            return -2 * (frames[batch[row]] - heard).square().sum((-1, -2))

        def loss(z: Tensor, row: Tensor) -> Tensor:
            return -log_joint(z, row)

        if estimator is None:
            found = sp.estimators.distinct_bound(scores(batch), structure, log_joint, k=8, generator=generator)
            objective = -found.surrogate.mean()
        else:
            estimate = estimator(scores(batch), structure, loss, generator=generator)
            objective = estimate.surrogate.mean()
        optimiser.zero_grad()
        objective.backward()
        optimiser.step()
    return before, accuracy()


def main(steps: int = 150) -> tuple[float, float]:
    """Train by three methods; returns the lowest accuracy of them, before and after."""
    report = sp.testing.check_structure(Alignment(n_frames=5, n_symbols=3))
    print(f"check_structure: {sum(report.counts.values())} checks passed, {report.counts['gibbs']} of Gibbs among them")
    results = {method: train(method, steps) for method in ("sum", "samples", "bound")}
    for method, (before, after) in results.items():
        print(f"{method:8} frames aligned rightly: {before:.0%} before, {after:.0%} after training")
    return min(before for before, _ in results.values()), min(after for _, after in results.values())


if __name__ == "__main__":
    main()
