"""Segmentations of a sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.structures.compact import AbstractCompact
from sparsum.structures.dag import Graph
from sparsum.structures.ragged import AbstractRagged
from sparsum.structures.walks import AbstractWalks
from sparsum.tensors import tensor_cache


@dataclass(frozen=True)
class Segmentation(AbstractRagged, AbstractCompact, AbstractWalks):
    r"""Segmentations of ``length`` positions into segments of at most ``max_width``, each with one of ``n_labels`` labels.

    .. math:: a_z^\top t = \sum_{(i, w, c) \in z} t_{i, w - 1, c}, \quad \text{start } i, \text{ width } w, \text{ label } c

    Scores have shape (*batch, length, max_width, n_labels), by the start of the segment; those of segments that do not fit
    are ignored. Atoms are int64 tensors of shape (n_atoms, length): ``(width - 1) * n_labels + label`` where a segment
    starts, and -1 elsewhere. With `sparsum.Gibbs`, this is a semi-Markov conditional random field.

    >>> scores = torch.zeros(4, 2, 1)
    >>> scores[1, 1], scores[0, 0] = 3.0, 1.0  # the middle two positions form a segment
    >>> Segmentation(4, max_width=2, n_labels=1).argmax(scores)
    tensor([ 0,  1, -1,  0])

    The paths of a graph, as in `sparsum.Paths`, with one step for each position: best segmentations, sums and samples take
    O(length * max_width * n_labels) per example.

    Args:
        length: the number of positions, at least 1.
        max_width: the largest width of a segment, from 1 to ``length``.
        n_labels: the number of labels, at least 1.
        lengths: the length of each example, an int64 tensor in the shape of the batch; by default all examples have the full
            length. `log_count` counts the segmentations of full length.

    Raises:
        TypeError: if an argument is not an int, or ``lengths`` is not an int64 tensor or a list of ints.
        ValueError: if an argument is out of range, or ``lengths`` are not from 1 to ``length``.

    References:
        - Semi-Markov conditional random fields for information extraction (Sarawagi & Cohen, 2004),
          https://papers.nips.cc/paper/2004/hash/eb06b9db06012a7a4179b8f3cb5384d3-Abstract.html
    """

    length: int
    max_width: int
    n_labels: int

    def __post_init__(self) -> None:
        check_int("length", self.length, least=1)
        check_int("max_width", self.max_width, least=1, most=self.length)
        check_int("n_labels", self.n_labels, least=1)
        super().__post_init__()

    @property
    def sizes(self) -> int:
        """The length."""
        return self.length

    @property
    def score_shape(self) -> tuple[int, int, int]:
        """(length, max_width, n_labels)."""
        return self.length, self.max_width, self.n_labels

    @property
    def graph(self) -> Graph:
        """Vertices are positions between segments; edges lead from the end of a segment to its start.

        Paths begin at the end of the sequence, which depends on the example, and lead to position 0.
        """
        return _graph(*self.score_shape)

    def starts(self, n_rows: int, device: torch.device) -> Tensor:
        """The end of each sequence: (n_rows,)."""
        return self.sizes_of(n_rows, device)

    def has_part(
        self,
        sizes: Tensor,  # shape: (n_rows,)
    ) -> Tensor:
        """Which segments fit: (n_rows, length, max_width, 1)."""
        start, width = (torch.arange(n, device=sizes.device) for n in self.score_shape[:2])
        return (start.unsqueeze(-1) + width < sizes[:, None, None]).unsqueeze(-1)

    def path_atoms(
        self,
        paths: Tensor,  # shape: (n, longest)
        dtype: torch.dtype,
    ) -> Tensor:
        """The kinds of segments at their starts: (n, length)."""
        n_kinds = self.max_width * self.n_labels
        parts = self.path_parts(paths)
        atoms = torch.full((len(paths), self.length + 1), -1, device=paths.device)
        return atoms.scatter_(1, parts // n_kinds, parts % n_kinds)[:, :-1]

    def parts(
        self,
        atoms: Tensor,  # shape: (n_atoms, length)
    ) -> Tensor:
        """The segments, and the number of parts where none starts: (n_atoms, length)."""
        start = torch.arange(self.length, device=atoms.device)
        return torch.where(atoms < 0, self.n_parts, start * (self.max_width * self.n_labels) + atoms.long())

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms, length)
    ) -> Tensor:
        """Whether the first segment starts at 0, and every segment, and the end, follows another one: (n_atoms,)."""
        is_start, start = atoms >= 0, torch.arange(self.length, device=atoms.device)
        is_kind = (atoms >= -1) & (atoms < self.max_width * self.n_labels) & (atoms == atoms.long())
        ends = torch.where(is_start, start + atoms.long() // self.n_labels + 1, 0).clamp(0, 2 * self.length)
        n_ends = torch.zeros(len(atoms), 2 * self.length + 1, dtype=torch.int64, device=atoms.device)
        n_ends.scatter_add_(1, ends, is_start.long())
        size = self.sizes_of(len(atoms), atoms.device).unsqueeze(-1)
        position = torch.arange(1, 2 * self.length + 1, device=atoms.device)
        n_wanted = torch.nn.functional.pad(is_start[:, 1:], (0, self.length + 1)).long() + (position == size)
        return is_kind.all(-1) & is_start[:, 0] & (n_ends[:, 1:] == n_wanted).all(-1)

    def flows(
        self,
        mean: Tensor,  # shape: (n_rows, n_parts)
    ) -> Tensor:
        """The probabilities of the segments, in the order of edges: (n_rows, n_edges)."""
        return self.edge_scores(mean)


@tensor_cache
def _graph(length: int, max_width: int, n_labels: int) -> Graph:
    """The graph, whose edges have segments as parts."""
    end, width, label = torch.meshgrid(
        torch.arange(length, 0, -1, device="cpu"),
        torch.arange(1, max_width + 1, device="cpu"),
        torch.arange(n_labels, device="cpu"),
        indexing="ij",
    )
    fits = width <= end
    end, width, label = end[fits], width[fits], label[fits]
    start = end - width
    parts = (start * max_width + width - 1) * n_labels + label
    return Graph.of(torch.stack([end, start], -1), parts)
