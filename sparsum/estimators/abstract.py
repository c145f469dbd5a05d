"""The common signature of all estimators, and the base class for custom ones."""

from __future__ import annotations

import enum
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from sparsum.arguments import check_generator, check_int
from sparsum.distribution.loss import Loss, check_loss
from sparsum.estimators.problem import Problem
from sparsum.estimators.revalued import Revalued
from sparsum.estimators.uncompiled import leave_uncompiled
from sparsum.inference import require_structure
from sparsum.structures import AbstractStructure, Scores


class Needs(enum.Enum):
    """What an estimator requires of a structure; see `sparsum.AbstractStructure` for how a custom structure provides it."""

    NOTHING = "any structure"
    LIST = "structures with few assignments"
    GIBBS = "structures that sparsum.Gibbs takes"
    CHAIN = "structures that are a chain of choices"
    FREE_CHOICES = "OneOf, Bits and Groups"
    BITS = "Bits"

    def is_met(self, structure: AbstractStructure) -> bool:
        """Whether a structure meets this requirement; for ``LIST``, the number of assignments is checked later."""
        if self is Needs.GIBBS:
            return structure.has_partition
        if self is Needs.CHAIN:
            return structure.is_chain
        is_free = structure.is_chain and structure.has_free_choices
        if self is Needs.BITS:
            counts = structure.bit_counts()
            return is_free and counts is not None and counts.is_free(structure.score_shape[-1])
        return is_free or self is not Needs.FREE_CHOICES


@dataclass(frozen=True)
class Estimate:
    """The result of an estimator.

    Args:
        surrogate: the quantity to minimise. Its value is ``value``, and its first derivative is the estimate of the
            gradient of the expected loss with respect to the scores and the parameters of the loss, plus the gradient of
            the estimator's own objective with respect to its learned parameters. Do not flip its sign: to maximise a
            reward, return the negative reward from the loss. Second derivatives of sampled surrogates are meaningless.
        value: the estimate of the expected loss, without a gradient. For `GumbelSoftmax` it is the loss of relaxed samples:
            to compare models, evaluate with `Dense`, or with `ScoreFunction`, which uses true samples.
        calls: the number of loss evaluations for each element of the batch, int64.
        distribution: the discrete distribution of z; its `entropy()` and divergences can be part of the objective.
    """

    surrogate: Tensor  # shape: (*batch,)
    value: Tensor  # shape: (*batch,)
    calls: Tensor  # shape: (*batch,)
    distribution: Distribution


class AbstractEstimator(torch.nn.Module, ABC):
    r"""Base class for estimators of :math:`\mathbb{E}_{z \sim q}[\ell(z)]` and its gradient, where scores t determine q.

    >>> import sparsum as sp
    >>> scores = torch.tensor([[1.0, 0.0, -1.0]], requires_grad=True)
    >>> estimate = sp.estimators.Sparse()(scores, sp.OneOf(3), lambda z, row: z.float())
    >>> (estimate.surrogate - 0.1 * estimate.distribution.entropy()).mean().backward()

    Every estimator is a module. Its learned parameters and counters are part of its ``state_dict()``, move with the model,
    and change only while ``training``; pass its ``parameters()`` to the optimiser. `torch.compile` does not compile
    estimators: compile the networks before the estimator and in the loss instead.

    To write your own, subclass this and define `estimate`, which works on the rows of the flattened batch, and `n_calls`;
    test it with `sparsum.testing.check_estimator`.

    >>> class Reinforce(AbstractEstimator):
    ...     def n_calls(self, structure):
    ...         return 1
    ...     def estimate(self, problem):
    ...         p = problem.gibbs()
    ...         atoms = problem.sample(p, 1)  # shape: (n_rows, 1, *event_shape)
    ...         losses, log_probs = problem.sample_losses(atoms), problem.log_probs(p, atoms)  # shape: (n_rows, 1)
    ...         surrogate = losses + losses.detach() * log_probs
    ...         return Estimate(surrogate.sum(1), losses.sum(1), problem.calls(1), p)
    >>> sp.testing.check_estimator(Reinforce(), draws=1000).counts["unbiased"]
    16
    """

    #: Whether the gradient of the surrogate is unbiased for the returned distribution.
    is_unbiased: bool = True
    #: Whether the loss receives float vectors instead of atoms, and must be differentiable in them.
    needs_relaxed_loss: bool = False
    #: What the estimator requires of a structure.
    needs: Needs = Needs.GIBBS
    #: Whether to check for rows without a distribution; costs one host-device synchronization.
    validate_args: bool = True

    #: See `forward`.
    __call__: Callable[..., Estimate]

    @abstractmethod
    def estimate(self, problem: Problem) -> Estimate:
        """Estimate all rows of a batch, with tensors of shape (n_rows,); the value of the surrogate is ignored."""

    @abstractmethod
    def n_calls(self, structure: AbstractStructure) -> int | None:
        """The number of loss evaluations for each element of a batch; None if it depends on the scores."""

    def forward(
        self,
        scores: Scores,  # shape: (*batch, *score_shape)
        structure: AbstractStructure,
        loss: Loss,
        *,
        context: Tensor | None = None,  # shape: (*batch, *features)
        mask: Scores | None = None,  # shape: broadcasts to that of scores
        temperature: float | Tensor | None = None,  # shape: broadcasts to (*batch,)
        generator: torch.Generator | None = None,
    ) -> Estimate:
        """Estimate the expected loss.

        Args:
            scores: one score per part of the structure; -inf forbids the part.
            structure: the set of assignments.
            loss: called as ``loss(z, row)`` with packed assignments and the row of each, (n,), or as ``loss(z)`` if it
                takes one argument; returns one number per assignment, (n,). If the estimator ``needs_relaxed_loss``, z
                are float vectors, (n, *score_shape), otherwise atoms; `sparsum.embed` accepts both. If the batch has
                several dimensions, ``row`` indexes the flattened batch.
            context: the input of learned baselines; it does not receive a gradient.
            mask: True where a part is allowed, equivalent to scores of -inf elsewhere; see `AbstractStructure.bind`.
            temperature: divides the scores; a positive number, or one per example. Relaxations have a separate
                temperature, which divides the perturbed log-probabilities.
            generator: the source of all randomness, on the device of the scores; by default torch's global generator.
                With ``chunk_size``, the loss may also draw from it.

        Raises:
            TypeError: if the estimator does not support the structure, the loss does not return a floating-point tensor,
                or ``generator`` is neither None nor a `torch.Generator`.
            ValueError: if shapes do not match, the loss does not return one number for each atom, a row contains NaN or
                +inf (sums over `OneOf` accept them) or is fully masked, or the loss is not differentiable where it must
                be.
        """
        self._check_structure(structure)
        check_loss("loss", loss)
        check_generator(generator)
        bound = structure.bind(scores, mask=mask, temperature=temperature)
        batch_shape = bound.batch_shape
        problem = Problem(
            bound=bound,
            loss=loss,
            context=_context_rows(context, batch_shape),
            generator=generator,
            name=type(self).__name__,
            validate_args=self.validate_args,
        )
        found = self.estimate(problem)
        _check_estimate(found, problem)
        value = found.value.detach().reshape(batch_shape)
        surrogate = found.surrogate.reshape(batch_shape)
        return Estimate(
            # Only the gradient of the surrogate is used, so its value is replaced by the estimate of the loss.
            surrogate=Revalued.apply(surrogate, value),
            value=value,
            calls=found.calls.reshape(batch_shape),
            distribution=found.distribution,
        )

    def extra_repr(self) -> str:
        """The constructor arguments, shown by print."""
        names = inspect.signature(type(self).__init__).parameters
        plain = {name: getattr(self, name, None) for name in names}
        return ", ".join(f"{name}={value}" for name, value in plain.items() if isinstance(value, bool | int | float | str))

    def _check_structure(self, structure: AbstractStructure) -> None:
        require_structure(structure)
        if not self.needs.is_met(structure):
            raise TypeError(
                f"{type(self).__name__} takes {self.needs.value}, got {structure!r}; "
                f"estimators for this structure: {', '.join(_takers(structure))}"
            )


# A compiled graph would read baselines after their update, and hide which tensors a loss depends on.
leave_uncompiled(AbstractEstimator, "forward")


def _check_estimate(found: Estimate, problem: Problem) -> None:
    """Check what `estimate` returned; only custom estimators can fail this."""
    if not isinstance(found, Estimate):
        raise TypeError(f"estimate of {problem.name} must return an Estimate, got {type(found).__name__}")
    for name in ("surrogate", "value", "calls"):
        shape = tuple(getattr(found, name).shape)
        if math.prod(shape) != problem.n_rows:
            raise ValueError(f"estimate of {problem.name} must return a {name} of shape ({problem.n_rows},), got {shape}")


def _takers(structure: AbstractStructure) -> list[str]:
    """The names of the estimators that support a structure, those for any structure first."""
    is_listed = math.isfinite(structure.log_count())
    kinds = [
        kind
        for kind in _estimators(AbstractEstimator.__subclasses__())
        if kind.needs.is_met(structure) and (is_listed or kind.needs is not Needs.LIST)
    ]
    order = list(Needs)
    return [kind.__name__ for kind in sorted(kinds, key=lambda kind: order.index(kind.needs))]


def _estimators(kinds: list[type[AbstractEstimator]]) -> list[type[AbstractEstimator]]:
    """The concrete classes among the given ones and their subclasses."""
    below = [found for kind in kinds for found in _estimators(kind.__subclasses__())]
    return [kind for kind in kinds if not inspect.isabstract(kind)] + below


def _context_rows(context: Tensor | None, batch_shape: torch.Size) -> Tensor | None:
    """The context of each row, detached: (n_rows, *features)."""
    if context is None:
        return None
    if not isinstance(context, Tensor):
        raise TypeError(f"context must be a torch.Tensor, got {type(context).__name__}")
    if context.shape[: len(batch_shape)] != batch_shape:
        wanted = ", ".join([*map(str, batch_shape), "*features"])
        raise ValueError(f"context must have shape ({wanted}), got {tuple(context.shape)}")
    return context.detach().reshape(math.prod(batch_shape), *context.shape[len(batch_shape) :])


def check_samples(samples: int, least: int = 1) -> int:
    """Return the number of samples after checking that it is at least ``least``."""
    return check_int("samples", samples, least=least)


def check_chunk_size(chunk_size: int | None) -> int | None:
    """Return the chunk size after checking that it is None or a positive int."""
    return None if chunk_size is None else check_int("chunk_size", chunk_size, least=1)
