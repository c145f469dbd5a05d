"""The interface of all structures, built-in and custom."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparsum.arguments import check_floating
from sparsum.segments import Segments
from sparsum.structures.declarations import BitCounts, Potentials, adjoint, reset_stale
from sparsum.structures.lawler import kbest
from sparsum.structures.pulling import Decomposition, Facets, Violated, pull
from sparsum.structures.scores import BoundScores, Scores, as_tuple, divided, flatten, masked, unflatten
from sparsum.tensors import at_least_float32

# Sums of many such scores do not overflow.
_LOWEST = -1e290


class AbstractStructure(ABC):
    r"""A finite set of assignments z, each with a vector :math:`a_z`; scores t give z the score :math:`a_z^\top t`.

    An assignment is represented by a compact *atom*: a category, for example, by its index instead of its one-hot vector. A
    structure finds the atom with the best score (`argmax`), the k best atoms (`topk`), and the vectors of atoms
    (`vectors`).

    **Required.** A custom structure must define `argmax`, and `vectors` if an atom is not its own vector. A score of -inf
    forbids a part: `argmax` must not return an assignment that uses a forbidden part unless all assignments do. In that
    case it must still return some assignment of the structure: the library detects that it uses a forbidden part and
    reports the row. (0 * -inf is NaN, which the `torch.where` below avoids.) Two structures with the same assignments should
    compare equal; a frozen dataclass does this automatically.

    >>> import dataclasses, math
    >>> @dataclasses.dataclass(frozen=True)
    ... class AtMostOne(AbstractStructure):  # of n bits
    ...     n: int
    ...     @property
    ...     def score_shape(self):
    ...         return (self.n,)
    ...     def argmax(self, scores):
    ...         members = torch.cat([torch.zeros(1, self.n), torch.eye(self.n)]).to(scores)
    ...         values = torch.where(members > 0, scores.unsqueeze(-2), 0.0).sum(-1)
    ...         return members[values.argmax(-1)]
    ...     def log_count(self):
    ...         return math.log(self.n + 1)
    >>> import sparsum as sp
    >>> q = sp.topk_sparsemax(torch.tensor([[0.5, -torch.inf, 0.2]]), AtMostOne(3), k=4)
    >>> q.atoms
    tensor([[1., 0., 0.],
            [0., 0., 1.],
            [0., 0., 0.]])
    >>> q.probs
    tensor([0.6000, 0.3000, 0.1000])

    **Optional.** Each of these enables more of the library; `sparsum.testing.check_structure` verifies the declarations.

    - `score_shape`, the shape of one example's scores: enables shape checks and scores with several dimensions.
    - `log_count`: enables divergences to `sparsum.UniformOver`, and the estimators that enumerate all assignments.
    - `is_fixed_size`: all vectors are 0/1 with the same number of ones. The k-best search then only branches on the parts
      that an assignment uses: with 1,600 parts of which 40 are used, this takes 40 times fewer calls of `argmax`.
      `group_size`, or `group_sizes` for scores of several tensors, is stricter: exactly one part of each group of
      consecutive parts is used. SparseMAP then stays accurate if scores of different groups differ by a lot.
    - `potentials`, for assignments that are a chain of choices, each depending at most on the previous one: enables
      `sparsum.Gibbs`, all sampling estimators and all bounds. Define `choices_to_atoms` and `atoms_to_choices` if an atom is
      not the tensor of its choices, and `has_free_choices` if the choices are independent, which enables relaxations.
    - `log_partition` and `sample`, for other structures that can be summed over and sampled from: enable the same, except
      `SumAndSample` and `UnorderedSet`, which require a chain.
    - `most_parts`, for 0/1 vectors, the largest number of parts in use: makes SparseMAP over many parts more accurate.
    - `bit_counts`, for bit vectors of limited size: enables the closed forms of SparseMAP.
    - `facets`, the inequalities that describe the mean vectors: makes `sparsum.solvers.Pulled` fast.
    - `contains`, whether atoms are assignments: enables the checks of `log_prob`.

    A subclass that changes the assignments by overriding `argmax`, `topk`, `kbest`, `vectors`, `score` or `log_count` does
    not inherit the optional methods of its parent, because they describe the parent's assignments. It must define them
    again. With another `argmax`, `topk` is that of `AbstractStructure` unless it is defined as well.

    Batches: `argmax` and `topk` take scores of shape (*batch, *score_shape). The other methods take *rows*, a single
    flattened batch dimension, and packed atoms of shape (n_atoms, *event_shape) with the row of each atom.
    """

    #: Whether all vectors are 0/1 with the same number of ones, so that none contains another.
    is_fixed_size: bool = False
    #: Whether every combination of choices is an assignment, without `Potentials.pairwise` scores.
    has_free_choices: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Reset what is inherited from a structure with other assignments, and describes these."""
        super().__init_subclass__(**kwargs)
        reset_stale(cls, AbstractStructure)

    @property
    def score_shape(self) -> tuple[int, ...]:
        """The shape of one example's scores; if undefined, scores have one dimension of any size."""
        raise TypeError(f"{self!r} has no score_shape: define it, or pass random_scores to check_structure")

    @property
    def score_ndim(self) -> int:
        """The number of trailing dimensions of the scores that belong to one example."""
        wanted = self._wanted_shape()
        return 1 if wanted is None else len(wanted)

    def _wanted_shape(self) -> tuple[int, ...] | None:
        """`score_shape`, or None if it is undefined; torch 2.8 does not trace ``contextlib.suppress``."""
        try:
            return tuple(self.score_shape)
        except TypeError:
            return None

    #: Whether `argmax` adds up scores of parts that its result does not use, as a search with contractions or prices does.
    #: Where these are large, they hide small differences of others.
    adds_unused_scores: ClassVar[bool] = False

    @property
    def most_parts(self) -> int | None:
        """Optional, for 0/1 vectors: the largest number of parts that an assignment uses; None if it is unknown."""
        return None

    @property
    def group_size(self) -> int | None:
        """The number of parts per group, if assignments use exactly one part of each group of consecutive parts."""
        return None

    @property
    def group_sizes(self) -> tuple[int, ...] | None:
        """The `group_size` of each tensor of scores, if assignments use exactly one part of each group of each.

        Override it for scores with several kinds of parts, such as tags and transitions.
        """
        return None if self.group_size is None else (self.group_size,)

    @abstractmethod
    def argmax(
        self,
        scores: Scores,  # shape: (*batch, *score_shape)
    ) -> Tensor:
        """The best atom of each example, or any assignment if all are forbidden: (*batch, *event_shape)."""

    def topk(
        self,
        scores: Scores,  # shape: (*batch, *score_shape)
        k: int,
    ) -> Tensor:
        """The k best atoms of each example, best first: (*batch, min(k, number of assignments), *event_shape).

        If fewer than k assignments are allowed, atoms with a score of -inf fill the rest. An example that has fewer
        assignments than others in its batch repeats its last atom instead; `kbest` returns which atoms are allowed.

        The default implementation calls `argmax` k times, each time for several problems per example. It requires 0/1
        vectors and an `argmax` that accepts float64 and respects -inf. The number of problems per example is the number of
        parts that an assignment uses if ``is_fixed_size``, and the number of all parts otherwise.
        """
        bound = self.bind(scores)
        atoms = kbest(bound, k)
        return atoms.reshape(*bound.batch_shape, *atoms.shape[1:])

    def kbest(
        self,
        scores: Scores,  # shape: (n_rows, *score_shape)
        k: int,
    ) -> tuple[Tensor, Tensor]:
        """The k best atoms of each row, (n_rows, n_best, *event_shape), and which are allowed, (n_rows, n_best).

        If a row has fewer atoms, the rest is filled with atoms that are not allowed: they have a score of -inf, or repeat
        the previous atom.
        """
        atoms = self.topk(scores, k)
        n_rows, n_best = atoms.shape[:2]
        row = torch.arange(n_rows, device=atoms.device).repeat_interleave(n_best, output_size=n_rows * n_best)
        # Sums in float64 of scores that are finite stay finite.
        wide = [
            torch.where(part == -torch.inf, part, part.clamp_min(_LOWEST)) for part in map(Tensor.double, as_tuple(scores))
        ]
        values = self.score(tuple(wide) if isinstance(scores, tuple) else wide[0], atoms.flatten(0, 1), row)
        is_allowed = (values > -torch.inf).reshape(n_rows, n_best)
        is_equal = (atoms[:, 1:] == atoms[:, :-1]).reshape(n_rows, n_best - 1, math.prod(atoms.shape[2:])).all(-1)
        return atoms, torch.cat([is_allowed[:, :1], is_allowed[:, 1:] & ~is_equal], 1)

    def vectors(
        self,
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
    ) -> Scores:
        """The vectors of atoms: (n_atoms, *score_shape). By default an atom is its own vector."""
        return atoms

    def log_count(self) -> float:
        """Log of the number of assignments; the default, infinity, means unknown."""
        return math.inf

    def check_scores(self, scores: Scores) -> None:
        """Raise a TypeError or ValueError unless the dtype and shape of the scores match the structure."""
        if not isinstance(scores, Tensor):
            raise TypeError(f"scores for {self!r} must be a torch.Tensor, got {type(scores).__name__}")
        check_floating("scores", scores)
        wanted = self._wanted_shape()
        n_dims = 1 if wanted is None else len(wanted)
        if scores.ndim < n_dims:
            raise ValueError(f"scores for {self!r} must have at least {n_dims} dimension(s), got {tuple(scores.shape)}")
        if wanted is not None and scores.shape[scores.ndim - n_dims :] != wanted:
            shape = ", ".join(["*batch", *map(str, wanted)])
            raise ValueError(f"scores for {self!r} must have shape ({shape}), got {tuple(scores.shape)}")

    def bind(
        self,
        scores: Scores,  # shape: (*batch, *score_shape)
        *,
        mask: Scores | None = None,  # shape: broadcasts to that of scores
        temperature: float | Tensor | None = None,  # shape: broadcasts to (*batch,)
    ) -> BoundScores:
        """Check the scores, flatten their batch into rows, and bind them to the structure.

        Args:
            scores: one score per part.
            mask: True where a part is allowed; scores of other parts are set to -inf. If the scores are a tuple, a tuple of
                masks; each of them may be None.
            temperature: divides the scores; a positive number, or one per example.
        """
        self.check_scores(scores)
        if mask is not None:
            scores = masked(scores, mask)
            self.check_scores(scores)
        bound = self._bind(scores)
        return bound if temperature is None else divided(bound, temperature)

    def _bind(self, scores: Scores) -> BoundScores:
        """Flatten the batch of scores that are already checked."""
        (tensor,) = as_tuple(scores)
        n_batch = tensor.ndim - self.score_ndim
        return BoundScores(self, (tensor.reshape(-1, *tensor.shape[n_batch:]),), tensor.shape[:n_batch])

    def select(
        self,
        index: Tensor,  # shape: (n,), int64
    ) -> AbstractStructure:
        """The structure of the given rows; ``self`` unless the structure depends on the example."""
        return self

    def padding(self) -> Tensor | None:
        """Which parts of each row are padding: (n_rows, n_parts), or None if there is no padding."""
        return None

    def quadratic(
        self,
        flat: Tensor,  # shape: (n_rows, n_parts)
    ) -> tuple[Tensor, Tensor]:
        r"""The linear term b, (n_rows, n_parts), and weights w, (n_parts,), of SparseMAP's objective.

        SparseMAP maximises :math:`b^\top \mu - \frac12 \sum_i w_i \mu_i^2` over the mean vectors. By default b is the
        scores and all weights are 1, so the solution is the Euclidean projection of the scores.
        """
        return flat, torch.ones(flat.shape[-1], dtype=flat.dtype, device=flat.device)

    def score(
        self,
        scores: Scores,  # shape: (n_rows, *score_shape)
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
        row: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """The score of each atom under the scores of its row, differentiable: (n_atoms,)."""
        vectors = flatten(self.vectors(atoms))
        flat = at_least_float32(flatten(scores))
        # A forbidden part that is not used contributes 0; 0 * -inf would be NaN.
        return torch.where(vectors == 0, 0.0, vectors.to(flat.dtype) * flat[row]).sum(-1)

    def marginals(
        self,
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
        probs: Tensor,  # shape: (n_atoms,)
        segments: Segments,
    ) -> Scores:
        r"""The mean vector of each row, :math:`\sum_z p(z) a_z`: (n_rows, *score_shape)."""
        vectors = self.vectors(atoms)
        flat = flatten(vectors).to(probs.dtype)
        return unflatten(segments.sum(flat * probs.unsqueeze(-1)), like=vectors)

    def contains(
        self,
        atoms: Tensor,  # shape: (n, *event_shape), one for each row of the structure
    ) -> Tensor:
        """Optional: whether atoms are assignments, allowed or forbidden: (n,). By default always True.

        Required beside `log_partition`; for a chain, choices that are not an assignment have a score of -inf.
        """
        return torch.ones(len(atoms), dtype=torch.bool, device=atoms.device)

    def potentials(
        self,
        scores: Scores,  # shape: (n_rows, *score_shape)
    ) -> Potentials:
        """Optional: scores of a chain of choices that sum to the scores of assignments; differentiable.

        For every assignment, `score` is the sum of the unary scores of its choices and the pairwise scores of neighbouring
        choices. Combinations of choices that are not assignments must have a score of -inf.
        """
        raise NotImplementedError(f"{self!r} is not a chain of choices: it does not define potentials")

    def choices_to_atoms(
        self,
        choices: Tensor,  # shape: (*lead, length), int64
        dtype: torch.dtype,
    ) -> Tensor:
        """Optional: convert choices to atoms, (*lead, *event_shape); by default the choices themselves.

        ``dtype`` is the dtype of the scores, for floating-point atoms.
        """
        return choices

    def atoms_to_choices(
        self,
        atoms: Tensor,  # shape: (*lead, *event_shape)
    ) -> Tensor:
        """Optional: the inverse of `choices_to_atoms`: (*lead, length), int64."""
        return atoms.long()

    def choice_marginals(
        self,
        choices: Tensor,  # shape: (n_rows, length, n_choices)
        pairs: Tensor | None,  # shape: (n_rows, length - 1, n_choices, n_choices)
        scores: Scores,  # shape: (n_rows, *score_shape)
    ) -> Scores:
        """Optional: the mean vectors, given the probabilities of choices and of neighbouring pairs; differentiable.

        The default applies the adjoint of `potentials`, which gives the same result; override it for speed.
        """
        return adjoint(self.potentials, scores, Potentials(choices, pairs))

    def parts(
        self,
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
    ) -> Tensor | None:
        """Optional, for 0/1 vectors: the indices of the ones among all parts, (n_atoms, n), to save memory and time.

        The number of parts as an index stands for nothing, so that all atoms have the same number of indices. If the scores
        are a tuple, the parts of the second follow those of the first.
        """
        return None

    def flow_lengths(
        self,
        n_rows: int,
        device: torch.device,
    ) -> Tensor | None:
        """Optional: the length of each row, (n_rows,), if the mean vectors are flows along a chain.

        The parts are then the choices at all positions, (length, n_choices), followed by all pairs of neighbouring choices,
        (length - 1, n_choices, n_choices).
        """
        return None

    def facets(self, device: torch.device) -> Facets:
        """Optional, for 0/1 vectors: the inequalities that describe the mean vectors, beside those of the parts."""
        raise NotImplementedError(f"{self!r} does not define the facets of its mean vectors")

    def violated(
        self,
        points: Scores,  # shape: (n_rows, *score_shape)
    ) -> Violated:
        """Optional: inequalities that points violate though they satisfy all `facets`, if these are not complete."""
        raise NotImplementedError(f"{self!r} does not define violated, but its facets are not complete")

    def closest(
        self,
        scores: Scores,  # shape: (n_rows, *score_shape), float64
    ) -> Tensor | None:
        """Optional: SparseMAP's mean vectors in closed form, (n_rows, n_parts), if there is one.

        Rows contain neither NaN nor +inf, and allow at least one assignment.
        """
        return None

    def pull(
        self,
        mean: Scores,  # shape: (n_rows, *score_shape), float64
    ) -> Decomposition:
        """Split mean vectors into assignments, continuously: see docs/pulling.md. The default requires `facets`."""
        return pull(self, mean, self.facets(flatten(mean).device))

    def log_partition(
        self,
        scores: Scores,  # shape: (n_rows, *score_shape)
    ) -> Tensor:
        r"""Optional: :math:`\log \sum_z \exp(a_z^\top t)` of each row, twice differentiable; -inf if all z are forbidden.

        `sparsum.Gibbs` calls it with float64 scores. If ``group_size`` is defined, it has subtracted the logsumexp of each
        group before, so that nothing overflows. Define `contains` as well: values that are not assignments would otherwise
        have a probability.
        """
        raise NotImplementedError(f"{self!r} cannot be summed over: it does not define log_partition")

    def sample(
        self,
        scores: Scores,  # shape: (n_rows, *score_shape)
        n: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        r"""Optional: draw n independent assignments per row, with probabilities :math:`\propto \exp(a_z^\top t)`.

        Scores are as for `log_partition`, but detached. Returns atoms of shape (n, n_rows, *event_shape).
        """
        raise NotImplementedError(f"{self!r} cannot be sampled from: it does not define sample")

    def bit_counts(self) -> BitCounts | None:
        """Optional: the number of ones, if the assignments are all bit vectors with a limited number of ones."""
        return None

    @property
    def has_unique_mean(self) -> bool:
        """Whether SparseMAP's mean vector is unique: all weights of `quadratic` are positive."""
        return True

    @property
    def can_pull(self) -> bool:
        """Whether `pull` is defined, directly or by `facets`."""
        kind = type(self)
        return kind.facets is not AbstractStructure.facets or kind.pull is not AbstractStructure.pull

    @property
    def is_chain(self) -> bool:
        """Whether assignments are a chain of choices, that is, `potentials` is defined."""
        return type(self).potentials is not AbstractStructure.potentials

    @property
    def has_partition(self) -> bool:
        """Whether `sparsum.Gibbs` supports the structure: it is a chain, or defines `log_partition` and `sample`."""
        kind = type(self)
        is_summed = kind.log_partition is not AbstractStructure.log_partition
        return self.is_chain or (is_summed and kind.sample is not AbstractStructure.sample)
