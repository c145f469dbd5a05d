"""Perturb-and-MAP, with a gradient from a second optimum at shifted scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from sparsum.arguments import check_generator, check_number
from sparsum.estimators.abstract import AbstractEstimator, Estimate, Needs, check_samples
from sparsum.estimators.noise import gumbel, logistic
from sparsum.estimators.problem import Problem
from sparsum.segments import is_any
from sparsum.structures import AbstractStructure, BoundScores, Scores
from sparsum.structures.log_space import FORBIDDEN
from sparsum.structures.scores import as_tuple, flatten
from sparsum.tensors import at_least_float32

#: Draws noise of the given shape, in the dtype and on the device of the given tensor.
Noise = Callable[[Sequence[int], Tensor, torch.Generator | None], Tensor]


class Imle(AbstractEstimator):
    r"""Implicit maximum likelihood: samples are optima of perturbed scores, for any structure with an argmax.

    .. math:: z = \arg\max_z a_z^\top (t + \epsilon), \quad
        \nabla_t \approx \frac1\lambda \Bigl( a_z - a_{z'} \Bigr), \quad
        z' = \arg\max_{z'} a_{z'}^\top \bigl( t + \epsilon - \lambda \nabla_{a_z} \ell \bigr)

    The loss is only evaluated at vectors of assignments, and must be differentiable there. If the scores are a pair, it
    receives the first part of the vectors, the one-hot tags. Biased; the bias depends on the step.

    >>> import sparsum as sp
    >>> scores, target = torch.zeros(1, 3, 3, requires_grad=True), torch.eye(3)
    >>> loss = lambda z, row: (z - target).square().sum((-1, -2))
    >>> estimate = Imle()(scores, sp.Matching(3), loss, generator=torch.Generator().manual_seed(0))
    >>> estimate.surrogate.sum().backward()

    Args:
        step: :math:`\lambda`, the step size against the gradient of the loss, larger than 0; tune it to the scale of the
            loss.
        samples: the number of samples per element, which are averaged.
        noise: called as ``noise(shape, like, generator)``, returns noise in the dtype and on the device of ``like``. By
            default standard logistic noise for `Bits` and `Budget`, otherwise Gumbel noise; both give exact samples for
            independent choices.

    Returns:
        An estimate whose distribution is `sparsum.Gibbs` for structures that support it: the samples follow it exactly for
        `OneOf`, `Groups` and `Bits`, otherwise approximately. For other structures it is a `PerturbAndMap`, which does not
        have an entropy.

    References:
        - Implicit MLE: backpropagating through discrete exponential family distributions (Niepert, Minervini &
          Franceschi, 2021), algorithm 1, https://arxiv.org/abs/2106.01798
        - Perturb-and-MAP random fields (Papandreou & Yuille, 2011), https://doi.org/10.1109/ICCV.2011.6126242
    """

    is_unbiased = False
    needs_relaxed_loss = True
    needs = Needs.NOTHING

    def __init__(self, step: float = 1.0, *, samples: int = 1, noise: Noise | None = None) -> None:
        super().__init__()
        check_number("step", step, above=0.0)
        if noise is not None and not callable(noise):
            raise TypeError(f"noise must be a function noise(shape, like, generator) or None, got {type(noise).__name__}")
        self.step, self.samples, self.noise = float(step), check_samples(samples), noise

    def n_calls(self, structure: AbstractStructure) -> int:
        """One per sample."""
        return self.samples

    def estimate(self, problem: Problem) -> Estimate:
        """The average over samples."""
        noise = self.noise if self.noise is not None else default_noise(problem.structure)
        p = problem.gibbs() if problem.structure.has_partition else _perturb_and_map(problem, noise)
        flat = at_least_float32(problem.bound.flat)
        # One row per sample.
        drawn = problem.bound.map(Tensor.detach).select(problem.row(self.samples))
        fixed = at_least_float32(drawn.flat)
        perturbed = fixed + noise(fixed.shape, fixed, problem.generator)
        chosen = _best_vectors(drawn.with_flat(perturbed))
        first = as_tuple(chosen)[0].to(problem.dtype)
        with torch.enable_grad():
            point = first.unflatten(0, (problem.n_rows, self.samples)).requires_grad_()
            losses = problem.relaxed_losses(point)
        surrogate = losses.mean(1)
        if flat.requires_grad and torch.is_grad_enabled():
            (slope,) = torch.autograd.grad(losses.sum(), point, retain_graph=True)
            slope = torch.nn.functional.pad(slope.flatten(2).flatten(0, 1), (0, fixed.shape[1] - first.shape[1:].numel()))
            moved = _best_vectors(drawn.with_flat(perturbed - self.step * slope))
            gradient = (flatten(chosen) - flatten(moved)).to(flat.dtype) / self.step
            # The optimum of non-finite scores is meaningless.
            gradient = torch.where(slope.isfinite().all(-1, keepdim=True), gradient, torch.nan)
            along = gradient.unflatten(0, (problem.n_rows, self.samples)).mean(1)
            surrogate = surrogate + (along * flat.clamp_min(FORBIDDEN)).sum(-1)
        return Estimate(surrogate, losses.mean(1), problem.calls(self.samples), p)


def _best_vectors(bound: BoundScores) -> Scores:
    """The vectors of the best assignments, in the form of the scores."""
    return bound.structure.vectors(bound.argmax())


class PerturbAndMap(Distribution):
    """The distribution of the optima of perturbed scores; it supports only sampling and the mode.

    Args:
        bound: rows of scores, bound to their structure.
        noise: draws the noise added to the scores.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, bound: BoundScores, noise: Noise) -> None:
        self.bound, self._noise = bound, noise
        #: The best assignment without noise: (*batch_shape, *event_shape).
        self.best = bound.shaped(bound.argmax())
        super().__init__(bound.batch_shape, self.best.shape[len(bound.batch_shape) :], validate_args=False)

    @property
    def structure(self) -> AbstractStructure:
        """The set of assignments."""
        return self.bound.structure

    @property
    def mode(self) -> Tensor:
        """The best assignment without noise: (*batch_shape, *event_shape)."""
        return self.best

    def sample(self, sample_shape: int | Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws: (*sample_shape, *batch_shape, *event_shape)."""
        check_generator(generator)
        shape = torch.Size([sample_shape] if isinstance(sample_shape, int) else sample_shape)
        rows = torch.arange(self.bound.n_rows, device=self.bound.device).repeat(shape.numel())
        drawn = self.bound.map(Tensor.detach).select(rows)
        flat = at_least_float32(drawn.flat)
        atoms = drawn.with_flat(flat + self._noise(flat.shape, flat, generator)).argmax()
        return atoms.reshape(shape + self.batch_shape + self.event_shape)

    def entropy(self) -> Tensor:
        """Not available: raises NotImplementedError."""
        raise NotImplementedError(
            f"the entropy of optima of perturbed scores over {self.structure!r} is not known; use SparseMAP or TopK instead"
        )


def _perturb_and_map(problem: Problem, noise: Noise) -> PerturbAndMap:
    """The distribution of a problem; raises if a row does not have one."""
    bound = problem.bound
    p = PerturbAndMap(bound, noise)
    if problem.validate_args:
        best = p.best.reshape(bound.n_rows, *p.event_shape)
        is_bad = bound.is_unusable | (bound.score(best, bound.row(1)).detach() == -torch.inf)
        if is_any(is_bad):
            bound.raise_bad(is_bad)
    return p


def default_noise(structure: AbstractStructure) -> Noise:
    """Logistic noise where each score is compared with 0, Gumbel noise where scores are compared with each other."""
    counts = structure.bit_counts()
    return gumbel if counts is None or counts.is_exact else logistic
