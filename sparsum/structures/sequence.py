"""Sequences of tags."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.arguments import check_bool, check_int
from sparsum.segments import Segments
from sparsum.structures.declarations import Potentials
from sparsum.structures.pulling import Decomposition, Facets
from sparsum.structures.quantiles import pull_chain
from sparsum.structures.scores import BoundScores, Scores, as_tuple
from sparsum.structures.sized import AbstractSized
from sparsum.tensors import first_k


@dataclass(frozen=True)
class Sequence(AbstractSized):
    r"""Sequences of ``length`` tags out of ``n_tags``, with scores for tags and for pairs of neighbouring tags.

    .. math:: a_z^\top t = \sum_i u_{i, z_i} + \sum_i v_{i, z_i, z_{i+1}}

    Scores are unary scores u of shape (*batch, length, n_tags), or a pair (u, v). The transition scores v broadcast to
    (*batch, length - 1, n_tags, n_tags), and ``v[..., i, a, b]`` scores tag a at i followed by tag b at i + 1. Atoms are
    int64 tensors of shape (n_atoms, length). Vectors and marginals have the form of the scores.

    >>> structure = Sequence(3, n_tags=2)
    >>> unary = torch.tensor([[1.0, 0.0], [0.0, 0.1], [0.0, 0.3]])
    >>> structure.argmax(unary)
    tensor([0, 1, 1])
    >>> stay = torch.eye(2)
    >>> structure.topk((unary, stay), k=2)
    tensor([[0, 0, 0],
            [0, 1, 1]])

    The Viterbi algorithm finds the best sequences, for all rows at once and on the device of the scores.

    Args:
        length: the number of positions, at least 1.
        n_tags: the number of tags, at least 1.
        regularise_transitions: whether SparseMAP's quadratic term includes the transitions; if False, only the marginals of
            the tags are unique, and the default solver is `sparsum.solvers.ActiveSet` instead of `sparsum.solvers.Pulled`.
        lengths: the length of each example, an int64 tensor in the shape of the batch; by default all examples have the
            full length. `log_count` counts the sequences of full length.

    Raises:
        TypeError: if ``length`` or ``n_tags`` is not an int, or ``lengths`` is not an int64 tensor or a list of ints.
        ValueError: if ``length`` or ``n_tags`` is less than 1, or ``lengths`` are not from 1 to ``length``.

    References:
        - List Viterbi decoding algorithms with applications (Seshadri & Sundberg, 1994), the parallel algorithm,
          https://doi.org/10.1109/TCOMM.1994.577040
    """

    length: int
    n_tags: int
    regularise_transitions: bool = field(default=True, compare=False)  # the assignments are the same
    #: Whether the scores are a pair; set by `bind`.
    has_transitions: bool = field(default=False, kw_only=True, repr=False, compare=False)

    has_fewer_choices: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_int("length", self.length, least=1)
        check_int("n_tags", self.n_tags, least=1)
        check_bool("regularise_transitions", self.regularise_transitions)
        super().__post_init__()

    @property
    def score_shape(self) -> tuple[int, int]:
        """The shape of the unary scores, (length, n_tags)."""
        return self.length, self.n_tags

    @property
    def group_size(self) -> int | None:
        """One tag is used at each position; None with transitions, which do not form groups."""
        return None if self.has_transitions else self.n_tags

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """One tag is used at each position, and one transition between neighbouring positions."""
        return (self.n_tags, self.n_tags**2) if self.has_transitions else (self.n_tags,)

    @property
    def _transition_shape(self) -> tuple[int, int, int]:
        return self.length - 1, self.n_tags, self.n_tags

    @property
    def _n_parts(self) -> int:
        return self.length * self.n_tags + self.has_transitions * math.prod(self._transition_shape)

    def log_count(self) -> float:
        """Log of n_tags ** length."""
        return self.length * math.log(self.n_tags)

    def check_scores(self, scores: Scores) -> None:
        """Raise unless the scores are unary, or a pair of unary and transition scores."""
        unary, *others = as_tuple(scores)
        super().check_scores(unary)
        if not isinstance(scores, tuple):
            return
        if len(others) != 1:
            raise ValueError(
                f"scores for {self!r} must be a tensor or a pair (unary, transition), got {len(scores)} tensors"
            )
        (transition,) = others
        if not isinstance(transition, Tensor) or not transition.is_floating_point():
            kind = transition.dtype if isinstance(transition, Tensor) else type(transition).__name__
            raise TypeError(f"transition scores must be a floating-point torch.Tensor, got {kind}")
        wanted = (*unary.shape[:-2], *self._transition_shape)
        try:
            transition.expand(wanted)
        except RuntimeError:
            seen = f"got {tuple(transition.shape)}"
            raise ValueError(f"transition scores for {self!r} must broadcast to {wanted}, {seen}") from None

    def _bound(
        self,
        scores: Scores,  # shape: (*batch, length, n_tags), or a pair with (*batch, length - 1, n_tags, n_tags)
    ) -> tuple[Self, BoundScores]:
        """Flatten the batch, and force tag 0 with a score of 0 in padding."""
        unary, *others = as_tuple(scores)
        structure, bound = super()._bound(unary)
        structure = structure._with(has_transitions=bool(others))
        tensors, shape = bound.tensors, self._transition_shape
        if others:
            transition = others[0].expand(*bound.batch_shape, *shape).reshape(bound.n_rows, *shape)
            if structure.lengths is not None:
                is_padding = structure._is_padding(bound.scores)[:, 1:, None, None]
                transition = torch.where(is_padding, 0.0, transition)
            tensors = (*tensors, transition)
        return structure, BoundScores(structure, tensors, bound.batch_shape)

    def _best(self, rows: Scores) -> Tensor:
        return _best_path(*(tensor.double() for tensor in rows)) if self.has_transitions else rows.argmax(-1)

    def _best_k(self, bound: BoundScores, k: int) -> Tensor:
        return self._viterbi(bound.scores, k)

    def _viterbi(self, rows: Scores, k: int) -> Tensor:
        """Find the k best paths to each tag, position by position; without transitions, they are the same for all tags."""
        unary, *others = (tensor.double() for tensor in as_tuple(rows))
        transition = others[0] if others else unary.new_zeros(1, self.length - 1, 1, 1)
        best = unary[:, 0].unsqueeze(-1)  # shape: (n_rows, n_tags, n_ways), the scores of the best paths to each tag
        n_ways, pointers = [1], []
        for i in range(1, self.length):
            step = transition[:, i - 1].unsqueeze(2)  # shape: (n_rows, n_tags, 1, n_tags or 1)
            value, way = first_k((best.unsqueeze(-1) + step).flatten(1, 2), k, 1)
            best = value.transpose(1, 2) + unary[:, i].unsqueeze(-1)
            pointers.append(way.transpose(1, 2).expand(best.shape).flatten(1))
            n_ways.append(best.shape[-1])
        _, state = first_k(best.flatten(1), k, 1)  # shape: (n_rows, n_best), tag * n_ways + way
        tags = [state // n_ways.pop()]
        while pointers:
            state = pointers.pop().gather(1, state)
            tags.append(state // n_ways.pop())
        return torch.stack(tags[::-1], -1)

    def quadratic(
        self,
        flat: Tensor,  # shape: (n_rows, n_parts)
    ) -> tuple[Tensor, Tensor]:
        """The scores, and weights of 1, or of 0 for transitions that are not regularised."""
        linear, weights = super().quadratic(flat)
        if not self.regularise_transitions:
            weights[self.length * self.n_tags :] = 0
        return linear, weights

    def vectors(
        self,
        atoms: Tensor,  # shape: (n_atoms, length)
    ) -> Scores:
        """One-hot tags, (n_atoms, length, n_tags), and transitions if the scores have them; zeros for padding."""
        unary = super().vectors(atoms)
        if not self.has_transitions:
            return unary
        # A padded position has neither a tag nor a transition.
        return unary, unary[:, :-1].unsqueeze(-1) * unary[:, 1:].unsqueeze(-2)

    def parts(
        self,
        atoms: Tensor,  # shape: (n_atoms, length)
    ) -> Tensor | None:
        """The indices of the tags, and of the transitions if the scores have them: (n_atoms, length or 2 * length - 1)."""
        tags = super().parts(atoms)
        if not self.has_transitions or tags is None:
            return tags
        transitions = self._transitions(atoms, torch.zeros_like(atoms[:, 0])) + self.length * self.n_tags
        if self.lengths is not None:
            is_padding = self._is_padding(atoms)
            tags, transitions = (
                tags.masked_fill(is_padding, self._n_parts),
                transitions.masked_fill(is_padding[:, 1:], self._n_parts),
            )
        return torch.cat([tags, transitions], -1)

    def flow_lengths(self, n_rows: int, device: torch.device) -> Tensor | None:
        """The lengths, if the scores have transitions."""
        if not self.has_transitions:
            return None
        return torch.full((n_rows,), self.length, device=device) if self.lengths is None else self.lengths.to(device)

    def score(
        self,
        scores: Scores,  # shape: (n_rows, length, n_tags), or a pair with (n_rows, length - 1, n_tags, n_tags)
        atoms: Tensor,  # shape: (n_atoms, length)
        row: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """The score of each atom, computed without one-hot vectors: (n_atoms,)."""
        unary, *others = as_tuple(scores)
        total = super().score(unary, atoms, row)
        for transition in others:
            terms = transition.reshape(-1)[self._transitions(atoms, row)]
            if self.lengths is not None:
                terms = torch.where(self.select(row)._is_padding(atoms)[:, 1:], 0.0, terms)
            total = total + terms.sum(-1)
        return total

    def marginals(
        self,
        atoms: Tensor,  # shape: (n_atoms, length)
        probs: Tensor,  # shape: (n_atoms,)
        segments: Segments,
    ) -> Scores:
        """The probability of each tag, and of each transition if the scores have them."""
        unary = super().marginals(atoms, probs, segments)
        if not self.has_transitions:
            return unary
        mass = probs.unsqueeze(-1).expand(len(atoms), self.length - 1)
        if self.lengths is not None:
            mass = torch.where(self.select(segments.row)._is_padding(atoms)[:, 1:], 0.0, mass)
        dense = probs.new_zeros(segments.n_rows, *self._transition_shape)
        flat = dense.reshape(-1).index_put((self._transitions(atoms, segments.row),), mass, accumulate=True)
        return unary, flat.view(dense.shape)

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms, length)
    ) -> Tensor:
        """Whether all tags are from 0 to n_tags - 1, and 0 for padding: (n_atoms,)."""
        return self._is_in_range(atoms)

    @property
    def has_unique_mean(self) -> bool:
        """Not if there are transitions that are not regularised."""
        return self.regularise_transitions or not self.has_transitions

    def facets(self, device: torch.device) -> Facets:
        """None: tags and transitions that are not negative and agree with each other are the mean of sequences."""
        return Facets.none(self._n_parts, device)

    def pull(
        self,
        mean: Scores,  # shape: (n_rows, length, n_tags), or a pair with (n_rows, length - 1, n_tags, n_tags)
    ) -> Decomposition:
        """Split mean vectors into sequences in the order of their first different tag, in closed form."""
        tags, *others = as_tuple(mean)
        is_padding = None if self.lengths is None else self._is_padding(tags)
        return pull_chain(tags, others[0] if others else None, is_padding)

    def potentials(
        self,
        scores: Scores,  # shape: (n_rows, length, n_tags), or a pair with (n_rows, length - 1, n_tags, n_tags)
    ) -> Potentials:
        """One choice for each position, with pairwise scores if there are transitions."""
        return Potentials(*as_tuple(scores))

    def choice_marginals(
        self,
        choices: Tensor,  # shape: (n_rows, length, n_tags)
        pairs: Tensor | None,  # shape: (n_rows, length - 1, n_tags, n_tags)
        scores: Scores,
    ) -> Scores:
        """The probabilities of tags, and of transitions if the scores have them; 0 for padding."""
        if self.has_transitions and pairs is None:
            pairs = choices[:, 1:].unsqueeze(-1)  # of a single tag
        if self.lengths is not None:
            is_padding = self._is_padding(choices)
            choices = choices.masked_fill(is_padding.unsqueeze(-1), 0.0)
            pairs = None if pairs is None else pairs.masked_fill(is_padding[:, 1:, None, None], 0.0)
        return choices if pairs is None else (choices, pairs)

    def _transitions(self, atoms: Tensor, row: Tensor) -> Tensor:
        """The positions of each atom's transitions in the flattened scores: (n_atoms, length - 1)."""
        position = row.unsqueeze(-1) * (self.length - 1) + torch.arange(self.length - 1, device=atoms.device)
        return (position * self.n_tags + atoms[:, :-1]) * self.n_tags + atoms[:, 1:]


def _are_few_tags(unary: Tensor, _transition: Tensor) -> bool:
    """At most `MOST_TAGS` tags."""
    from sparsum.kernels.viterbi import MOST_TAGS

    return unary.shape[-1] <= MOST_TAGS


def _in_one_launch(unary: Tensor, transition: Tensor) -> Tensor:
    from sparsum.kernels import viterbi

    return viterbi.best_path(unary, transition)


@kernels.operation("best_path", kernel=_in_one_launch, takes=_are_few_tags)
def _best_path(
    unary: Tensor,  # shape: (n_rows, length, n_tags)
    transition: Tensor,  # shape: (n_rows, length - 1, n_tags, n_tags)
) -> Tensor:
    """The best path, by the Viterbi algorithm with as few operations as possible for each position: (n_rows, length)."""
    if len(unary) == 0:
        return torch.zeros(unary.shape[:2], dtype=torch.int64, device=unary.device)
    first, *others = unary.unbind(1)
    best, pointers = first, []
    for score, step in zip(others, transition.unbind(1), strict=True):
        value, way = (best.unsqueeze(-1) + step).max(1)
        best = value + score
        pointers.append(way)
    tags = [best.argmax(1, keepdim=True)]
    while pointers:
        tags.append(pointers.pop().gather(1, tags[-1]))
    return torch.cat(tags[::-1], 1)
