"""The interface of all structures, and the door for a user's own."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsum.segments import Segments
from sparsum.structures.lawler import kbest
from sparsum.structures.scores import BoundScores, Scores, as_tuple, divided, flatten, masked, unflatten
from sparsum.tensors import at_least_float32


class Potentials(NamedTuple):
    """The scores of a chain of choices: of each choice, and of each pair of neighbouring choices."""

    unary: Tensor  # shape: (n_rows, length, n_choices)
    pairwise: Tensor | None = None  # shape: (n_rows, length - 1, n_choices, n_choices)


class BitCounts(NamedTuple):
    """Which bit vectors a structure consists of: all those with at most, or exactly, so many ones."""

    most: int
    is_exact: bool = False
    is_symmetric: bool = True  # whether SparseMAP scores both states of a bit

    def is_free(self, n: int) -> bool:
        """Whether all vectors of n bits are meant."""
        return self.most == n and not self.is_exact


class AbstractStructure(ABC):
    r"""A finite set of assignments z, each with a vector :math:`a_z`; scores t give z the score :math:`a_z^\top t`.

    An assignment is handed around as a compact *atom*: for one of many categories, say, its index and not its one-hot
    vector. A structure finds the atom with the best score (`argmax`), the k best ones (`topk`), and the vectors behind
    atoms (`vectors`).

    **Required.** For a structure of your own, `argmax` is enough, and `vectors` where an atom is not its own vector.
    A score of -inf forbids a part: `argmax` never returns an assignment that uses a forbidden part while there is one that
    does not. If every assignment is forbidden, it returns any assignment of the structure, never something else: the
    library sees that it uses a forbidden part, and reports the row. (0 * -inf is NaN, which the `torch.where` below
    avoids.) Two structures that hold the same assignments should be equal, which a frozen dataclass gives for free.

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

    **Optional.** Each of these opens more of the library; `sparsum.testing.check_structure` verifies what is declared.

    - `score_shape`, the shape of one example's scores: they are then checked, and may have several dimensions.
    - `log_count`: divergences to `sparsum.UniformOver`, and the estimators that list all assignments.
    - `is_fixed_size`: all vectors are 0/1 with the same number of ones. The k-best search then branches on the parts of an
      assignment alone, and not on all parts: for 1,600 parts of which 40 are used, 40 times fewer calls of `argmax`.
      `group_size` says more: exactly one part of each group of consecutive parts is used.
    - `potentials`, for assignments that are a chain of choices, each depending on the one before it at most: brings
      `sparsum.Gibbs`, every sampling estimator and every bound. `choices_to_atoms` and `atoms_to_choices` where an atom is
      not the tensor of its choices; `has_free_choices` if the choices do not depend on each other, for relaxations.
    - `log_partition` and `sample`, for other structures that can be summed over and sampled from: bring the same, without
      `SumAndSample` and `UnorderedSet`, which need a chain.
    - `bit_counts`, for bit vectors of limited size: the closed forms of SparseMAP.
    - `contains`: whether atoms are assignments at all, for the checks of `log_prob`.

    A subclass that changes the assignments, by another `argmax`, `topk`, `kbest`, `vectors`, `score` or `log_count`, loses
    the optional methods of its parent that it does not define itself: they speak of the parent's assignments.

    Batches: `argmax` and `topk` take scores of shape (*batch, *score_shape). The other methods take *rows*, one flattened
    batch dimension, and atoms that are packed, of shape (n_atoms, *event_shape), with the row of each.
    """

    #: Whether all vectors are 0/1 with the same number of ones, so that none contains another.
    is_fixed_size: bool = False
    #: Whether every combination of choices is an assignment, and none has `Potentials.pairwise` scores.
    has_free_choices: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Drop the optional methods that speak of a parent's assignments, if this class has others."""
        super().__init_subclass__(**kwargs)
        if not any(name in vars(cls) for name in _MEANING):
            return
        for names in _OPTIONAL:
            if not any(name in vars(cls) for name in names):
                for name in names:
                    if getattr(cls, name) is not getattr(AbstractStructure, name):
                        setattr(cls, name, vars(AbstractStructure)[name])

    @property
    def score_shape(self) -> tuple[int, ...]:
        """The shape of one example's scores; if it is not defined, scores have one dimension of any size."""
        raise TypeError(f"{self!r} has no score_shape: define it, or pass random_scores to check_structure")

    @property
    def score_ndim(self) -> int:
        """The number of trailing dimensions of the scores that belong to one example."""
        with contextlib.suppress(TypeError):
            return len(self.score_shape)
        return 1

    @property
    def group_size(self) -> int | None:
        """If every assignment uses exactly one part of each group of consecutive parts, the number of parts in a group."""
        return None

    @abstractmethod
    def argmax(
        self,
        scores: Scores,  # shape: (*batch, *score_shape)
    ) -> Tensor:
        """The atom with the best score of each example, any assignment if all are forbidden: (*batch, *event_shape)."""

    def topk(
        self,
        scores: Scores,  # shape: (*batch, *score_shape)
        k: int,
    ) -> Tensor:
        """The k best atoms of each example, best first: (*batch, min(k, number of assignments), *event_shape).

        Where -inf forbids so many assignments that fewer than k are left, atoms with a score of -inf fill the rest. An
        example that has fewer assignments than others in its batch repeats its last atom instead; `kbest` tells.

        By default they are found by k calls of `argmax`, each for several problems per example: this needs vectors of 0
        and 1, and an `argmax` that takes float64 and honours -inf. One call has as many problems per example as an
        assignment has parts in use if ``is_fixed_size``, else as there are parts.
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

        An atom is allowed unless it fills a row that has fewer: then it has a score of -inf, or repeats the one before it.
        """
        atoms = self.topk(scores, k)
        n_rows, n_best = atoms.shape[:2]
        row = torch.arange(n_rows, device=atoms.device).repeat_interleave(n_best, output_size=n_rows * n_best)
        is_allowed = (self.score(scores, atoms.flatten(0, 1), row) > -torch.inf).reshape(n_rows, n_best)
        is_equal = (atoms[:, 1:] == atoms[:, :-1]).reshape(n_rows, n_best - 1, math.prod(atoms.shape[2:])).all(-1)
        return atoms, torch.cat([is_allowed[:, :1], is_allowed[:, 1:] & ~is_equal], 1)

    def vectors(
        self,
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
    ) -> Scores:
        """The vectors of atoms, (n_atoms, *score_shape); by default an atom is its own vector."""
        return atoms

    def log_count(self) -> float:
        """Logarithm of the number of assignments, if it is known: infinite by default."""
        return math.inf

    def check_scores(self, scores: Scores) -> None:
        """Raise a TypeError or ValueError unless the scores have a dtype and shape that fits."""
        if not isinstance(scores, Tensor):
            raise TypeError(f"scores for {self!r} must be a torch.Tensor, got {type(scores).__name__}")
        if not scores.is_floating_point():
            raise TypeError(f"scores must have a floating-point dtype, got {scores.dtype}; call scores.float() first")
        if scores.ndim < self.score_ndim:
            raise ValueError(
                f"scores for {self!r} must have at least {self.score_ndim} dimension(s), got {tuple(scores.shape)}"
            )
        with contextlib.suppress(TypeError):  # a structure need not tell its shape
            wanted = tuple(self.score_shape)
            if tuple(scores.shape[scores.ndim - len(wanted) :]) != wanted:
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
            mask: True where a part is allowed; the others get -inf. For scores that are a tuple, a tuple of masks, some of
                which may be None.
            temperature: divides the scores; a positive number, or one per example.
        """
        self.check_scores(scores)
        if mask is not None:
            scores = masked(scores, mask)
            self.check_scores(scores)
        bound = self._bind(scores)
        return bound if temperature is None else divided(bound, temperature)

    def _bind(self, scores: Scores) -> BoundScores:
        """Flatten the batch of scores that have been checked."""
        (tensor,) = as_tuple(scores)
        n_batch = tensor.ndim - self.score_ndim
        return BoundScores(self, (tensor.reshape(-1, *tensor.shape[n_batch:]),), tensor.shape[:n_batch])

    def select(
        self,
        index: Tensor,  # shape: (n,), int64
    ) -> AbstractStructure:
        """The structure for some of its rows: itself, unless it depends on the example."""
        return self

    def padding(self) -> Tensor | None:
        """Which parts of each row are padding, without meaning: (n_rows, n_parts), or None if there are no such parts."""
        return None

    def quadratic(
        self,
        flat: Tensor,  # shape: (n_rows, n_parts)
    ) -> tuple[Tensor, Tensor]:
        r"""The linear term b, (n_rows, n_parts), and weights w, (n_parts,), of SparseMAP's objective.

        SparseMAP maximises :math:`b^\top \mu - \frac12 \sum_i w_i \mu_i^2` over the mean vectors. By default b are the
        scores and all weights are 1, which is the projection of the scores.
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
        # 0 * -inf is 0: a forbidden part that is not used
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
        """Optional: which atoms are assignments, allowed or not: (n,). By default nothing is known against any."""
        return torch.ones(len(atoms), dtype=torch.bool, device=atoms.device)

    def potentials(
        self,
        scores: Scores,  # shape: (n_rows, *score_shape)
    ) -> Potentials:
        """Optional: the scores of a chain of choices, which add up to the scores of assignments; differentiable.

        Whatever is chosen, `score` is the sum of the unary scores of all choices and the pairwise ones of neighbours. What
        is not an assignment has a score of -inf.
        """
        raise NotImplementedError(f"{self!r} is not a chain of choices: it defines no potentials")

    def choices_to_atoms(
        self,
        choices: Tensor,  # shape: (*lead, length), int64
        dtype: torch.dtype,
    ) -> Tensor:
        """Optional: the atoms that make these choices, (*lead, *event_shape); by default the choices themselves.

        The dtype is that of the scores, for atoms that are floating-point.
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
        """Optional: the mean vectors when choices, and pairs of neighbours, have these probabilities; differentiable.

        By default the adjoint of `potentials`, which is the same; define it where that is slow.
        """
        return adjoint(self.potentials, scores, Potentials(choices, pairs))

    def log_partition(
        self,
        scores: Scores,  # shape: (n_rows, *score_shape)
    ) -> Tensor:
        r"""Optional: :math:`\log \sum_z \exp(a_z^\top t)` of each row, twice differentiable, -inf for what is forbidden.

        Scores are in float64. With ``group_size``, the exponentials of each group add up to 1, so that nothing overflows.
        """
        raise NotImplementedError(f"{self!r} cannot be summed over: it defines no log_partition")

    def sample(
        self,
        scores: Scores,  # shape: (n_rows, *score_shape)
        n: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        r"""Optional: n independent assignments of each row, with probabilities :math:`\propto \exp(a_z^\top t)`.

        Scores are those of `log_partition`, without gradient. Returns atoms of shape (n, n_rows, *event_shape).
        """
        raise NotImplementedError(f"{self!r} cannot be sampled from: it defines no sample")

    def bit_counts(self) -> BitCounts | None:
        """Optional: which bit vectors the structure consists of, if atoms are all bit vectors of limited size."""
        return None

    @property
    def is_chain(self) -> bool:
        """Whether assignments are a chain of choices: `potentials` is defined."""
        return type(self).potentials is not AbstractStructure.potentials

    @property
    def has_partition(self) -> bool:
        """Whether `sparsum.Gibbs` can be over the structure: it is a chain, or defines `log_partition` and `sample`."""
        kind = type(self)
        is_summed = kind.log_partition is not AbstractStructure.log_partition
        return self.is_chain or (is_summed and kind.sample is not AbstractStructure.sample)


#: What says which assignments a structure has, and what they score.
_MEANING = ("argmax", "topk", "kbest", "vectors", "score", "log_count")
#: What is lost, each group together, when a subclass changes that and does not define any of the group.
_OPTIONAL = (
    ("potentials", "choices_to_atoms", "atoms_to_choices", "choice_marginals", "has_free_choices"),
    ("log_partition", "sample"),
    ("bit_counts",),
    ("contains",),
)


def adjoint(function: Any, scores: Scores, cotangents: Potentials) -> Scores:
    """The adjoint of an affine function of the scores, applied to cotangents and differentiable in them."""
    with torch.inference_mode(False), torch.enable_grad():
        leaves = tuple(tensor.detach().clone().requires_grad_() for tensor in as_tuple(scores))
        outputs = function(leaves if isinstance(scores, tuple) else leaves[0])
        used = [
            (output, cotangent.to(output.dtype))
            for output, cotangent in zip(outputs, cotangents, strict=True)
            if output is not None and cotangent is not None and output.requires_grad
        ]
        outputs, gradients = zip(*used, strict=True)
        found = torch.autograd.grad(outputs, leaves, gradients, create_graph=True, materialize_grads=True)
    if not torch.is_grad_enabled():
        found = tuple(tensor.detach() for tensor in found)
    return found if isinstance(scores, tuple) else found[0]
