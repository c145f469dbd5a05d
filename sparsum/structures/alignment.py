"""Monotone alignments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.structures import chart
from sparsum.structures.compact import AbstractCompact
from sparsum.structures.monotone import best_alignments, log_sum_of_alignments, sample_alignments
from sparsum.structures.pulling import NEGLIGIBLE, Decomposition
from sparsum.structures.ragged import AbstractRagged
from sparsum.structures.scores import BoundScores

#: Bounds the memory of comparisons with quantiles.
_MOST_TERMS = 2**24


@dataclass(frozen=True)
class Alignment(AbstractRagged, AbstractCompact):
    r"""Monotone alignments of ``n`` tokens to ``m`` frames: each frame has one token, each token at least one frame.

    .. math:: a_z^\top t = \sum_j t_{z_j, j}, \quad z_1 = 0, \; z_m = n - 1, \; z_{j + 1} - z_j \in \{0, 1\}

    Scores have shape (*batch, n, m). Atoms are the int64 token of each frame, (n_atoms, m).

    >>> scores = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.9, 0.8, 0.0]])
    >>> Alignment(2, 4).topk(scores, 2)
    tensor([[0, 1, 1, 1],
            [0, 0, 1, 1]])

    The paths of a grid, as in `sparsum.Paths`, in one step of a few operations for each frame; samples and sums take
    O(n * m) per example, the k best alignments O(n * m * k). SparseMAP has the solver `sparsum.solvers.Pulled` by default:
    its atoms are the quantiles of the token in each frame, in closed form. Where alignments are not observed, maximize
    ``sparsum.Gibbs(scores, structure).log_partition``, as in ``examples/alignment.py``.

    Args:
        n: the number of tokens, at least 1.
        m: the number of frames, at least n.
        lengths: the numbers of tokens and of frames of each example, an int64 tensor of shape (*batch, 2); by default all
            examples have the full size. Frames of an example beyond its number have token 0. `log_count` counts the
            alignments of full size.

    Raises:
        TypeError: if ``n`` or ``m`` is not an int, or ``lengths`` is not an int64 tensor or a list of pairs of ints.
        ValueError: if n is less than 1 or m is less than n, or if ``lengths`` are not from 1 to (n, m), or an example has
            more tokens than frames.

    References:
        - Glow-TTS: a generative flow for text-to-speech via monotonic alignment search (Kim, Kim, Kong & Yoon, 2020),
          https://arxiv.org/abs/2005.11129
        - Two poset polytopes (Stanley, 1986), on the means of alignments, which are those of chains of sets:
          https://doi.org/10.1007/BF02187680
    """

    n: int
    m: int

    is_fixed_size = True

    def __post_init__(self) -> None:
        check_int("n", self.n, least=1)
        check_int("m", self.m, least=self.n)
        super().__post_init__()
        if self.lengths is not None and bool((is_wrong := self.lengths[..., 0] > self.lengths[..., 1]).any()):
            seen = self.lengths[is_wrong][:5].tolist()
            raise ValueError(f"lengths must have at most as many tokens as frames, got {seen}")

    @property
    def sizes(self) -> tuple[int, int]:
        """(n, m)."""
        return self.n, self.m

    @property
    def score_shape(self) -> tuple[int, int]:
        """(n, m)."""
        return self.n, self.m

    def log_count(self) -> float:
        """Log of the number of ways to choose the frames at which the n - 1 other tokens begin."""
        return math.log(math.comb(self.m - 1, self.n - 1))

    def has_part(
        self,
        sizes: Tensor,  # shape: (n_rows, 2)
    ) -> Tensor:
        """Which tokens and frames there are: (n_rows, n, m)."""
        token, frame = (torch.arange(size, device=sizes.device) for size in self.sizes)
        return (token < sizes[:, :1]).unsqueeze(-1) & (frame < sizes[:, 1:]).unsqueeze(1)

    def argmax(
        self,
        scores: Tensor,  # shape: (*batch, n, m)
    ) -> Tensor:
        """The best alignment; it has a score of -inf if every alignment is forbidden: (*batch, m)."""
        self.check_scores(scores)
        return self._best(self._bind(scores), 1).squeeze(-2)

    def topk(
        self,
        scores: Tensor,  # shape: (*batch, n, m)
        k: int,
    ) -> Tensor:
        """The k best alignments, best first: (*batch, min(k, number of alignments), m).

        An example that has too few alignments because of its size repeats its last one; `kbest` returns which are allowed.
        """
        check_int("k", k, least=1)
        self.check_scores(scores)
        return self._best(self._bind(scores), k)

    @torch.no_grad()
    def _best(self, bound: BoundScores, k: int) -> Tensor:
        structure: Any = bound.structure
        sizes = structure.sizes_of(bound.n_rows, bound.device)
        return bound.shaped(best_alignments(chart.bounded(bound.scores), sizes, min(k, math.comb(self.m - 1, self.n - 1))))

    def log_partition(
        self,
        scores: Tensor,  # shape: (n_rows, n, m)
    ) -> Tensor:
        """Log of the sum over all alignments, twice differentiable: (n_rows,)."""
        return log_sum_of_alignments(scores.double(), self.sizes_of(len(scores), scores.device))

    def sample(
        self,
        scores: Tensor,  # shape: (n_rows, n, m)
        n: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Draw n independent alignments per row, from the last frame to the first: (n, n_rows, m)."""
        return sample_alignments(scores.double(), self.sizes_of(len(scores), scores.device), n, generator)

    def parts(
        self,
        atoms: Tensor,  # shape: (n_atoms, m)
    ) -> Tensor:
        """The part of each frame, and the number of parts for frames that an example does not have: (n_atoms, m)."""
        parts = atoms.long() * self.m + torch.arange(self.m, device=atoms.device)
        return (
            parts if self.lengths is None else parts.masked_fill(self._is_padding(len(atoms), atoms.device), self.n * self.m)
        )

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms, m)
    ) -> Tensor:
        """Whether tokens go from the first to the last one in steps of 0 or 1, and are 0 in other frames: (n_atoms,)."""
        sizes, is_padding = self.sizes_of(len(atoms), atoms.device), self._is_padding(len(atoms), atoms.device)
        last = atoms.gather(1, sizes[:, 1:] - 1)
        steps = atoms.diff(dim=-1)
        is_step = (steps == 0) | (steps == 1) | is_padding[:, 1:]
        is_right = (atoms[:, 0] == 0) & (last == sizes[:, :1] - 1).squeeze(-1)
        return is_right & is_step.all(-1) & (~is_padding | (atoms == 0)).all(-1)

    def pull(
        self,
        mean: Tensor,  # shape: (n_rows, n, m), float64
    ) -> Decomposition:
        """Split mean vectors into the alignments of the quantiles of each frame's token, in closed form.

        From a frame to the next, every quantile stays at its token or moves to the next one. Weights are the distances of
        sorted probabilities, so that they are continuous, and of few alignments: see docs/pulling.md.
        """
        is_padding = self._is_padding(len(mean), mean.device).unsqueeze(1)
        # The probability that a frame's token is at most i; beyond the sizes of an example, it is 0 or 1.
        ends = mean.cumsum(1).masked_fill(is_padding, 0.0)[:, :-1]
        cuts = torch.nn.functional.pad(ends.flatten(1).clamp(0.0, 1.0).sort(-1).values, (1, 1))
        cuts[:, -1] = 1.0
        weights = cuts.diff(dim=-1)
        row, place = (weights > NEGLIGIBLE).nonzero(as_tuple=True)
        middle = cuts[row, place] + weights[row, place] / 2
        step = max(1, _MOST_TERMS // (self.n * self.m))  # atoms at a time
        pieces = zip(row.split(step), middle.split(step), strict=True)
        atoms = torch.cat([(ends[rows] < middles[:, None, None]).sum(1) for rows, middles in pieces])
        atoms = atoms.masked_fill(self.select(row)._is_padding(len(row), row.device), 0)
        return Decomposition.of(atoms, weights[row, place], row, len(mean))

    def _is_padding(self, n_rows: int, device: torch.device) -> Tensor:
        """The frames that rows do not have: (n_rows, m)."""
        return torch.arange(self.m, device=device) >= self.sizes_of(n_rows, device)[:, 1:]
